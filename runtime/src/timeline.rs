//! A stream's progress as one growing number, and who waits for it.
//!
//! Drivers advance a timeline; `Pending`, parked strands and closing streams wait on it. It knows nothing of either.
//!
//! # Who may touch what, when
//! * `completed` (the word) is written by one party only: whoever owns the stream's progress (the CPU worker that
//!   holds the strand, a test that completes by hand, later the reactor). It never goes back. Anybody reads it.
//! * `waiting` is behind its own lock, which is never held while a waker runs, a waker is dropped, or a kept value is
//!   dropped: any of these may run user code that comes back to this same timeline.
//! * `interest` is the lowest ticket anything in `waiting` waits for (`u64::MAX`: nothing). It is written under the
//!   lock and read without it, so that finishing a ticket nobody waits for takes no lock.
//!
//! # The protocol
//! A waiter **registers, fences, reads the word**; the completer **writes the word, fences, reads `interest`**. The
//! two sequentially consistent fences are totally ordered. If the waiter's comes first, the completer sees its interest
//! and wakes it; if the completer's comes first, the waiter sees the word and does not wait. Either may see both (a
//! wake that was not needed); none can miss both. Registering takes the lock and completing may take it too, but the
//! lock alone would not do: the completer takes it only if it saw interest.
//!
//! # Situations that look dangerous
//! * *A waker is dropped by its `Pending` while the completer collects it*: both hold the lock to touch the map, and a
//!   waker that was collected is woken although its task lost interest: a spurious wake, which futures allow.
//! * *Two tickets complete at once*: cannot be; one writer. `complete` takes the newest, and everything at or below
//!   it is released in one batch.
//! * *A waker panics*: it is caught, the rest of the batch is woken.
//!
//! # Lock order
//! stream → allocation → **waiting**. Nothing is acquired under it.

use crate::sync::{Arc, AtomicU64, Mutex, Ordering, fence};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, Waker};

/// A number on a stream's timeline: the `n`th piece of work that was put there. The first is 1.
pub type Ticket = u64;

/// Something that has to stay alive until a ticket is reached: a host buffer the device still reads or writes.
pub type Keep = Arc<dyn Any + Send + Sync>;

/// Everything up to [`Timeline::completed`] is done.
pub struct Timeline {
    completed: AtomicU64,
    interest: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    wakers: BTreeMap<Registration, Waker>,
    keeps: VecDeque<Kept>,
    sequence: u64,
    abandoned: bool,
}

struct Kept {
    ticket: Ticket,
    keep: Keep,
    until: Until,
}

/// When what a ticket keeps is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When its work is over, before the ticket counts as reached: whoever sees the ticket sees a buffer back in its pool.
    Over,
    /// When the ticket counts as reached: whoever gets the room of an op sees that the op is no longer in flight.
    Reached,
}

/// Where a waker sits in a timeline's waiting list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Registration {
    ticket: Ticket,
    sequence: u64,
}

impl Waiting {
    fn lowest(&self) -> u64 {
        let waker = self.wakers.first_key_value().map_or(u64::MAX, |(at, _)| at.ticket);
        let keep = self.keeps.front().map_or(u64::MAX, |kept| kept.ticket);
        waker.min(keep)
    }

