//! A stream's progress as one growing number, and who waits for it.
//!
//! Drivers advance a timeline; `Pending`, parked strands and closing streams wait on it. It knows nothing of either.
//!
//! # Who may touch what, when
//! * `completed` (the word) is written by one party only: whoever owns the stream's progress (the CPU worker that
//!   holds the strand, a test that completes by hand). It never goes back. Anybody reads it.
//! * Where a device counts for itself, in memory that it shares with the host, the timeline **follows** that [`Progress`], and
//!   the owner is whoever holds `completing`: a poller that sees the device's number, or the reactor. Nobody waits for
//!   `completing`: a poller that does not get it registers, and the reactor looks at what is registered until it is reached.
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
//! lock alone would not do: the completer takes it only if it saw interest. Of several completers one after the other holds
//! `completing`; each looks at `interest` after its own store.
//!
//! Who follows a device says that it waits ([`Progress::wanted`]) after its fence, so that the reactor, which clears its mark,
//! fences and looks at `interest` before it turns away, sees either the interest or the new mark (`watch.rs` of the CUDA devices).
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

/// Something that has to stay alive until a ticket is reached: a host buffer the device still reads or writes.
pub type Keep = Arc<dyn Any + Send + Sync>;

/// A device's own count of what it has done, which a timeline follows.
pub trait Progress: Send + Sync {
    /// The newest ticket that the device says is done.
    fn reached(&self) -> Ticket;

    /// Looks harder than [`reached`](Self::reached), for somebody who asks again and again instead of waiting: may call the
    /// driver. Called while no lock is held.
    fn ask(&self) {}

    /// Something waits on the timeline: somebody has to look at [`reached`](Self::reached) until nothing does. Called while no
    /// lock is held but, for kept values, the stream's.
    fn wanted(&self);
}

/// Everything up to [`Timeline::completed`] is done.
pub struct Timeline {
    completed: AtomicU64,
    interest: AtomicU64,
    waiting: Mutex<Waiting>,
    /// Held by who completes, where several may.
    completing: AtomicBool,
    progress: OnceLock<Arc<dyn Progress>>,
    /// Why tickets that are not reached never will be, on a device that goes on.
    fault: OnceLock<Error>,
}

struct Waiting {
    wakers: BTreeMap<Registration, Waker>,
    /// In ticket order.
    keeps: VecDeque<Kept>,
    /// The ticket whose completer is letting go of what was kept: as good as kept until that is done. `u64::MAX`: none.
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

/// When what a ticket keeps is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When its work is over, before the ticket counts as reached: whoever sees the ticket sees a buffer back in its pool.
    Over,
    /// When the ticket counts as reached: whoever gets the room of an op sees that the op is no longer in flight.
    Reached,
}

