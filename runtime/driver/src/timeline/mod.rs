//! A stream's progress as one growing number, and the waiters for it.
//!
//! Drivers advance a timeline; `Pending`, parked strands and closing streams wait on it. The
//! timeline depends on none of them.
//!
//! # Who may touch what, when
//! * `completed` (the word) has one writer: the owner of the stream's progress. That is the CPU
//!   worker that holds the strand, or a test that completes by hand. The word never decreases. Any
//!   thread reads it.
//! * A device may count for itself, in memory that it shares with the host. The timeline then
//!   **follows** that [`Progress`]. The owner is the thread that holds `completing`: a poller that
//!   sees the device's number, or the reactor. No thread waits for `completing`. A poller that does
//!   not get it registers, and the reactor checks the registered tickets until they are reached.
//! * `waiting` is behind its own lock. That lock is never held while a waker runs, a waker is
//!   dropped, or a kept value is dropped. Each of these may run user code that calls this same
//!   timeline.
//! * `interest` is the lowest ticket that an entry of `waiting` waits for (`u64::MAX`: none). It is
//!   written under the lock and read without it. Finishing a ticket that has no waiter therefore
//!   takes no lock.
//!
//! # The protocol
//! A waiter **registers, fences, reads the word**; the completer **writes the word, fences, reads
//! `interest`**. The two sequentially consistent fences are totally ordered. If the waiter's fence
//! comes first, the completer sees its interest and wakes it. If the completer's fence comes first,
//! the waiter sees the word and does not wait. At least one of the two always happens. If both do,
//! the wake-up was not needed.
//!
//! Registering takes the lock and completing may take it too. The lock alone would not suffice,
//! since the completer takes it only if it saw interest. Several completers hold `completing` one
//! after the other, and each reads `interest` after its own store.
//!
//! A waiter on a timeline that follows a device calls [`Progress::wanted`] after its fence. The
//! reactor clears its flag, fences and reads `interest` before it stops watching. It therefore sees
//! either the interest or the new flag (`watch.rs` of the CUDA devices).
//!
//! # Situations that look dangerous
//! * *A waker is dropped by its `Pending` while the completer collects it*: both hold the lock to
//!   touch the map. A collected waker is woken although its task lost interest. That is a spurious
//!   wake-up, which futures allow.
//! * *Two tickets complete at once*: this cannot happen, because there is one writer. `complete`
//!   takes the newest ticket, and everything at or below it is released in one batch.
//! * *A waker panics*: the panic is caught, and the rest of the batch is woken.
//!
//! # Lock order
//! stream → allocation → **waiting**. No lock is acquired under it.

mod released;

use crate::Error;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, fence};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::OnceLock;
use std::task::{Poll, Waker};

pub use crate::Ticket;
pub use released::Released;

/// A value that has to stay alive until a ticket is reached, such as a host buffer that the device
/// still reads or writes.
pub type Keep = Arc<dyn Any + Send + Sync>;

/// A device's own count of completed work, which a timeline follows.
pub trait Progress: Send + Sync {
    /// Returns the newest ticket that the device reports as done.
    fn reached(&self) -> Ticket;

    /// Checks more thoroughly than [`reached`](Self::reached), for a caller that polls repeatedly
    /// instead of waiting. May call the driver. Called while no lock is held.
    fn ask(&self) {}

    /// Notifies the device that something waits on the timeline. [`reached`](Self::reached) must be
    /// checked until nothing waits. Called while no lock is held except, for kept values, the
    /// stream's.
    fn wanted(&self);
}

/// The progress of a stream: everything up to [`Timeline::completed`] is done.
pub struct Timeline {
    completed: AtomicU64,
    interest: AtomicU64,
    waiting: Mutex<Waiting>,
    /// Held by the completing thread, where several threads may complete.
    completing: AtomicBool,
    progress: OnceLock<Arc<dyn Progress>>,
    /// The reason why unreached tickets never will be reached, on a device that is still usable.
    fault: OnceLock<Error>,
}

struct Waiting {
    wakers: BTreeMap<Registration, Waker>,
    /// In ticket order.
    keeps: VecDeque<Kept>,
    /// The ticket whose completer is releasing kept values. They count as kept until that is done.
    /// `u64::MAX`: none.
    releasing: Ticket,
    sequence: u64,
    abandoned: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        let (wakers, keeps) = (BTreeMap::new(), VecDeque::new());
        Waiting { wakers, keeps, releasing: Ticket::MAX, sequence: 0, abandoned: false }
    }
}

