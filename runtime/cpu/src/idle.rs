//! The protocol by which idle workers wait, and by which new work reaches one of them.
//!
//! **One** worker at a time is attentive: it looks at the run queues again within microseconds.
//! Either it spins on them for a while, or everything it runs meanwhile is known to be quick. Work
//! for an idle device is thus picked up without a system call on either side. A stream that only
//! waits for a small copy wakes no worker. Every other worker without work parks and costs nothing.
//!
//! # The protocol
//! A thread that brings work does this: **put it into the run queue and count it, fence, look** at
//! `attentive`, then at `waking`, then at `parked`.
//!
//! * If a worker is attentive or waking up, that is enough.
//! * If not, and a worker is parked, the thread unparks one.
//! * Otherwise every worker is busy, or about to wait, or does not exist yet. Starting one is up to
//!   the caller.
//!
//! A worker that stops being attentive does this: **clear `attentive`, fence, look** at the run
//! queues. A worker that parks does this: **enter the list of sleepers and raise `parked`, fence,
//! look** at the run queues. A worker that wakes up does this: **leave `waking`, fence, look** at
//! the run queues.
//!
//! # Why nothing is lost
//! Both sides write, fence and read what the other side wrote, and the fences are totally ordered.
//! If the bringer's fence is first, the worker's look sees the work. If the worker's fence is
//! first, the bringer sees that no worker is attentive or waking up any more, or that one is
//! parked. A worker that passes several such points looks after each of them. Each look suffices
//! for the work that was brought before it.
//!
//! # Why nothing stays alone with a busy worker
//! Work brought while a worker is attentive or waking up wakes no other worker. A worker that stops
//! being attentive, to run something that may take long, therefore looks again. So does a worker
//! that wakes up and takes work without becoming attentive. If there is more work, it brings that
//! work as above: each worker woken in this way wakes at most one more.
//!
//! Wakers and values that belong to users may take long, or wait for that very work. No worker is
//! attentive while it runs or drops them.
//!
//! # Which work is quick
//! Copies and fills, up to a number of bytes (`Attention` in `workers.rs`). Their worker stays
//! attentive and runs what they make ready on other streams itself: waking another worker takes
//! longer than a small copy, and on few cores it takes a core from the thread that loads data. A
//! kernel is never quick, because its length depends on its operands: a declaration that calls it
//! quick could be wrong, and new work would then wait beside idle cores. Nor is a host function,
//! where a worker calls it, because it may wait for another stream.
//!
//! Several attentive workers would each spin on a core of their own. On two cores, these are the
//! cores of the thread that loads and of the thread that enqueues. So one worker is awake at a
//! time, and for 50 µs at most.
//!
//! # Work that is away
//! At a shutdown the last worker to enter the list ends them all, unless strands are with a thread
//! that is no worker and may still send some back (`away`). A strand counts from before it is given
//! to that thread until after it was put into a run queue or became idle. The thread that lowers
//! the count to zero does this: **lower it, fence, look** at `closing`; if that is set, unpark all
//! workers. A worker that parks looks at the count too, after its fence. So it sees the zero, or
//! the other thread finds it in the list. A shutdown does this: **set `closing`, unpark all
//! workers**.
//!
//! # Lock order
//! `sleepers` is a leaf: nothing is acquired, run or unparked under it.

use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, Unparker, fence, fence_after_rmw};

/// The state of the workers that wait.
#[repr(C)]
pub(crate) struct Idle {
    attentive: AtomicBool,
    /// The length of `sleepers`, readable without the lock.
    parked: AtomicUsize,
    /// The number of workers that were taken out of the list to be woken and are not awake yet.
    /// Changed under the lock.
    waking: AtomicUsize,
    sleepers: Mutex<Vec<(usize, Unparker)>>,
    away: AtomicUsize,
    closing: AtomicBool,
}

/// The result of bringing new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// A worker is attentive or waking up and will see the work, or one was unparked.
    Seen,
    /// No worker waits.
    NobodyWaits,
}

/// The result of a worker's attempt to park.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bed {
    /// The worker is in the list and must park. The number is that of the workers in the list,
    /// including this one.
    Made(usize),
    /// There was work, and the worker is out of the list again.
    Left,
}

/// The state of the workers as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// A worker runs something, or stays awake.
    Awake,
    /// A worker was woken and is not awake yet.
    GettingUp,
    /// All workers sleep, or none was started yet.
    Asleep,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Idle {
            attentive: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            waking: AtomicUsize::new(0),
            sleepers: Mutex::new(Vec::new()),
            away: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        }
    }

    /// Announces work in a run queue. The caller has counted it there by a read-modify-write, or
    /// has seen it there behind a fence.
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

    /// Makes the caller the attentive worker, if there is none. Returns whether it did.
    #[inline]
    pub(crate) fn attend(&self) -> bool {
        let become_it =
            || self.attentive.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        !self.attentive.load(Ordering::Relaxed) && become_it()
    }

    /// Ends the caller's attention. Only the attentive worker calls this, and it must look at the
    /// run queues once more afterwards.
    #[inline]
    pub(crate) fn stop_attending(&self) {
        self.attentive.store(false, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: stop-then-look
    }

    /// Enters the list of sleepers, unless `has_work` returns `true`. A worker that gets
    /// [`Bed::Made`] parks until it is unparked, and is out of the list then.
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

    /// Returns how soon new work begins, given `alive` workers.
    pub(crate) fn rest(&self, alive: usize) -> Rest {
        let (parked, waking) = (self.parked.load(Ordering::Relaxed), self.waking.load(Ordering::Relaxed));
        match alive > parked + waking {
            true => Rest::Awake,
            false if waking > 0 => Rest::GettingUp,
            false => Rest::Asleep,
        }
    }

    /// Ends the caller's sleep, whether it was taken out of the list or woke up by itself. The
    /// caller must look at the run queues afterwards.
    ///
    /// A worker that was taken out of the list but woke up by itself has one surplus unpark. It
    /// looks again for nothing, once, the next time it parks.
    pub(crate) fn leave_bed(&self, worker: usize) {
        let mut sleepers = self.sleepers.lock();
        let before = sleepers.len();
        sleepers.retain(|(other, _)| *other != worker);
        if sleepers.len() == before {
            // Another thread took it out to wake it, and it is awake.
            self.waking.fetch_sub(1, Ordering::Relaxed);
        }
        self.parked.store(sleepers.len(), Ordering::Relaxed);
        drop(sleepers);
        fence(Ordering::SeqCst); // weaken: get-up-then-look
    }

    /// Counts a strand that is about to be given to a thread that is no worker.
    pub(crate) fn goes_away(&self) {
        self.away.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes `count` such strands out of the count. They were put into a run queue, or became idle.
    pub(crate) fn is_back(&self, count: usize) {
        let before = self.away.fetch_sub(count, Ordering::AcqRel);
        if before != count || count == 0 {
            return;
        }
        fence(Ordering::SeqCst); // weaken: back-then-look
        if self.is_closing() {
            self.wake_everybody();
        }
    }

    /// Returns true if a thread that is no worker may still put strands into a run queue. The
    /// strands that it has put there are visible to a caller that gets false.
    pub(crate) fn is_work_away(&self) -> bool {
        self.away.load(Ordering::Acquire) > 0
    }

    /// Tells the workers to exit once nothing can run any more.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        // A worker that enters the list after this sees the store, because of the list's lock.
        self.wake_everybody();
    }

    /// Returns true after [`close`](Self::close).
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Unparks all sleeping workers.
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
