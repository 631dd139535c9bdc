//! The state that the devices of a runtime share: its order mode, what the host has observed, and
//! its streams.

use super::closed_gates::ClosedGates;
use super::host_code::{Dependent, HeldUp, HostCodes};
use crate::background;
use crate::health::Reported;
use crate::order::{Conflict, Named, Observed, OrderMode, Site, StreamId, Use};
use crate::shared::panics::Panics;
use crate::shared::{Device, DeviceShared, StreamCore};
use crate::sync_mode::{SyncCheck, SyncMode};
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use warpline_driver::timeline::Timeline;
use warpline_driver::{DeviceId, Driver, OutOfMemory, Result, process, reentry};

pub(crate) struct RuntimeShared {
    /// The number of this runtime in traces, unique in the process; the first is 1.
    pub(crate) number: u64,
    pub(crate) mode: OrderMode,
    pub(crate) sync: SyncCheck,
    /// True if a tensor is copied to the device that it is on.
    pub(crate) to_copies: bool,
    pub(crate) observed: Observed,
    streams: RwLock<HashMap<StreamId, Member>>,
    /// The names of identities that stand for the streams of captures.
    captures: Mutex<HashMap<StreamId, Named>>,
    warned: Mutex<HashSet<(Site, Site)>>,
    pub(crate) panics: Panics,
    shut_down: AtomicBool,
    pub(crate) health: Reported,
    pub(crate) closed_gates: Arc<ClosedGates>,
    pub(crate) host_code: HostCodes,
    /// Jobs for the next turns of devices that run in turns.
    put_off: Mutex<VecDeque<Job>>,
    /// Opens a device of the runtime, or returns `None` if the runtime was dropped.
    opener: OnceLock<Box<Opener>>,
    /// The program's function that is called when a device has no memory.
    out_of_memory_observer: OnceLock<Arc<Observer>>,
    /// The drivers that run in turns.
    in_turns: RwLock<Vec<Weak<dyn Driver>>>,
    /// True if there is one.
    has_turns: AtomicBool,
}

/// The program's function that is called when a device has no memory.
pub(crate) type Observer = dyn Fn(&Device, &OutOfMemory) + Send + Sync;

type Job = Box<dyn FnOnce() + Send>;

pub(crate) type Opener = dyn Fn(DeviceId) -> Option<Result<Device>> + Send + Sync;

struct Member {
    core: Weak<StreamCore>,
    timeline: Arc<Timeline>,
}

impl RuntimeShared {
    pub(crate) fn new(mode: OrderMode, sync: SyncMode, to_copies: bool) -> Arc<Self> {
        static RUNTIMES: AtomicU64 = AtomicU64::new(0);
        Arc::new(RuntimeShared {
            number: RUNTIMES.fetch_add(1, Ordering::Relaxed) + 1,
            mode,
            sync: SyncCheck::new(sync),
            to_copies,
            observed: Observed::default(),
            streams: RwLock::default(),
            captures: Mutex::default(),
            warned: Mutex::default(),
            panics: Panics::default(),
            shut_down: AtomicBool::new(false),
            health: Reported::default(),
            closed_gates: Arc::default(),
            host_code: HostCodes::default(),
            put_off: Mutex::default(),
            opener: OnceLock::new(),
            out_of_memory_observer: OnceLock::new(),
            in_turns: RwLock::default(),
            has_turns: AtomicBool::new(false),
        })
    }

    pub(crate) fn set_opener(&self, opener: Box<Opener>) {
        let _ = self.opener.set(opener);
    }

    pub(crate) fn set_out_of_memory_observer(&self, observer: Arc<Observer>) {
        let _ = self.out_of_memory_observer.set(observer);
    }

    pub(crate) fn out_of_memory_observer(&self) -> Option<&Observer> {
        self.out_of_memory_observer.get().map(|observer| &**observer)
    }

    /// Returns the device with this id, which is opened if necessary; `None` if the runtime was
    /// dropped.
    pub(crate) fn device(&self, id: DeviceId) -> Option<Result<Device>> {
        self.opener.get()?(id)
    }

