//! How workers without work wait, and how new work finds one of them.
//!
//! Waiting has two stages. **One** worker at a time lingers: it spins for some microseconds, so that work for an idle
//! device is picked up without a system call on either side. Everybody else parks and costs nothing.
//!
//! # The protocol
//! Whoever brings work: **put it into the run queue, fence, look** at `lingering`, then at `parked`. If somebody lingers,
//! that is enough. If nobody does and somebody is parked, one is unparked. If neither, every worker is busy, or on its way
//! here (or does not exist yet: the caller's affair).
//!
//! Whoever has no work: to stop lingering, **clear `lingering`, fence, look** at the run queues; to park, **enter the list
//! of sleepers and raise `parked`, fence, look** at the run queues.
//!
//! # Why nothing is lost
//! Both sides write, fence and read what the other wrote; the fences are totally ordered. If the bringer's is first, the
//! waiter's look sees the work. If the waiter's is first, the bringer sees that nobody lingers any more, or that somebody
//! is parked. A lingerer that goes on to park passes two such points, and each is enough for the work that was brought
//! before it.
//!
//! # Why nothing stays alone with a busy worker
//! Work brought while somebody lingers wakes nobody. So a worker that comes out of waiting and takes something looks again,
//! and if there is more, brings that in its turn: each worker woken so wakes at most one further.
//!
//! # Lock order
//! `sleepers` is a leaf: nothing is acquired, run or unparked under it.

use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, Unparker, fence};

/// Who waits.
pub(crate) struct Idle {
    lingering: AtomicBool,
    /// The length of `sleepers`, readable without the lock.
    parked: AtomicUsize,
    /// Those that were taken out of the list to be woken and have not left it by themselves yet. Changes under the lock.
    waking: AtomicUsize,
    sleepers: Mutex<Vec<(usize, Unparker)>>,
}

/// What became of newly brought work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// Somebody lingers and will see it, or somebody was unparked.
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

impl Idle {
    pub(crate) fn new() -> Self {
        Idle {
            lingering: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            waking: AtomicUsize::new(0),
            sleepers: Mutex::new(Vec::new()),
        }
    }

    /// Work has been put into a run queue.
    #[inline]
    pub(crate) fn bring(&self) -> Brought {
        fence(Ordering::SeqCst); // weaken: bring-then-look
        if self.lingering.load(Ordering::Relaxed) {
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

    /// Becomes the one who lingers, if nobody does.
    #[inline]
    pub(crate) fn start_lingering(&self) -> bool {
        !self.lingering.load(Ordering::Relaxed) && !self.lingering.swap(true, Ordering::AcqRel)
    }

    /// By the lingerer: stops. It has to look at the run queues once more after this.
    #[inline]
    pub(crate) fn stop_lingering(&self) {
        self.lingering.store(false, Ordering::Release);
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

    /// Whether one of `alive` workers is awake, so that new work begins at once.
    pub(crate) fn somebody_is_awake(&self, alive: usize) -> bool {
        alive > self.parked.load(Ordering::Relaxed) + self.waking.load(Ordering::Relaxed)
    }

    /// Leaves the list by oneself. Whoever was taken out meanwhile finds one unpark too many the next time it parks: it looks
    /// again for nothing, once.
    pub(crate) fn leave_bed(&self, worker: usize) {
        let mut sleepers = self.sleepers.lock();
        let before = sleepers.len();
        sleepers.retain(|(other, _)| *other != worker);
        if sleepers.len() == before {
            // It was taken out to be woken, and is awake.
            self.waking.fetch_sub(1, Ordering::Relaxed);
        }
        self.parked.store(sleepers.len(), Ordering::Relaxed);
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
