//! A serial queue with at most one owner: the queue and its state, without what runs in it.
//!
//! A strand carries one stream's work. Anybody puts work in; whoever holds the **running token** takes it out and runs it.
//! This file knows neither threads nor ops: it says who may run, and when somebody has to be sent.
//!
//! # States
//! * `Idle`: nothing is queued, nobody is coming.
//! * `Ready`: somebody has been sent (the strand is in a run queue exactly once).
//! * `Running`: one owner holds the token.
//! * `Parked`: work is queued and its head waits for something; whoever makes that happen calls [`Strand::wake`].
//!
//! # Rules
//! 1. State and queue change together, under one lock, which is never held while work runs or is dropped.
//! 2. `Idle → Ready` (by [`push`](Strand::push)) and `Parked → Ready` (by [`wake`](Strand::wake)) return `true` to exactly one
//!    caller, and that caller sends the strand to a run queue. Nothing else makes it `Ready`, but for the owner who
//!    [gives its turn up](Strand::yield_turn) and sends it itself. So it is in a run queue at most once, and there is at
//!    most one owner.
//! 3. An owner leaves `Running` in three ways: the queue is empty (`Idle`), its head has to wait (`Parked`), or it yields
//!    (`Ready`). In each case it first puts back what it took and did not run, in the same critical section, because from
//!    the unlock on somebody else may own the strand.
//! 4. **Park, then ask to be woken, then look.** An owner that parks does so before it registers its waker, since a wake that
//!    comes while the strand is still `Running` would be dropped. After registering it looks again at everything that could
//!    have been true before: the timeline waited for (registering does this), the device's health, a claim that was freed.
//!    If there is something, it calls `wake` itself.
//!
//! # Situations that look dangerous
//! * *Two wakes at once, or a wake from an earlier wait*: one finds `Parked`, the others do nothing. The woken owner looks at
//!   the head again and parks again if it has to; a wake is a hint, never a promise.
//! * *The parker calls `wake` although another owner ran the strand and it is now parked at a later op*: a spurious wake.
//! * *Work is pushed while the strand is parked or ready*: it goes to the end; somebody is coming, or will.

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};
use std::collections::{VecDeque, vec_deque};
use std::option;

/// How many entries a worker's deque may have room for and still be kept for reuse.
const KEEP_CAPACITY: usize = 1024;
/// For how many entries an idle strand may keep room, besides the head. So many are moved one by one.
const FEW: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Ready,
    Running,
    Parked,
}

/// The queue and its state.
pub(crate) struct Strand<T> {
    inbox: Mutex<Inbox<T>>,
    /// A hint, written under the lock and read without: the inbox is not empty.
    arrived: AtomicBool,
}

struct Inbox<T> {
    /// What comes before `queue`, in place: an op on a stream that had none takes no memory, which another thread would free.
    head: Option<T>,
    queue: VecDeque<T>,
    state: State,
}

/// What is queued, from the head on.
pub(crate) type Queued<'a, T> = std::iter::Chain<option::Iter<'a, T>, vec_deque::Iter<'a, T>>;

impl<T> Inbox<T> {
    fn is_empty(&self) -> bool {
        self.head.is_none() && self.queue.is_empty()
    }
}

impl<T> Strand<T> {
    /// Empty and idle.
    pub(crate) fn new() -> Self {
        Strand {
            inbox: Mutex::new(Inbox { head: None, queue: VecDeque::new(), state: State::Idle }),
            arrived: AtomicBool::new(false),
        }
    }

    /// Puts work at the end. `true`: the caller sends the strand to a run queue.
    #[inline]
    #[must_use]
    pub(crate) fn push(&self, work: T) -> bool {
        let mut inbox = self.inbox.lock();
        if inbox.is_empty() {
            inbox.head = Some(work);
        } else {
            inbox.queue.push_back(work);
        }
        self.arrived.store(true, Ordering::Relaxed);
        let send = inbox.state == State::Idle; // weaken: send-only-to-idle
        if send {
            inbox.state = State::Ready;
        }
        send
    }

