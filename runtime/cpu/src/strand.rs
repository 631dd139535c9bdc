//! A serial queue with at most one owner: its entries and its state, without the code that runs
//! them.
//!
//! A strand carries one stream's work. Any thread puts work in. The thread that holds the **running
//! token** takes work out and runs it. This file knows neither threads nor ops: it decides which
//! caller may run the strand, and when the strand must be sent to a run queue.
//!
//! # States
//! * `Idle`: nothing is queued, and no worker is coming.
//! * `Ready`: the strand has been sent, and is in a run queue exactly once.
//! * `Running`: one owner holds the token.
//! * `Parked`: work is queued and its head waits for something. The thread that makes this happen
//!   calls [`Strand::wake`].
//!
//! # Rules
//! 1. State and queue change together, under one lock, which is never held while work runs or is
//!    dropped.
//! 2. `Idle → Ready` (by [`push`](Strand::push)) and `Parked → Ready` (by [`wake`](Strand::wake))
//!    return `true` to exactly one caller, and that caller sends the strand to a run queue. Nothing
//!    else makes the strand `Ready`, except an owner that [yields](Strand::yield_turn) and sends it
//!    itself. So the strand is in a run queue at most once, and there is at most one owner.
//! 3. An owner leaves `Running` in three ways: the queue is empty (`Idle`), its head has to wait
//!    (`Parked`), or it yields (`Ready`). In each case it first puts back what it took and did not
//!    run, in the same critical section. After the unlock another thread may own the strand.
//! 4. **Park, then ask to be woken, then look.** An owner parks before it registers its waker. A
//!    wake that arrived while the strand was still `Running` would be lost. After registering it
//!    looks again at everything that could have happened before: at the awaited timeline
//!    (registering does this), the device's health, and released claims. If it finds something, it
//!    calls `wake` itself.
//!
//! # Situations that look dangerous
//! * *Two wakes at the same time, or a wake from an earlier wait*: one finds `Parked`, the others
//!   do nothing. The woken owner looks at the head again and parks again if it has to. A wake is a
//!   hint, never a promise.
//! * *The parker calls `wake` although another owner ran the strand and it is now parked at a later
//!   op*: a spurious wake.
//! * *Work is pushed while the strand is parked or ready*: it goes to the end. A worker is coming,
//!   or will come.

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};
use std::collections::{VecDeque, vec_deque};
use std::option;

/// The largest capacity, in entries, at which a worker's deque is kept for reuse.
const KEEP_CAPACITY: usize = 1024;
/// The number of entries, besides the head, for which an idle strand may keep room. Up to this many
/// are moved one by one.
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
    /// A hint that the inbox is not empty, written under the lock and read without it. An owner
    /// polls it: on the cache line of the lock, it cost a fifth of the throughput.
    arrived: AtomicBool,
}

struct Inbox<T> {
    /// The entry before `queue`, stored in place. An op on an empty stream thus allocates no memory
    /// that another thread would free.
    head: Option<T>,
    queue: VecDeque<T>,
    state: State,
}

/// The queued entries, from the head on.
pub(crate) type Queued<'a, T> = std::iter::Chain<option::Iter<'a, T>, vec_deque::Iter<'a, T>>;

impl<T> Inbox<T> {
    fn is_empty(&self) -> bool {
        self.head.is_none() && self.queue.is_empty()
    }
}

impl<T> Strand<T> {
    /// Returns an empty, idle strand.
    pub(crate) fn new() -> Self {
        Strand {
            inbox: Mutex::new(Inbox { head: None, queue: VecDeque::new(), state: State::Idle }),
            arrived: AtomicBool::new(false),
        }
    }

    /// Puts work at the end. Returns `true` if the caller has to send the strand to a run queue.
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

    /// Takes the running token, and moves everything queued into the empty `batch`. Called by the
    /// thread that took the strand from a run queue.
    pub(crate) fn begin(&self, batch: &mut VecDeque<T>) {
        let mut inbox = self.inbox.lock();
        assert_eq!(inbox.state, State::Ready, "a strand has one owner");
        inbox.state = State::Running;
        self.empty(inbox, batch);
    }

    /// Returns whether work seems to have arrived since the last [`take`](Self::take).
    #[inline]
    pub(crate) fn seems_to_have_work(&self) -> bool {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Moves everything queued into the owner's empty `batch`. Returns `false` if nothing was
    /// queued: the strand is then idle, and the caller no longer owns it.
    ///
    /// An idle strand keeps room for a few entries. Allocating that room on one thread and freeing
    /// it on another for each op would make both threads wait for the allocator.
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

    /// Puts the owner's remaining work back and parks. The caller no longer owns the strand.
    pub(crate) fn park(&self, rest: &mut VecDeque<T>) {
        self.put_back(rest, State::Parked);
    }

    /// Puts the owner's remaining work back and makes the strand ready. The caller sends it to a
    /// run queue.
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

    /// Reports that the event the head waits for may have happened. Returns `true` if the caller
    /// has to send the strand to a run queue.
    #[must_use]
    pub(crate) fn wake(&self) -> bool {
        let mut inbox = self.inbox.lock();
        let send = inbox.state == State::Parked; // weaken: wake-only-parked
        if send {
            inbox.state = State::Ready;
        }
        send
    }

    /// Looks at the queued work that is not taken, under the lock. `look` runs nothing and drops
    /// nothing.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(Queued<'_, T>) -> R) -> R {
        let inbox = self.inbox.lock();
        look(inbox.head.iter().chain(&inbox.queue))
    }

    /// Takes the head of a ready strand without taking the token. This is for schedules that run
    /// one op at a time under their own lock, where being in their list of ready strands is the
    /// token.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut inbox = self.inbox.lock();
        inbox.head.take().or_else(|| inbox.queue.pop_front())
    }

    /// Takes all work of a ready strand, like [`pop`](Self::pop).
    pub(crate) fn pop_all(&self) -> VecDeque<T> {
        let mut inbox = self.inbox.lock();
        let head = inbox.head.take();
        head.into_iter().chain(std::mem::take(&mut inbox.queue)).collect()
    }

    /// Makes a ready strand idle if it is empty. Returns whether it is.
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
