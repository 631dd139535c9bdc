//! Whether a device still works, and how everybody learns when it does not.
//!
//! The first failure is kept, every timeline's waiters are woken, and each finds the failure when it looks. Who registers with
//! a timeline and then reads [`Health::fault`] misses nothing: the failure is stored before the waiters' lock is taken to wake
//! them all, and the registrant has held that lock before it reads. Unlike completing, failing always takes it, so no fence is
//! needed.

use crate::Error;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::timeline::Timeline;
use std::sync::{OnceLock, Weak};

/// A device's health, shared by its driver and its streams.
#[derive(Debug, Default)]
pub struct Health {
    failed: AtomicBool,
    fault: OnceLock<Error>,
    timelines: Mutex<Vec<Weak<Timeline>>>,
}

impl Health {
    /// The failure, if the device has failed.
    #[inline]
    pub fn fault(&self) -> Option<&Error> {
        if self.failed.load(Ordering::Acquire) { self.fault.get() } else { None }
    }

    /// Keeps the first failure and wakes everything that waits on this device; whether this was the first. Called while no
    /// lock is held.
    pub fn fail(&self, error: Error) -> bool {
        let first = self.note(error);
        self.wake_everybody();
        first
    }

    /// Keeps the first failure, and wakes nobody yet: for a caller that holds a lock, and wakes them after it.
    pub fn note(&self, error: Error) -> bool {
        let first = self.fault.set(error).is_ok();
        self.failed.store(true, Ordering::Release);
        first
    }

    /// Wakes everything that waits on this device. Called while no lock is held.
    pub fn wake_everybody(&self) {
        // Streams made from here on see `failed` before anything is put on them.
        let timelines: Vec<_> = self.timelines.lock().iter().filter_map(Weak::upgrade).collect();
        for timeline in timelines {
            timeline.wake_all();
        }
    }

    /// Adds a stream's timeline to those woken by a failure. The runtime does so for each stream; a
    /// driver need not.
    pub fn watch(&self, timeline: &Arc<Timeline>) {
        let mut timelines = self.timelines.lock();
        if timelines.len() == timelines.capacity() {
            timelines.retain(|timeline| timeline.strong_count() > 0);
        }
        timelines.push(Arc::downgrade(timeline));
    }

    /// How many timelines are kept, for figures.
    pub fn watched(&self) -> usize {
        self.timelines.lock().len()
    }
}
