//! How workers without work wait, and how new work finds one of them.
//!
//! **One** worker at a time is attentive: it looks at the run queues again within microseconds, because it spins there for a
//! while, or because all it runs meanwhile is known to be quick. So work for an idle device is picked up without a system call
//! on either side, and a stream that only waits for a small copy wakes nobody. Everybody else who has no work parks and costs
//! nothing.
//!
//! # The protocol
//! Whoever brings work: **put it into the run queue and count it, fence, look** at `attentive`, then at `waking`, then at `parked`. If
//! somebody is attentive or on its way out of bed, that is enough. If not and somebody is parked, one is unparked. If neither,
//! every worker is busy, or on its way here (or does not exist yet: the caller's affair).
//!
//! Whoever stops being attentive: **clear `attentive`, fence, look** at the run queues. Whoever parks: **enter the list of
//! sleepers and raise `parked`, fence, look** at the run queues. Whoever gets up: **leave `waking`, fence, look** at the run
//! queues.
//!
//! # Why nothing is lost
//! Both sides write, fence and read what the other wrote; the fences are totally ordered. If the bringer's is first, the
//! other's look sees the work. If the other's is first, the bringer sees that nobody is attentive or getting up any more, or
//! that somebody is parked. Who passes several such points looks after each, and each is enough for the work that was
//! brought before it.
//!
//! # Why nothing stays alone with a busy worker
//! Work brought while somebody is attentive or getting up wakes nobody. So who stops being attentive to run something that
//! may take long, and who gets up and takes something without becoming attentive, looks again, and if there is more, brings
//! that in its turn: each worker woken so wakes at most one further.
//! Wakers of users and values that they gave are among what may take long, or wait for that very work: nobody is attentive
//! while it runs or drops them.
//!
//! # Lock order
//! `sleepers` is a leaf: nothing is acquired, run or unparked under it.

use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, Unparker, fence, fence_after_rmw};

/// Who waits.
#[repr(C)]
pub(crate) struct Idle {
    attentive: AtomicBool,
    /// The length of `sleepers`, readable without the lock.
    parked: AtomicUsize,
    /// Those that were taken out of the list to be woken and are not up yet. Changes under the lock.
    waking: AtomicUsize,
    sleepers: Mutex<Vec<(usize, Unparker)>>,
}

/// What became of newly brought work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// Somebody is attentive or getting up and will see it, or somebody was unparked.
    Seen,
    /// Nobody waits.
    NobodyWaits,
}

/// Where a worker stands that tried to park.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bed {
    /// In the list: it shall park. So many are in the list with it.
    Made(usize),
    /// There was work, and it is out of the list again.
    Left,
}

/// How many are awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// A worker runs something, or stays awake.
    Awake,
    /// One was woken and is not up yet.
    GettingUp,
    /// All sleep, or none was started yet.
    Asleep,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Idle {
            attentive: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            waking: AtomicUsize::new(0),
            sleepers: Mutex::new(Vec::new()),
        }
    }

    /// Work has been put into a run queue, and counted there by a read-modify-write, or seen there behind a fence.
    #[inline]
    pub(crate) fn bring(&self) -> Brought {
        fence_after_rmw(); // weaken: bring-then-look
        if self.attentive.load(Ordering::Relaxed) || self.waking.load(Ordering::Relaxed) > 0 {
            return Brought::Seen;
        }
        if self.parked.load(Ordering::Relaxed) == 0 {
            return Brought::NobodyWaits;
        }
        self.unpark_one()
    }

    #[cold]
    fn unpark_one(&self) -> Brought {
        let mut sleepers = self.sleepers.lock();
        let sleeper = sleepers.pop();
        self.waking.fetch_add(usize::from(sleeper.is_some()), Ordering::Relaxed);
        self.parked.store(sleepers.len(), Ordering::Relaxed);
        drop(sleepers);
        match sleeper {
            Some((_, unparker)) => {
                unparker.unpark();
                Brought::Seen
            }
            None => Brought::NobodyWaits,
        }
    }

    /// Becomes the one who is attentive, if nobody is.
    #[inline]
    pub(crate) fn attend(&self) -> bool {
        let become_it =
            || self.attentive.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        !self.attentive.load(Ordering::Relaxed) && become_it()
    }

    /// By the attentive one: is so no longer. It has to look at the run queues once more after this.
    #[inline]
    pub(crate) fn stop_attending(&self) {
        self.attentive.store(false, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: stop-then-look
    }

    /// Enters the list of sleepers, unless `has_work` says that there is some. Whoever gets [`Bed::Made`] parks until it is
    /// unparked; it is out of the list then.
    pub(crate) fn make_bed(
        &self,
        worker: usize,
        unparker: &Unparker,
        has_work: impl FnOnce() -> bool,
    ) -> Bed {
        let mut sleepers = self.sleepers.lock();
        sleepers.push((worker, unparker.clone()));
        let others = sleepers.len();
        self.parked.store(others, Ordering::Relaxed);
        drop(sleepers);
        fence(Ordering::SeqCst); // weaken: announce-then-look
        if has_work() {
            self.leave_bed(worker);
            return Bed::Left;
        }
        Bed::Made(others)
    }

    /// Whether new work begins at once, going by `alive` workers.
    pub(crate) fn rest(&self, alive: usize) -> Rest {
        let (parked, waking) = (self.parked.load(Ordering::Relaxed), self.waking.load(Ordering::Relaxed));
        match alive > parked + waking {
            true => Rest::Awake,
            false if waking > 0 => Rest::GettingUp,
            false => Rest::Asleep,
        }
    }

    /// Gets up, taken out of the list or by oneself, and has to look at the run queues after this. Whoever was taken out but not
    /// woken by it finds one unpark too many the next time it parks: it looks again for nothing, once.
    pub(crate) fn leave_bed(&self, worker: usize) {
        let mut sleepers = self.sleepers.lock();
        let before = sleepers.len();
        sleepers.retain(|(other, _)| *other != worker);
        if sleepers.len() == before {
            // It was taken out to be woken, and is awake.
            self.waking.fetch_sub(1, Ordering::Relaxed);
        }
        self.parked.store(sleepers.len(), Ordering::Relaxed);
        drop(sleepers);
        fence(Ordering::SeqCst); // weaken: get-up-then-look
    }

    /// Unparks everybody.
    pub(crate) fn wake_everybody(&self) {
        let mut sleepers = self.sleepers.lock();
        let all = std::mem::take(&mut *sleepers);
        self.waking.fetch_add(all.len(), Ordering::Relaxed);
        self.parked.store(0, Ordering::Relaxed);
        drop(sleepers);
        for (_, unparker) in all {
            unparker.unpark();
        }
    }
}