    /// Notes a driver that runs work only in turns. Polls of every device take its turns, because
    /// their work may wait for that driver's.
    pub(crate) fn takes_turns_of(self: &Arc<Self>, driver: &Arc<dyn Driver>) {
        self.in_turns.write().push(Arc::downgrade(driver));
        self.has_turns.store(true, Ordering::Release);
        let (runtime, backend) = (Arc::downgrade(self), driver.id().backend());
        driver.on_change(Box::new(move || {
            if let Some(runtime) = runtime.upgrade() {
                runtime.wake_pollers_but(backend);
            }
        }));
    }

    /// Calls `f` where it may page-lock memory for `device` and submit the work that waited for
    /// it: on the device's `warpline-pin`, or in the next turn of a device that runs in turns.
    pub(crate) fn when_it_may_submit(&self, device: &DeviceShared, f: impl FnOnce() + Send + 'static) {
        if !device.runs_in_turns {
            return background::pin(device.id, f);
        }
        self.put_off.lock().push_back(Box::new(f));
        if self.is_shut_down() {
            return self.run_what_was_put_off();
        }
        device.driver.after_submit();
    }

    /// Lets another thread run the jobs for the next turn, because none may come.
    fn run_what_was_put_off(&self) {
        let jobs = std::mem::take(&mut *self.put_off.lock());
        if !jobs.is_empty() {
            background::detach(move || jobs.into_iter().for_each(|job| job()));
        }
    }

    /// Runs at most one piece of work of the devices that run in turns. Returns true if it ran one.
    #[inline]
    pub(crate) fn turn(&self) -> bool {
        self.has_turns.load(Ordering::Acquire) && self.turn_now()
    }

    #[cold]
    fn turn_now(&self) -> bool {
        // Looked at again at the end: a job may be put off between the two looks, and its thread
        // wakes only pollers that found nothing.
        self.run_one_that_was_put_off() || self.turn_of_a_driver() || self.run_one_that_was_put_off()
    }

    fn run_one_that_was_put_off(&self) -> bool {
        let job = self.put_off.lock().pop_front();
        job.map(|job| job()).is_some()
    }

    fn turn_of_a_driver(&self) -> bool {
        let drivers: SmallVec<[_; 1]> = self.in_turns.read().iter().filter_map(Weak::upgrade).collect();
        drivers.iter().any(|driver| driver.turn())
    }

    /// Wakes the waiters of every other backend, because something may have become runnable on
    /// `backend`, which runs in turns.
    fn wake_pollers_but(&self, backend: &str) {
        for stream in self.streams().iter().filter(|stream| stream.device.id.backend() != backend) {
            stream.progress.timeline.wake_all();
        }
    }

    pub(crate) fn join(&self, core: &Arc<StreamCore>) {
        let member = Member { core: Arc::downgrade(core), timeline: core.progress.timeline.clone() };
        self.streams.write().insert(core.id, member);
    }

    pub(crate) fn leave(&self, id: StreamId) {
        self.streams.write().remove(&id);
    }

    pub(crate) fn stream(&self, id: StreamId) -> Option<Arc<StreamCore>> {
        self.streams.read().get(&id)?.core.upgrade()
    }