    /// Takes what is due at `ticket`; before it counts as reached, only what does not wait for that.
    fn take_keeps(&mut self, ticket: Ticket, reached: bool) -> Vec<Keep> {
        let due = self.keeps.partition_point(|kept| kept.ticket <= ticket);
        let (mut keeps, mut left) = (Vec::with_capacity(due), Vec::new());
        for kept in self.keeps.drain(..due) {
            if reached || kept.until == Until::Over {
                keeps.push(kept.keep);
            } else {
                left.push(kept);
            }
        }
        left.into_iter().rev().for_each(|kept| self.keeps.push_front(kept));
        if self.keeps.is_empty() {
            self.keeps = VecDeque::new();
        }
        keeps
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

impl Timeline {
    /// A timeline nothing has been put on: ticket 0 is complete.
    pub fn new() -> Self {
        Timeline {
            completed: AtomicU64::new(0),
            interest: AtomicU64::new(u64::MAX),
            waiting: Mutex::new(Waiting::default()),
        }
    }

    /// The newest ticket that is done.
    #[inline]
    pub fn completed(&self) -> Ticket {
        self.completed.load(Ordering::Acquire)
    }

    /// Whether `ticket` is done: one atomic load.
    #[inline]
    pub fn reached(&self, ticket: Ticket) -> bool {
        self.completed() >= ticket
    }

    /// Lets go of what was kept until the work of `ticket` is over, marks everything up to it as done, then wakes who waited and
    /// lets go of the rest.
    ///
    /// Only the owner of this stream's progress calls this, with growing tickets, and while it holds no lock.
    #[inline]
    pub fn complete(&self, ticket: Ticket) {
        // What is kept for a ticket was registered before its work was submitted, so it is seen without a fence.
        if self.interest.load(Ordering::Relaxed) <= ticket {
            self.let_go(ticket);
        }
        self.completed.store(ticket, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: complete-then-look
        if self.interest.load(Ordering::Relaxed) <= ticket {
            self.release(ticket);
        }
    }

    /// Like [`complete`](Self::complete), but leaves the waking to the caller, who runs the returned batch once it
    /// holds no lock.
    #[must_use]
    pub fn complete_quietly(&self, ticket: Ticket) -> Released {
        self.completed.store(ticket, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: complete-quietly-then-look
        if self.interest.load(Ordering::Relaxed) <= ticket {
            self.collect(ticket)
        } else {
            Released::default()
        }
    }

    #[cold]
    fn release(&self, ticket: Ticket) {
        self.collect(ticket).run();
    }

    #[cold]
    fn let_go(&self, ticket: Ticket) {
        let mut waiting = self.waiting.lock();
        let keeps = waiting.take_keeps(ticket, false);
        drop(waiting);
        Released { keeps, wakers: Vec::new() }.run();
    }

    fn collect(&self, ticket: Ticket) -> Released {
        let mut waiting = self.waiting.lock();
        let later = waiting.wakers.split_off(&Registration { ticket: ticket + 1, sequence: 0 });
        let wakers = std::mem::replace(&mut waiting.wakers, later);
        let keeps = waiting.take_keeps(ticket, true);
        self.interest.store(waiting.lowest(), Ordering::Relaxed);
        drop(waiting);
        Released { keeps, wakers: wakers.into_values().collect() }
    }

    /// Asks for `waker` to be woken when `ticket` is reached; ready if it already is.
    ///
    /// `registration` is the caller's place in the list: `None` before the first call, and to be passed again on each
    /// later one, so that a changed waker replaces the old.
    pub fn register(
        &self,
        ticket: Ticket,
        waker: &Waker,
        registration: &mut Option<Registration>,
    ) -> Poll<()> {
        let waker = waker.clone();
        let mut waiting = self.waiting.lock();
        let at = *registration.get_or_insert_with(|| {
            waiting.sequence += 1;
            Registration { ticket, sequence: waiting.sequence }
        });
        let replaced = waiting.wakers.insert(at, waker);
        self.interest.store(waiting.lowest(), Ordering::Relaxed);
        drop(waiting);
        drop(replaced);
        fence(Ordering::SeqCst); // weaken: register-then-read
        if self.reached(ticket) {
            self.deregister(registration);
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Gives a place in the list up. The waker is dropped after the lock.
    pub fn deregister(&self, registration: &mut Option<Registration>) {
        let Some(at) = registration.take() else { return };
        let mut waiting = self.waiting.lock();
        let waker = waiting.wakers.remove(&at);
        self.interest.store(waiting.lowest(), Ordering::Relaxed);
        drop(waiting);
        drop(waker);
    }

    /// Holds `keep` until `ticket` is reached. Called before the work of that ticket is handed to the device, in ticket
    /// order. After [`abandon`](Self::abandon) there is nothing to hold it for.
    pub fn keep_until(&self, ticket: Ticket, keep: Keep, until: Until) {
        let mut waiting = self.waiting.lock();
        let unneeded = if waiting.abandoned {
            Some(keep)
        } else {
            waiting.keeps.push_back(Kept { ticket, keep, until });
            None
        };
        self.interest.store(waiting.lowest(), Ordering::Relaxed);
        drop(waiting);
        drop(unneeded);
    }

    /// Like [`keep_until`](Self::keep_until), for a ticket that may be reached meanwhile: register, fence, read the word.
    pub fn keep_until_last(&self, ticket: Ticket, keep: Keep) {
        self.keep_until(ticket, keep, Until::Reached);
        fence(Ordering::SeqCst); // weaken: keep-then-read
        if self.reached(ticket) {
            self.release(ticket);
        }
    }

    /// Takes back every `keep_until` of the newest ticket, which was refused before it reached the device. The caller drops
    /// them once it holds no lock.
    #[must_use]
    pub fn forget_keeps(&self, ticket: Ticket) -> Released {
        let mut waiting = self.waiting.lock();
        let older = waiting.keeps.partition_point(|kept| kept.ticket < ticket);
        let newest = waiting.keeps.split_off(older);
        self.interest.store(waiting.lowest(), Ordering::Relaxed);
        Released { keeps: newest.into_iter().map(|kept| kept.keep).collect(), wakers: Vec::new() }
    }

    /// Wakes every waiter although nothing completed: the device has failed, and they shall look again.
    pub fn wake_all(&self) {
        let mut waiting = self.waiting.lock();
        let wakers = std::mem::take(&mut waiting.wakers);
        self.interest.store(waiting.lowest(), Ordering::Relaxed);
        drop(waiting);
        Released { keeps: Vec::new(), wakers: wakers.into_values().collect() }.run();
    }

    /// Lets go of everything kept: the owner of the stream's progress says that nothing of it will run any more.
    pub fn abandon(&self) {
        let mut waiting = self.waiting.lock();
        waiting.abandoned = true;
        let keeps = std::mem::take(&mut waiting.keeps);
        self.interest.store(waiting.lowest(), Ordering::Relaxed);
        drop(waiting);
        let keeps = keeps.into_iter().map(|kept| kept.keep).collect();
        Released { keeps, wakers: Vec::new() }.run();
    }

    /// Whether the owner of the stream's progress has said that nothing of it will run any more.
    pub fn is_abandoned(&self) -> bool {
        self.waiting.lock().abandoned
    }

    /// How many wakers and kept values the list holds, for tests and figures.
    pub fn waiting_len(&self) -> (usize, usize) {
        let waiting = self.waiting.lock();
        (waiting.wakers.len(), waiting.keeps.len())
    }
}

/// What a finished ticket lets go of: dropped and woken by [`run`](Self::run), outside every lock.
#[derive(Default)]
pub struct Released {
    keeps: Vec<Keep>,
    wakers: Vec<Waker>,
}

impl Released {
    /// Drops what was kept, then wakes each waiter; a panic in one does not keep the others asleep.
    pub fn run(self) {
        // Kept values first: who is woken may look whether its buffer has been let go.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self.keeps)));
        for waker in self.wakers {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                crate::report::waker_panicked();
            }
        }
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").field("completed", &self.completed()).finish_non_exhaustive()
    }
}
