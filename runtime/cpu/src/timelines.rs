//! Which timelines belong to this backend's streams, and what became of those streams.
//!
//! A strand that waits knows only a timeline. Twice it matters whose that is. At shutdown, a wait for another stream of the
//! backend ends by itself, while a wait for anything else (a gate) will not. And when a device has failed, its timelines stay
//! where they are: what waits for them on another, healthy device must fail too, or hang. It fails **its whole device**,
//! naming the cause, because what follows on that stream, and whatever waits for that in turn, can never run.
//!
//! # Rules
//! 1. A stream is entered when it is made and removed when it is dropped, unless its work was purged: then the entry stays, and
//!    keeps the timeline's address from being used again, until nobody holds the timeline.
//! 2. A purge marks the entry first and wakes the timeline's waiters second. A waiter registers first and looks here second.
//! 3. The lock is a leaf; no stream is dropped under it, because that takes it again.

use super::stream::CpuStream;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use std::collections::HashMap;
use std::sync::Weak;
use warpline_driver::timeline::Timeline;
use warpline_driver::{DeviceId, Error};

#[derive(Default)]
pub(super) struct Timelines {
    entries: Mutex<HashMap<usize, Known>>,
    /// Whether any entry is dead, so that healthy backends never look.
    any_dead: AtomicBool,
}

struct Known {
    device: DeviceId,
    timeline: Weak<Timeline>,
    stream: Weak<CpuStream>,
    dead: Option<Error>,
}

/// What will become of a timeline.
pub(super) enum Fate {
    /// Its stream goes on.
    Lives,
    /// Its stream runs nothing more, for this reason.
    Dead(Error),
    /// It is none of this backend's.
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

    /// The stream is gone.
    pub(super) fn leave(&self, timeline: &Arc<Timeline>) {
        let mut entries = self.entries.lock();
        if entries.get(&key(timeline)).is_some_and(|known| known.dead.is_none()) {
            entries.remove(&key(timeline));
        }
    }

    /// The stream's work has been purged.
    pub(super) fn mark_dead(&self, timeline: &Arc<Timeline>, cause: &Error) {
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

    /// Why `timeline` will not move any more, if so.
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

    /// All streams, or those of one device, in no particular order.
    pub(super) fn streams(&self, device: Option<DeviceId>) -> Vec<Arc<CpuStream>> {
        let entries = self.entries.lock();
        let wanted = entries.values().filter(|known| device.is_none_or(|device| device == known.device));
        wanted.filter_map(|known| known.stream.upgrade()).collect()
    }
}