    /// Calls `f` with the stream, unless it is gone. If this is the last to hold it, another
    /// thread drops it, because this one may have the lock of a stream.
    pub(crate) fn with_stream<R>(&self, id: StreamId, f: impl FnOnce(&Arc<StreamCore>) -> R) -> Option<R> {
        let core = self.stream(id)?;
        let result = f(&core);
        if let Some(last) = Arc::into_inner(core) {
            background::detach(move || drop(last));
        }
        Some(result)
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

    /// Returns the timeline of a stream that is not gone.
    pub(crate) fn timeline(&self, id: StreamId) -> Option<Arc<Timeline>> {
        Some(self.streams.read().get(&id)?.timeline.clone())
    }

    /// Returns the host code that an unfinished use depends on, if there is any. Called under the
    /// allocator's locks.
    pub(crate) fn host_code_before(&self, used: Use) -> Option<HeldUp> {
        self.with_stream(used.stream, |core| {
            let at = core.position(used.ticket);
            let (shares_queues, has_backlog) = (core.device.signalled, core.refusals.late.has_backlog());
            let dependent = Dependent { at, shares_queues, has_backlog };
            self.host_code.before(&dependent, |code| core.knows(code))
        })?
    }

    /// Returns the host code that an unfinished copy depends on, if there is any, or the failure
    /// that it does not survive. The ticket is 0 if the copy is being enqueued. Called under the
    /// locks of a stream and of a pool of page-locked memory.
    pub(crate) fn host_code_before_copy(&self, copy: Use) -> Option<String> {
        let timeline = self.timeline(copy.stream)?;
        if copy.ticket > 0 && timeline.reached(copy.ticket) {
            return None;
        }
        self.with_stream(copy.stream, |core| {
            // Memory of copies in flight may stay with a device that has failed.
            let fault = core.device.health.fault();
            if fault.is_none() && timeline.is_abandoned() {
                return None;
            }
            let ticket = if copy.ticket == 0 { core.issued() + 1 } else { copy.ticket };
            if let Some(fault) = core.fault() {
                return Some(fault.to_string());
            }
            // Other than a use of device memory, it does not wait for the driver to page-lock any.
            let shares_queues = core.device.signalled;
            let dependent = Dependent { at: core.position(ticket), shares_queues, has_backlog: false };
            self.host_code.before(&dependent, |code| core.knows(code)).map(|code| code.to_string())
        })?
    }

    /// Returns whether an unfinished use ends without code of the host.
    pub(crate) fn ends_by_itself(&self, used: Use) -> bool {
        let has_failed = self.with_stream(used.stream, |core| core.fault().is_some());
        !has_failed.unwrap_or(false) && self.host_code_before(used).is_none()
    }

    /// Returns whether to warn about this pair of lines, which is true only once.
    pub(crate) fn warns_first(&self, earlier: Site, later: Site) -> bool {
        self.warned.lock().insert((earlier, later))
    }

    /// Warns of the edges that an op misses, once for each pair of lines.
    pub(crate) fn warn_of(&self, op: Site, conflicts: &[Conflict]) {
        for conflict in conflicts {
            if self.warns_first(conflict.earlier(), op) {
                crate::report::unordered(conflict);
            }
        }
    }

    /// Accepts no more work. Wakes what waits for a lease or for room, which it will not get.
    pub(crate) fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
        self.health.shuts_down();
        if process::is_forked() {
            // The parent's threads may have had the locks of its waiting lists.
            return;
        }
        // A waiter registers first and then looks at `shut_down`, so that one of the two sees the
        // other: both take the lock of the waiting list.
        let mut streams = self.streams();
        // In a fixed order, since a seed has to give the same one each time.
        streams.sort_unstable_by_key(|stream| stream.id.number());
        streams.iter().for_each(|stream| stream.progress.timeline.wake_all());
        self.run_what_was_put_off();
    }

    /// Waits until every call that was accepted before the shutdown has enqueued its work. A call
    /// checks under its stream's lock that work is accepted.
    pub(crate) async fn let_calls_end(&self) {
        let mut streams = self.streams();
        // A device that runs in turns is driven by the thread that shuts the runtime down.
        streams.retain(|stream| !stream.device.runs_in_turns);
        if streams.is_empty() || reentry::holds_a_device() || process::is_forked() {
            return;
        }
        // A thread of the runtime may wait for a lock whose holder waits for room.
        background::run(move || streams.iter().for_each(|stream| drop(stream.state.lock()))).await;
    }

    #[inline]
    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Returns true if work is unfinished on devices that do not run in turns, or is held back for
    /// such devices. Other threads finish it.
    #[cfg(feature = "test-util")]
    pub(crate) fn other_threads_have_work(&self) -> bool {
        let has_work = |stream: &Arc<StreamCore>| match stream.device.runs_in_turns {
            true => stream.state.lock().waits_for_another_backend(),
            false => {
                // Detached work may have no marker yet.
                stream.want_marker(stream.issued());
                stream.completed() < stream.issued() && stream.fault().is_none()
            }
        };
        self.streams().iter().any(has_work)
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
