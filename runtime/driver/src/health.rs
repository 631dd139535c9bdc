//! The health of a device: its first failure, and the wake-up of all its waiters.
//!
//! The first failure is stored, then the waiters of every timeline are woken, and each finds the
//! failure when it checks. A thread that registers with a timeline and then reads [`Health::fault`]
//! misses no failure. The failure is stored before the waiters' lock is taken to wake them all, and
//! the thread has held that lock before it reads. Unlike completing, failing always takes the lock,
//! so no fence is needed.

use crate::Error;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::timeline::Timeline;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{OnceLock, Weak};

/// A device's health, shared by its driver and its streams.
#[derive(Default)]
pub struct Health {
    failed: AtomicBool,
    fault: OnceLock<Error>,
    timelines: Mutex<Vec<Weak<Timeline>>>,
    listener: OnceLock<Listener>,
}

/// A function that is called with a device's failure.
type Listener = Box<dyn Fn(&Error) + Send + Sync>;

impl Health {
    /// Returns the failure, if the device has failed.
    #[inline]
    pub fn fault(&self) -> Option<&Error> {
        if self.failed.load(Ordering::Acquire) { self.fault.get() } else { None }
    }

    /// Stores the first failure and wakes everything that waits on this device. Returns true if
    /// this was the first failure. Called while no lock is held.
    pub fn fail(&self, error: Error) -> bool {
        let first = self.note(error);
        self.wake_everybody();
        first
    }

    /// Stores the first failure and wakes no waiter yet. Returns true if this was the first
    /// failure. For a caller that holds a lock, and wakes the waiters after releasing it.
    pub fn note(&self, error: Error) -> bool {
        let first = self.fault.set(error).is_ok();
        self.failed.store(true, Ordering::Release);
        first
    }

    /// Sets the function that is called with the failure, immediately if the device has failed. It
    /// may be called more than once. The runtime does this; a driver need not.
    pub fn listen(&self, listener: impl Fn(&Error) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
        self.tell();
    }

    fn tell(&self) {
        let (Some(listener), Some(fault)) = (self.listener.get(), self.fault()) else { return };
        // The listener wakes tasks, whose wakers may panic.
        if catch_unwind(AssertUnwindSafe(|| listener(fault))).is_err() {
            let _ = catch_unwind(crate::report::waker_panicked);
        }
    }

    /// Wakes everything that waits on this device. Called while no lock is held.
    pub fn wake_everybody(&self) {
        // Streams made after this point see `failed` before any work is put on them.
        let timelines: Vec<_> = self.timelines.lock().iter().filter_map(Weak::upgrade).collect();
        for timeline in timelines {
            timeline.wake_all();
        }
        // Last, because it takes a lock that users' tasks take too.
        self.tell();
    }

    /// Adds a stream's timeline to those woken by a failure. The runtime does this for each stream;
    /// a driver need not.
    pub fn watch(&self, timeline: &Arc<Timeline>) {
        let mut timelines = self.timelines.lock();
        if timelines.len() == timelines.capacity() {
            timelines.retain(|timeline| timeline.strong_count() > 0);
        }
        timelines.push(Arc::downgrade(timeline));
    }

    /// Returns the number of timelines that are kept, for statistics.
    pub fn watched(&self) -> usize {
        self.timelines.lock().len()
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("fault", &self.fault()).finish_non_exhaustive()
    }
}