/// Where a waker is in a timeline's waiting list.
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

    /// Mostly at the end: only what is kept for a ticket that was taken a while ago goes before others.
    fn insert(&mut self, kept: Kept) {
        let later = self.keeps.iter().rev().take_while(|other| other.ticket > kept.ticket).count();
        self.keeps.insert(self.keeps.len() - later, kept);
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
            completing: AtomicBool::new(false),
            progress: OnceLock::new(),
            fault: OnceLock::new(),
        }
    }

    /// Makes it follow a device's own count. Once, before anything waits.
    pub fn follow(&self, progress: Arc<dyn Progress>) {
        let first = self.progress.set(progress).is_ok();
        assert!(first, "a timeline follows one device");
    }

    /// The newest ticket that is done and whose waiters were woken.
    #[inline]
    pub fn completed(&self) -> Ticket {
        self.completed.load(Ordering::Acquire)
    }

    /// The newest ticket that is done, also if nobody has been woken for it yet.
    pub fn newest(&self) -> Ticket {
        self.progress.get().map_or(0, |device| device.reached()).max(self.completed())
    }

    /// Whether `ticket` is done: one atomic load, or two where it follows a device. What the ticket keeps may not be let go yet,
    /// so this is for those who ask about the device's work and not for those who get something back: they
    /// [`settle`](Self::settle).
    #[inline]
    pub fn reached(&self, ticket: Ticket) -> bool {
        self.completed() >= ticket || self.progress.get().is_some_and(|device| device.reached() >= ticket)
    }

    /// Whether `ticket` is done and what it kept until then was let go. Where it follows a device that has come so far, this
    /// call completes it, unless another is at it. Called while no lock is held.
    #[inline]
    pub fn settle(&self, ticket: Ticket) -> bool {
        self.completed() >= ticket
            || self.progress.get().is_some_and(|device| self.catch_up(&**device, ticket))
    }

    /// Has a followed device look harder than [`settle`](Self::settle) does. Called while no lock is held.
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
        // Nothing is kept up to there: that was entered before the work was submitted, and counts (`releasing`) until it was let go, which
        // the release of `interest` makes seen. Nobody waits whom the reactor would not find.
        if self.interest.load(Ordering::Acquire) > reached {
            return true;
        }
        self.complete_shared(reached);
        self.completed() >= ticket
    }

    /// As [`complete`](Self::complete), by one of several who may. Does nothing if another is at it: whoever still waits has
    /// registered, and who looks after what is registered comes again.
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

    /// Whether anything waits or is kept.
    pub fn is_wanted(&self) -> bool {
        self.interest.load(Ordering::Relaxed) != u64::MAX
    }

    /// Says that tickets which are not reached never will be, although the device goes on: the stream was given up. Whoever waits
    /// has to be woken by [`wake_all`](Self::wake_all) after it.
    pub fn give_up(&self, error: Error) {
        let _ = self.fault.set(error);
    }

    /// Why tickets that are not reached never will be: what [`give_up`](Self::give_up) was given. A failure
    /// of the whole device is its [`Health`](crate::Health)'s, and not here unless the driver gave the
    /// timeline up as well.
    #[inline]
    pub fn fault(&self) -> Option<&Error> {
        self.fault.get()
    }

    /// After an entry was made: who looks after a followed device has to know.
    #[inline]
    fn tell_device(&self) {
        if let Some(device) = self.progress.get() {
            fence(Ordering::SeqCst); // weaken: enter-then-tell
            device.wanted();
        }
    }

    /// Lets go of what was kept until the work of `ticket` is over, marks everything up to it as done, then wakes who waited and
    /// lets go of the rest.
    ///
    /// Only the owner of this stream's progress calls this, with growing tickets, and while it holds no lock.
    #[inline]
    pub fn complete(&self, ticket: Ticket) {
        self.complete_by(ticket, Released::run);
    }

    /// Like [`complete`](Self::complete), but has `run` run what wakes and lets go once the ticket counts as reached.
    #[inline]
    pub fn complete_by(&self, ticket: Ticket, run: impl FnOnce(Released)) {
        // What is kept for a ticket was registered before its work was submitted, so it is seen without a fence.
        if self.interest.load(Ordering::Relaxed) <= ticket {
            self.let_go(ticket);
        }
        self.completed.store(ticket, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: complete-then-look
        if self.interest.load(Ordering::Relaxed) <= ticket {
            run(self.collect(ticket));
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

    /// Gives a place in the list up. The waker is dropped after the lock.
    pub fn deregister(&self, registration: &mut Option<Registration>) {
        let Some(at) = registration.take() else { return };
        let mut waiting = self.waiting.lock();
        let waker = waiting.wakers.remove(&at);
        self.interest.store(waiting.lowest(), Ordering::Release);
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
            waiting.insert(Kept { ticket, keep, until });
            None
        };
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        drop(unneeded);
        self.tell_device();
    }

    /// Like [`keep_until`](Self::keep_until), for a ticket that may be reached meanwhile: register, fence, read the word.
    pub fn keep_until_last(&self, ticket: Ticket, keep: Keep) {
        self.keep_until(ticket, keep, Until::Reached);
        fence(Ordering::SeqCst); // weaken: keep-then-read
        if self.completed() >= ticket {
            self.release(ticket);
        }
    }

    /// Like [`keep_until`](Self::keep_until), until the work of a ticket is over that was handed to the device before and may be
    /// over now: register, fence, read the word. Lets go of `keep` alone, and may be called under a lock if dropping that may.
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

    /// Takes back every `keep_until` of the newest ticket, which was refused before it reached the device. The caller drops
    /// them once it holds no lock.
    #[must_use]
    pub fn forget_keeps(&self, ticket: Ticket) -> Released {
        let mut waiting = self.waiting.lock();
        let older = waiting.keeps.partition_point(|kept| kept.ticket < ticket);
        let newest = waiting.keeps.split_off(older);
        self.interest.store(waiting.lowest(), Ordering::Release);
        Released { keeps: newest.into_iter().map(|kept| kept.keep).collect(), wakers: Vec::new() }
    }

    /// Wakes every waiter although nothing completed: the device has failed, and they shall look again.
    pub fn wake_all(&self) {
        let mut waiting = self.waiting.lock();
        let wakers = std::mem::take(&mut waiting.wakers);
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        Released { keeps: Vec::new(), wakers: wakers.into_values().collect() }.run();
    }

    /// Releases everything kept: the owner of the stream's progress says that nothing of it will run any more. Wakes no
    /// waiter: [`wake_all`](Self::wake_all) does.
    pub fn abandon(&self) {
        let mut waiting = self.waiting.lock();
        waiting.abandoned = true;
        let keeps = std::mem::take(&mut waiting.keeps);
        self.interest.store(waiting.lowest(), Ordering::Release);
        drop(waiting);
        let keeps = keeps.into_iter().map(|kept| kept.keep).collect();
        Released { keeps, wakers: Vec::new() }.run();
    }

    /// As [`abandon`](Self::abandon), of a device that died and cannot say what it was still doing: nothing more starts, but a
    /// copy that had may not have ended. Returns what is kept until work is over, for nobody to use again: such a copy may.
    #[must_use = "what a copy may still be using is to be kept"]
    pub fn abandon_dead(&self) -> Vec<Keep> {
        let mut waiting = self.waiting.lock();
        let over = waiting.keeps.iter_mut().filter(|kept| kept.until == Until::Over);
        let used = over.map(|kept| std::mem::replace(&mut kept.keep, Arc::new(()))).collect();
        drop(waiting);
        self.abandon();
        used
    }

    /// Lets go of what is kept up to `ticket`, which the device has passed without its counting as reached: on a device that
    /// failed and goes on with what it has.
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

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").field("completed", &self.completed()).finish_non_exhaustive()
    }
}