struct Kept {
    ticket: Ticket,
    keep: Keep,
    until: Until,
}

/// The moment at which a kept value is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When the work has ended, before the ticket counts as reached. A thread that sees the ticket
    /// reached finds the buffer back in its pool.
    Over,
    /// When the ticket counts as reached. A thread that gets the room of an op sees that the op is
    /// no longer in flight.
    Reached,
}

/// The place of a waker in a timeline's waiting list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Registration {
    ticket: Ticket,
    sequence: u64,
}

impl Waiting {
    fn lowest(&self) -> u64 {
        let waker = self.wakers.first_key_value().map_or(u64::MAX, |(at, _)| at.ticket);
        let keep = self.keeps.front().map_or(u64::MAX, |kept| kept.ticket);
        waker.min(keep).min(self.releasing)
    }

    /// Inserts a kept value in ticket order, mostly at the end. Only a value for a ticket that was
    /// taken a while ago goes before others.
    fn insert(&mut self, kept: Kept) {
        let later = self.keeps.iter().rev().take_while(|other| other.ticket > kept.ticket).count();
        self.keeps.insert(self.keeps.len() - later, kept);
    }

    /// Takes the values that are due at `ticket`. If `reached` is false, takes only those with
    /// [`Until::Over`].
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
    /// Creates a timeline without work: ticket 0 is complete.
    pub fn new() -> Self {
        Timeline {
            completed: AtomicU64::new(0),
            interest: AtomicU64::new(u64::MAX),
            waiting: Mutex::new(Waiting::default()),
            completing: AtomicBool::new(false),
            progress: OnceLock::new(),
            fault: OnceLock::new(),
        }
    }

    /// Makes the timeline follow a device's own count. Called once, before anything waits.
    pub fn follow(&self, progress: Arc<dyn Progress>) {
        let first = self.progress.set(progress).is_ok();
        assert!(first, "a timeline follows one device");
    }

    /// Returns the newest ticket that is done and whose waiters were woken.
    #[inline]
    pub fn completed(&self) -> Ticket {
        self.completed.load(Ordering::Acquire)
    }

    /// Returns the newest ticket that is done, even if its waiters have not been woken yet.
    pub fn newest(&self) -> Ticket {
        self.progress.get().map_or(0, |device| device.reached()).max(self.completed())
    }

    /// Returns true if `ticket` is done: one atomic load, or two if the timeline follows a device.
    ///
    /// The values that the ticket keeps may not be released yet. A caller that needs them back uses
    /// [`settle`](Self::settle) instead.
    #[inline]
    pub fn reached(&self, ticket: Ticket) -> bool {
        self.completed() >= ticket || self.progress.get().is_some_and(|device| device.reached() >= ticket)
    }

    /// Returns true if `ticket` is done and the values kept until then were released.
    ///
    /// If the timeline follows a device that has reached the ticket, this call completes it, unless
    /// another thread is completing. Called while no lock is held.
    #[inline]
    pub fn settle(&self, ticket: Ticket) -> bool {
        self.completed() >= ticket
            || self.progress.get().is_some_and(|device| self.catch_up(&**device, ticket))
    }

    /// Makes a followed device check more thoroughly than [`settle`](Self::settle) does. Called
    /// while no lock is held.
    pub fn ask(&self) {
        if let Some(device) = self.progress.get() {
            device.ask();
        }
    }

    #[inline(never)]
    fn catch_up(&self, device: &dyn Progress, ticket: Ticket) -> bool {
        let reached = device.reached();
        if reached < ticket {
            return false;
        }
        // No value is kept up to `reached`. Such a value would have been entered before its work
        // was submitted. It counts (`releasing`) until it was released, and the release store of
        // `interest` makes that visible. The reactor finds every thread that waits.
        if self.interest.load(Ordering::Acquire) > reached {
            return true;
        }
        self.complete_shared(reached);
        self.completed() >= ticket
    }