    /// Takes the running token, and moves everything queued into the empty `batch`: called by whoever got the strand from a run
    /// queue.
    pub(crate) fn begin(&self, batch: &mut VecDeque<T>) {
        let mut inbox = self.inbox.lock();
        assert_eq!(inbox.state, State::Ready, "a strand has one owner");
        inbox.state = State::Running;
        self.empty(inbox, batch);
    }

    /// Whether work seems to have arrived since the last [`take`](Self::take).
    #[inline]
    pub(crate) fn seems_to_have_work(&self) -> bool {
        self.arrived.load(Ordering::Relaxed)
    }

    /// By the owner, with an empty `batch`: moves everything queued into it. `false`: there was nothing, the strand is idle, and
    /// the caller no longer owns it. An idle strand keeps room for a few: to make it on one thread and free it on another for each op
    /// would have both wait for the allocator.
    #[must_use]
    pub(crate) fn take(&self, batch: &mut VecDeque<T>) -> bool {
        let mut inbox = self.inbox.lock();
        debug_assert_eq!(inbox.state, State::Running);
        if inbox.is_empty() {
            inbox.state = State::Idle;
            if inbox.queue.capacity() <= FEW {
                return false;
            }
            let room = std::mem::take(&mut inbox.queue);
            drop(inbox);
            if room.capacity() > batch.capacity() && room.capacity() <= KEEP_CAPACITY {
                *batch = room;
            }
            return false;
        }
        self.empty(inbox, batch);
        true
    }

    #[inline]
    fn empty(&self, mut inbox: MutexGuard<'_, Inbox<T>>, batch: &mut VecDeque<T>) {
        debug_assert!(batch.is_empty());
        self.arrived.store(false, Ordering::Relaxed);
        let head = inbox.head.take();
        if inbox.queue.len() <= FEW {
            batch.extend(head);
            batch.append(&mut inbox.queue);
            return;
        }
        std::mem::swap(&mut inbox.queue, batch);
        drop(inbox);
        if let Some(head) = head {
            batch.push_front(head);
        }
    }

    /// By the owner: puts the unrun rest back and parks. The caller no longer owns the strand.
    pub(crate) fn park(&self, rest: &mut VecDeque<T>) {
        self.put_back(rest, State::Parked);
    }

    /// By the owner: puts the unrun rest back and makes the strand ready; the caller sends it to a run queue.
    pub(crate) fn yield_turn(&self, rest: &mut VecDeque<T>) {
        self.put_back(rest, State::Ready);
    }

    fn put_back(&self, rest: &mut VecDeque<T>, state: State) {
        let mut inbox = self.inbox.lock();
        debug_assert_eq!(inbox.state, State::Running);
        debug_assert!(!rest.is_empty());
        rest.extend(inbox.head.take());
        rest.append(&mut inbox.queue);
        std::mem::swap(&mut inbox.queue, rest);
        inbox.state = state;
    }

    /// Says that what the head waits for may have happened. `true`: the caller sends the strand to a run queue.
    #[must_use]
    pub(crate) fn wake(&self) -> bool {
        let mut inbox = self.inbox.lock();
        let send = inbox.state == State::Parked; // weaken: wake-only-parked
        if send {
            inbox.state = State::Ready;
        }
        send
    }

    /// Looks at what is queued and not taken, under the lock: `look` runs nothing and drops nothing.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(Queued<'_, T>) -> R) -> R {
        let inbox = self.inbox.lock();
        look(inbox.head.iter().chain(&inbox.queue))
    }

    /// Takes the head of a ready strand without taking the token: for schedules that run one op at a time under their own
    /// lock, where being in their list of ready strands is the token.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut inbox = self.inbox.lock();
        inbox.head.take().or_else(|| inbox.queue.pop_front())
    }

    /// Takes everything of a ready strand, like [`pop`](Self::pop).
    pub(crate) fn pop_all(&self) -> VecDeque<T> {
        let mut inbox = self.inbox.lock();
        let head = inbox.head.take();
        head.into_iter().chain(std::mem::take(&mut inbox.queue)).collect()
    }

    /// Makes a ready strand idle if it is empty; whether it is.
    #[must_use]
    pub(crate) fn rest_if_empty(&self) -> bool {
        let mut inbox = self.inbox.lock();
        if inbox.is_empty() {
            inbox.state = State::Idle;
            inbox.queue = VecDeque::new();
            return true;
        }
        false
    }
}
