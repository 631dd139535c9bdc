//! The state that the devices of a runtime share: its order mode, what the host has observed, and
//! its streams.

use crate::order::{Named, Observed, OrderMode, Site, StreamId, Use};
use crate::shared::StreamCore;
use crate::shared::panics::Panics;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use warpline_driver::timeline::Timeline;

pub(crate) struct RuntimeShared {
    /// The number of this runtime in traces, unique in the process; the first is 1.
    pub(crate) number: u64,
    pub(crate) mode: OrderMode,
    pub(crate) observed: Observed,
    streams: RwLock<HashMap<StreamId, Member>>,
    /// The names of identities that stand for the streams of captures.
    captures: Mutex<HashMap<StreamId, Named>>,
    warned: Mutex<HashSet<(Site, Site)>>,
    pub(crate) panics: Panics,
    shut_down: AtomicBool,
}

struct Member {
    core: Weak<StreamCore>,
    timeline: Arc<Timeline>,
}

impl RuntimeShared {
    pub(crate) fn new(mode: OrderMode) -> Arc<Self> {
        static RUNTIMES: AtomicU64 = AtomicU64::new(0);
        Arc::new(RuntimeShared {
            number: RUNTIMES.fetch_add(1, Ordering::Relaxed) + 1,
            mode,
            observed: Observed::default(),
            streams: RwLock::default(),
            captures: Mutex::default(),
            warned: Mutex::default(),
            panics: Panics::default(),
            shut_down: AtomicBool::new(false),
        })
    }

    pub(crate) fn join(&self, core: &Arc<StreamCore>) {
        let member = Member { core: Arc::downgrade(core), timeline: core.timeline.clone() };
        self.streams.write().insert(core.id, member);
    }

    pub(crate) fn leave(&self, id: StreamId) {
        self.streams.write().remove(&id);
    }

    pub(crate) fn stream(&self, id: StreamId) -> Option<Arc<StreamCore>> {
        self.streams.read().get(&id)?.core.upgrade()
    }

    /// Names an identity that no stream has, for errors, until
    /// [`forget_capture`](Self::forget_capture).
    pub(crate) fn name_capture(&self, name: Named) {
        self.captures.lock().insert(name.id, name);
    }

    pub(crate) fn forget_capture(&self, id: StreamId) {
        self.captures.lock().remove(&id);
    }

    /// Returns a stream's name, or `None` if the stream is gone.
    pub(crate) fn name(&self, id: StreamId) -> Option<Named> {
        let of_capture = || self.captures.lock().get(&id).cloned();
        self.stream(id).map(|core| core.name()).or_else(of_capture)
    }

    pub(crate) fn streams(&self) -> Vec<Arc<StreamCore>> {
        self.streams.read().values().filter_map(|member| member.core.upgrade()).collect()
    }

    /// Returns whether `used` has finished.
    ///
    /// It has if the host has observed it, or if it is reached by now. It also has if its stream is
    /// gone, or if its device has failed and nothing runs there any more.
    pub(crate) fn is_finished(&self, used: Use) -> bool {
        self.observed.covers(used)
            || self
                .streams
                .read()
                .get(&used.stream)
                .is_none_or(|member| member.timeline.reached(used.ticket) || member.timeline.is_abandoned())
    }

    /// Returns whether to warn about this pair of lines, which is true only once.
    pub(crate) fn warns_first(&self, earlier: Site, later: Site) -> bool {
        self.warned.lock().insert((earlier, later))
    }

    pub(crate) fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Returns the number of live streams, for statistics.
    pub(crate) fn live_streams(&self) -> usize {
        self.streams.read().len()
    }
}

impl std::fmt::Debug for RuntimeShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeShared").field("mode", &self.mode).finish_non_exhaustive()
    }
}