    /// Completes `ticket` like [`complete`](Self::complete), for one of several threads that may.
    /// Does nothing if another thread is completing: every remaining waiter has registered, and the
    /// reactor checks the registered tickets again.
    pub fn complete_shared(&self, ticket: Ticket) {
        if self.completing.swap(true, Ordering::Acquire) {
            return;
        }
        if self.completed.load(Ordering::Relaxed) < ticket {
            if self.interest.load(Ordering::Relaxed) <= ticket {
                self.let_go(ticket);
            }
            self.completed.store(ticket, Ordering::Release);
        }
        self.completing.store(false, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: complete-shared-then-look
        if self.interest.load(Ordering::Relaxed) <= ticket {
            self.release(ticket);
        }
    }

    /// Returns true if anything waits or is kept.
    pub fn is_wanted(&self) -> bool {
        self.interest.load(Ordering::Relaxed) != u64::MAX
    }

    /// Notes that the tickets that are not reached yet never will be, although the device is still
    /// usable. The caller has to wake the waiters with [`wake_all`](Self::wake_all) afterwards.
    pub fn give_up(&self, error: Error) {
        let _ = self.fault.set(error);
    }

    /// Returns the error that was passed to [`give_up`](Self::give_up): the reason why unreached
    /// tickets never will be reached.
    ///
    /// A failure of the whole device is in its [`Health`](crate::Health). It is not here unless the
    /// driver called `give_up` as well.
    #[inline]
    pub fn fault(&self) -> Option<&Error> {
        self.fault.get()
    }

    /// Notifies a followed device after an entry was made, so that its progress is watched.
    #[inline]
    fn tell_device(&self) {
        if let Some(device) = self.progress.get() {
            fence(Ordering::SeqCst); // weaken: enter-then-tell
            device.wanted();
        }
    }

    /// Releases the values kept until the work of `ticket` has ended, counts everything up to it as
    /// done, then wakes the waiters and releases the other values.
    ///
    /// Only the owner of this stream's progress calls this, with growing tickets, and while it
    /// holds no lock.
    #[inline]
    pub fn complete(&self, ticket: Ticket) {
        self.complete_by(ticket, Released::run);
    }

    /// Completes `ticket` like [`complete`](Self::complete). Once the ticket counts as reached,
    /// passes the waiters to wake and the values to release to `run`.
    #[inline]
    pub fn complete_by(&self, ticket: Ticket, run: impl FnOnce(Released)) {
        // A value kept for a ticket was registered before its work was submitted, so it is visible
        // without a fence.
        if self.interest.load(Ordering::Relaxed) <= ticket {
            self.let_go(ticket);
        }
        self.completed.store(ticket, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: complete-then-look
        if self.interest.load(Ordering::Relaxed) <= ticket {
            run(self.collect(ticket));
        }
    }

    /// Completes `ticket` like [`complete`](Self::complete), but leaves the waking to the caller.
    /// The caller runs the returned batch once it holds no lock.
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
        waiting.releasing = ticket;
        drop(waiting);
        Released { keeps, wakers: Vec::new() }.run();
    }

    #[cold]
    fn collect(&self, ticket: Ticket) -> Released {
        let mut waiting = self.waiting.lock();
        let later = waiting.wakers.split_off(&Registration { ticket: ticket + 1, sequence: 0 });
        let wakers = std::mem::replace(&mut waiting.wakers, later);
        let keeps = waiting.take_keeps(ticket, true);
        if waiting.releasing <= ticket {
            waiting.releasing = Ticket::MAX;
        }
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        Released { keeps, wakers: wakers.into_values().collect() }
    }

    /// Asks for `waker` to be woken when `ticket` is reached. Returns `Ready` if it already is.
    ///
    /// `registration` is the caller's place in the list: `None` before the first call. The caller
    /// passes it again on each later call, so that a changed waker replaces the old one.
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
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        drop(replaced);
        fence(Ordering::SeqCst); // weaken: register-then-read
        if self.completed() >= ticket {
            self.deregister(registration);
            return Poll::Ready(());
        }
        if let Some(device) = self.progress.get() {
            device.wanted();
        }
        Poll::Pending
    }

    /// Removes a waker from the list. The waker is dropped after the lock is released.
    pub fn deregister(&self, registration: &mut Option<Registration>) {
        let Some(at) = registration.take() else { return };
        let mut waiting = self.waiting.lock();
        let waker = waiting.wakers.remove(&at);
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        drop(waker);
    }

    /// Holds `keep` until `ticket` is reached, or until its work has ended, as `until` says. Called
    /// before the work of that ticket is passed to the device, in ticket order. After
    /// [`abandon`](Self::abandon) the value is dropped, since there is nothing to hold it for.
    pub fn keep_until(&self, ticket: Ticket, keep: Keep, until: Until) {
        let mut waiting = self.waiting.lock();
        let unneeded = if waiting.abandoned {
            Some(keep)
        } else {
            waiting.insert(Kept { ticket, keep, until });
            None
        };
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        drop(unneeded);
        self.tell_device();
    }

