//! The timelines of this backend's streams, and the fate of those streams.
//!
//! A waiting strand knows only a timeline. The stream behind that timeline matters in two
//! situations. At shutdown, a wait for another stream of the backend ends by itself, while a wait
//! for anything else (a gate) will not. After a device has failed, its timelines stay where they
//! are. Work on another, healthy device that waits for them must fail too, or it would hang. It
//! fails **its whole device** and names the cause, because later work on its stream, and all work
//! that waits for that, can never run.
//!
//! # Rules
//! 1. A stream is entered when it is made and removed when it is dropped. If its work was purged,
//!    the entry stays until no handle to the timeline is left, and keeps the timeline's address
//!    from being used again.
//! 2. A purge enters its cause first and wakes the timeline's waiters second. A waiter registers
//!    first and looks here second.
//! 3. The lock is a leaf. No stream is dropped under it, because the drop takes the lock again.

use super::stream::CpuStream;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use std::collections::HashMap;
use std::sync::Weak;
use warpline_driver::timeline::Timeline;
use warpline_driver::{DeviceId, Error};

#[derive(Default)]
pub(super) struct Timelines {
    entries: Mutex<HashMap<usize, Known>>,
    /// Set once any entry is dead, so that healthy backends never search the entries.
    any_dead: AtomicBool,
}

struct Known {
    device: DeviceId,
    timeline: Weak<Timeline>,
    stream: Weak<CpuStream>,
    dead: Option<Error>,
}

/// The fate of a timeline.
pub(super) enum Fate {
    /// The timeline's stream continues.
    Lives,
    /// The timeline's stream runs nothing more, for this reason.
    Dead(Error),
    /// The timeline belongs to no stream of this backend.
    Foreign,
}

fn key(timeline: &Arc<Timeline>) -> usize {
    Arc::as_ptr(timeline).addr()
}

impl Timelines {
    pub(super) fn enter(&self, device: DeviceId, timeline: &Arc<Timeline>, stream: Weak<CpuStream>) {
        let known = Known { device, timeline: Arc::downgrade(timeline), stream, dead: None };
        let mut entries = self.entries.lock();
        if entries.len() == entries.capacity() {
            entries.retain(|_, known| known.timeline.strong_count() > 0);
        }
        entries.insert(key(timeline), known);
    }

    /// Removes the entry of a stream that is dropped, unless its work was purged.
    pub(super) fn leave(&self, timeline: &Arc<Timeline>) {
        let mut entries = self.entries.lock();
        if entries.get(&key(timeline)).is_some_and(|known| known.dead.is_none()) {
            entries.remove(&key(timeline));
        }
    }

    /// Notes in its entry that the work of a stream has been purged.
    pub(super) fn note_dead(&self, timeline: &Arc<Timeline>, cause: &Error) {
        self.any_dead.store(true, Ordering::Relaxed);
        if let Some(known) = self.entries.lock().get_mut(&key(timeline)) {
            known.dead.get_or_insert_with(|| cause.clone());
        }
    }

    pub(super) fn fate(&self, timeline: &Arc<Timeline>) -> Fate {
        match self.entries.lock().get(&key(timeline)) {
            Some(Known { dead: Some(cause), .. }) => Fate::Dead(cause.clone()),
            Some(_) => Fate::Lives,
            None => Fate::Foreign,
        }
    }

    /// Returns the reason why `timeline` will not advance any more, if there is one.
    #[inline]
    pub(super) fn cause_of_death(&self, timeline: &Arc<Timeline>) -> Option<Error> {
        if !self.any_dead.load(Ordering::Relaxed) {
            return None;
        }
        match self.fate(timeline) {
            Fate::Dead(cause) => Some(cause),
            Fate::Lives | Fate::Foreign => None,
        }
    }

    /// Returns all streams, or those of one device, in no particular order.
    pub(super) fn streams(&self, device: Option<DeviceId>) -> Vec<Arc<CpuStream>> {
        let entries = self.entries.lock();
        let wanted = entries.values().filter(|known| device.is_none_or(|device| device == known.device));
        wanted.filter_map(|known| known.stream.upgrade()).collect()
    }
}