    /// Holds `keep` like [`keep_until`](Self::keep_until), for a ticket that may be reached
    /// meanwhile: registers, fences, reads the word.
    pub fn keep_until_last(&self, ticket: Ticket, keep: Keep) {
        self.keep_until(ticket, keep, Until::Reached);
        fence(Ordering::SeqCst); // weaken: keep-then-read
        if self.completed() >= ticket {
            self.release(ticket);
        }
    }

    /// Holds `keep` until the work of `ticket` has ended, like [`keep_until`](Self::keep_until).
    /// That work was passed to the device earlier and may have ended by now: registers, fences,
    /// reads the word.
    ///
    /// Releases `keep` alone. May be called under a lock if `keep` may be dropped under it.
    pub fn keep_until_over(&self, ticket: Ticket, keep: Keep) {
        let mine = keep.clone();
        self.keep_until(ticket, keep, Until::Over);
        fence(Ordering::SeqCst);
        if self.completed() < ticket {
            return;
        }
        let mut waiting = self.waiting.lock();
        let at = waiting.keeps.iter().position(|kept| Arc::ptr_eq(&kept.keep, &mine));
        let unneeded = at.and_then(|at| waiting.keeps.remove(at));
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        drop(unneeded);
    }

    /// Takes back every `keep_until` of the newest ticket, which was refused before it reached the
    /// device. The caller drops the values once it holds no lock.
    #[must_use]
    pub fn forget_keeps(&self, ticket: Ticket) -> Released {
        let mut waiting = self.waiting.lock();
        let older = waiting.keeps.partition_point(|kept| kept.ticket < ticket);
        let newest = waiting.keeps.split_off(older);
        self.interest.store(waiting.lowest(), Ordering::Release);
        Released { keeps: newest.into_iter().map(|kept| kept.keep).collect(), wakers: Vec::new() }
    }

    /// Wakes every waiter although nothing completed. The device has failed, and the waiters have
    /// to check again.
    pub fn wake_all(&self) {
        let mut waiting = self.waiting.lock();
        let wakers = std::mem::take(&mut waiting.wakers);
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        Released { keeps: Vec::new(), wakers: wakers.into_values().collect() }.run();
    }

    /// Releases everything kept. The owner of the stream's progress calls this when nothing of the
    /// stream will run any more. Wakes no waiter: [`wake_all`](Self::wake_all) does.
    pub fn abandon(&self) {
        let mut waiting = self.waiting.lock();
        waiting.abandoned = true;
        let keeps = std::mem::take(&mut waiting.keeps);
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        let keeps = keeps.into_iter().map(|kept| kept.keep).collect();
        Released { keeps, wakers: Vec::new() }.run();
    }

    /// Abandons the timeline like [`abandon`](Self::abandon), for a device that died and cannot
    /// report what it was still doing.
    ///
    /// Nothing more starts, but a copy that had started may not have ended. Returns the values kept
    /// until their work has ended. They must never be used again, since such a copy may still use
    /// them.
    #[must_use = "what a copy may still be using is to be kept"]
    pub fn abandon_dead(&self) -> Vec<Keep> {
        let mut waiting = self.waiting.lock();
        let over = waiting.keeps.iter_mut().filter(|kept| kept.until == Until::Over);
        let used = over.map(|kept| std::mem::replace(&mut kept.keep, Arc::new(()))).collect();
        drop(waiting);
        self.abandon();
        used
    }

    /// Releases the values kept up to `ticket`, which the device has passed without the ticket
    /// counting as reached. For a device that failed and continues with the work it has.
    pub fn let_pass(&self, ticket: Ticket) {
        if self.interest.load(Ordering::Relaxed) > ticket {
            return;
        }
        let mut waiting = self.waiting.lock();
        let keeps = waiting.take_keeps(ticket, true);
        self.interest.store(waiting.lowest(), Ordering::Relaxed);
        drop(waiting);
        Released { keeps, wakers: Vec::new() }.run();
    }

    /// Returns true if [`abandon`](Self::abandon) was called: nothing of the stream will run any
    /// more.
    pub fn is_abandoned(&self) -> bool {
        self.waiting.lock().abandoned
    }

    /// Returns the numbers of wakers and kept values in the list, for tests and statistics.
    pub fn waiting_len(&self) -> (usize, usize) {
        let waiting = self.waiting.lock();
        (waiting.wakers.len(), waiting.keeps.len())
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").field("completed", &self.completed()).finish_non_exhaustive()
    }
}
