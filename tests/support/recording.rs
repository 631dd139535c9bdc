//! A driver that records its calls and completes work when the test says so.
//!
//! Device addresses are made up and never touched. Pinned memory is real, because users access it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard};
use warpline::backend::Timeline;
use warpline::backend::{
    Command, Completion, DevicePtr, Driver, DriverError, DriverEvent, DriverGraph, DriverStream, Health,
    Plan, RawHandle, Step, StreamOptions, Submission, Work,
};
use warpline::{DeviceId, OrderMode, Runtime, Ticket};

/// A device of any driver, with its health.
pub(crate) type AnyDriver = (Arc<dyn Driver>, Arc<Health>);

/// One driver call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Submit { stream: String, ticket: Ticket, what: &'static str },
    Signal { stream: String, ticket: Ticket },
    Record { stream: String },
    Alloc { len_bytes: usize },
    Free { len_bytes: usize },
}

#[derive(Debug)]
pub(crate) struct Recording {
    calls: Mutex<Vec<Call>>,
    streams: Mutex<Vec<Arc<Track>>>,
    next_address: AtomicU64,
    refuse_next: AtomicBool,
    /// The name of the op that the driver refuses once.
    refuse_op: Mutex<Option<&'static str>>,
    /// The next call that pauses, and the barrier at which it does.
    pause: Mutex<Option<(&'static str, Arc<Barrier>)>>,
    plans: Mutex<Vec<Vec<String>>>,
    refuse_graphs: AtomicBool,
    completion: Completion,
    pinning: Option<Pinning>,
}

/// Page-locking that blocks until the test allows it.
#[derive(Debug, Default)]
struct Pinning {
    state: Mutex<Locks>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Locks {
    allowed: usize,
    refused: usize,
    /// The threads that asked, in order.
    by: Vec<String>,
}

/// The state of one stream.
#[derive(Debug)]
struct Track {
    label: String,
    timeline: Arc<Timeline>,
    signalled: AtomicU64,
    submitted: AtomicU64,
}

#[derive(Debug)]
struct RecordingStream {
    driver: Arc<Recording>,
    track: Arc<Track>,
}

/// One device of the driver. Each of its streams holds the driver.
#[derive(Debug)]
struct Handle(Arc<Recording>, DeviceId);

impl Recording {
    /// Returns a runtime over a recording driver that needs markers, and the driver.
    pub(crate) fn runtime(order: OrderMode) -> (Runtime, Arc<Recording>) {
        Self::runtime_of(order, 1)
    }

    /// Like [`runtime`](Self::runtime), with several devices: `cuda:0`, `cuda:1` and so on.
    pub(crate) fn runtime_of(order: OrderMode, devices: u32) -> (Runtime, Arc<Recording>) {
        Self::runtime_with(order, devices, Completion::Signalled, None, Vec::new())
    }

    /// Returns a runtime of `cuda:0` and `cuda:1` whose page-locking is slow: it blocks until
    /// [`allow_pinning`](Self::allow_pinning) is called.
    pub(crate) fn runtime_with_slow_pinning(order: OrderMode) -> (Runtime, Arc<Recording>) {
        Self::runtime_with(order, 2, Completion::Signalled, Some(Pinning::default()), Vec::new())
    }

    /// Like [`runtime_with_slow_pinning`](Self::runtime_with_slow_pinning), with another device.
    pub(crate) fn runtime_with_slow_pinning_beside(other: AnyDriver) -> (Runtime, Arc<Recording>) {
        let pinning = Some(Pinning::default());
        Self::runtime_with(OrderMode::Deny, 1, Completion::Signalled, pinning, vec![other])
    }

    /// Returns a runtime of `cuda:0`, which completes each op and needs no markers, and of another
    /// device.
    pub(crate) fn runtime_without_markers_beside(other: AnyDriver) -> (Runtime, Arc<Recording>) {
        Self::runtime_with(OrderMode::Deny, 1, Completion::EveryOp, None, vec![other])
    }

    fn runtime_with(
        order: OrderMode,
        devices: u32,
        completion: Completion,
        pinning: Option<Pinning>,
        others: Vec<AnyDriver>,
    ) -> (Runtime, Arc<Recording>) {
        let recording = Arc::new(Recording {
            calls: Mutex::default(),
            streams: Mutex::default(),
            next_address: AtomicU64::new(1 << 20),
            refuse_next: AtomicBool::new(false),
            refuse_op: Mutex::default(),
            pause: Mutex::default(),
            plans: Mutex::default(),
            refuse_graphs: AtomicBool::new(false),
            completion,
            pinning,
        });
        let device = |ordinal| -> (Arc<dyn Driver>, _) {
            let handle = Handle(recording.clone(), DeviceId::Cuda(ordinal));
            (Arc::new(handle), Arc::new(Health::default()))
        };
        (Runtime::over((0..devices).map(device).chain(others).collect(), order), recording)
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap()
    }

    /// Returns the calls since the last call of this method.
    pub(crate) fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls())
    }

    /// Makes the driver refuse the next submission.
    pub(crate) fn refuse_next(&self) {
        self.refuse_next.store(true, Ordering::Relaxed);
    }

    /// Makes the driver refuse the next op of that name.
    pub(crate) fn refuse_op(&self, op: &'static str) {
        *self.refuse_op.lock().unwrap() = Some(op);
    }

    /// Makes the next call of that name wait twice at the returned barrier of two threads: the
    /// recording of an event if it is `record`, and otherwise the submission of a command.
    pub(crate) fn pause_next(&self, call: &'static str) -> Arc<Barrier> {
        let barrier = Arc::new(Barrier::new(2));
        *self.pause.lock().unwrap() = Some((call, barrier.clone()));
        barrier
    }

    fn pause_at(&self, call: &str) {
        let pause = self.pause.lock().unwrap().take_if(|(paused, _)| *paused == call);
        if let Some((_, barrier)) = pause {
            barrier.wait();
            barrier.wait();
        }
    }

    /// Lets the driver page-lock `blocks` more blocks of memory.
    pub(crate) fn allow_pinning(&self, blocks: usize) {
        let pinning = self.pinning.as_ref().expect("pinning is slow");
        pinning.state.lock().unwrap().allowed += blocks;
        pinning.changed.notify_all();
    }

    /// Makes page-locking the next block fail: the first attempt, and the retry after the pool has
    /// released its memory.
    pub(crate) fn refuse_pinning(&self) {
        let pinning = self.pinning.as_ref().expect("pinning is slow");
        pinning.state.lock().unwrap().refused += 2;
        pinning.changed.notify_all();
    }

    /// Returns the names of the threads that asked for page-locked memory, including those that
    /// still wait for it.
    pub(crate) fn pinned_by(&self) -> Vec<String> {
        self.pinning.as_ref().expect("pinning is slow").state.lock().unwrap().by.clone()
    }

    /// Yields until `calls` calls have been recorded since they were last taken, and takes them.
    pub(crate) fn take_when(&self, calls: usize) -> Vec<Call> {
        while self.calls().len() < calls {
            std::thread::yield_now();
        }
        self.take()
    }

    /// Makes the driver refuse all graphs from now on.
    pub(crate) fn refuse_graphs(&self) {
        self.refuse_graphs.store(true, Ordering::Relaxed);
    }

    /// Returns the steps of each graph so far.
    ///
    /// A step is `stream.number op` or `stream.number wait for stream.number`.
    pub(crate) fn plans(&self) -> Vec<Vec<String>> {
        self.plans.lock().unwrap().clone()
    }

    /// Completes the work up to the newest marker of the stream with this label.
    pub(crate) fn reach_marker(&self, label: &str) {
        let track = self.streams.lock().unwrap().iter().find(|track| track.label == label).cloned();
        let track = track.expect("a stream of that label");
        track.timeline.complete(track.signalled.load(Ordering::Relaxed));
    }

    /// Completes the work that every stream has got.
    pub(crate) fn complete_all(&self) {
        let tracks = self.streams.lock().unwrap().clone();
        for track in tracks {
            track.timeline.complete(track.submitted.load(Ordering::Relaxed));
        }
    }

    /// Completes the work up to the newest marker of every stream.
    pub(crate) fn reach_markers(&self) {
        let tracks = self.streams.lock().unwrap().clone();
        for track in tracks {
            track.timeline.complete(track.signalled.load(Ordering::Relaxed));
        }
    }
}

// SAFETY: device addresses are made up, but nothing here runs work on them. Host memory comes from
// the system allocator.
unsafe impl Driver for Handle {
    fn id(&self) -> DeviceId {
        self.1
    }

    fn completion(&self) -> Completion {
        self.0.completion
    }

    fn new_stream(
        &self,
        options: &StreamOptions,
        timeline: Arc<Timeline>,
    ) -> Result<Arc<dyn DriverStream>, DriverError> {
        let track = Arc::new(Track {
            label: options.label.to_string(),
            timeline,
            signalled: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
        });
        self.0.streams.lock().unwrap().push(track.clone());
        Ok(Arc::new(RecordingStream { driver: self.0.clone(), track }))
    }

    fn alloc(&self, len_bytes: usize) -> Result<DevicePtr, DriverError> {
        self.0.calls().push(Call::Alloc { len_bytes });
        let rounded = (len_bytes as u64).next_multiple_of(512);
        Ok(DevicePtr(self.0.next_address.fetch_add(rounded, Ordering::Relaxed)))
    }

    unsafe fn free(&self, _: DevicePtr, len_bytes: usize) {
        self.0.calls().push(Call::Free { len_bytes });
    }

    fn host_memory_is_slow(&self) -> bool {
        self.0.pinning.is_some()
    }

    fn alloc_host(&self, len_bytes: usize) -> Result<*mut u8, DriverError> {
        if let Some(pinning) = &self.0.pinning {
            let mut locks = pinning.state.lock().unwrap();
            locks.by.push(std::thread::current().name().unwrap_or("a thread").to_owned());
            locks = pinning.changed.wait_while(locks, |locks| locks.allowed + locks.refused == 0).unwrap();
            if locks.refused > 0 {
                locks.refused -= 1;
                return Err(DriverError::OutOfMemory(None));
            }
            locks.allowed -= 1;
        }
        let layout = Layout::from_size_align(len_bytes.max(1), 4096).expect("a valid layout");
        // SAFETY: `alloc_zeroed` needs a layout of non-zero size, which `max(1)` ensures.
        Ok(unsafe { alloc_zeroed(layout) })
    }

    unsafe fn free_host(&self, ptr: *mut u8, len_bytes: usize) {
        let layout = Layout::from_size_align(len_bytes.max(1), 4096).expect("a valid layout");
        // SAFETY: `dealloc` needs the pointer and layout of an allocation. The caller passes a
        // pointer from `alloc_host` and its length.
        unsafe { dealloc(ptr, layout) }
    }

    fn instantiate(&self, plan: &Arc<Plan>) -> Result<DriverGraph, DriverError> {
        if self.0.refuse_graphs.load(Ordering::Relaxed) {
            return Err(DriverError::Refused("CUDA_ERROR_NOT_SUPPORTED".into()));
        }
        let step = |step: &Step| {
            let what = match step.work {
                Work::Wait { stream, number } => format!("wait for {stream}.{number}"),
                _ => step.site.op().to_owned(),
            };
            format!("{}.{} {what}", step.stream, step.number)
        };
        self.0.plans.lock().unwrap().push(plan.steps.iter().map(step).collect());
        Ok(Arc::new(()))
    }

    fn shut_down(&self) {
        self.0.complete_all();
    }
}

// SAFETY: no work runs, so no work runs out of order.
unsafe impl DriverStream for RecordingStream {
    unsafe fn submit(&self, work: Submission) -> Result<(), DriverError> {
        if self.driver.refuse_next.swap(false, Ordering::Relaxed) {
            return Err(DriverError::Refused("CUDA_ERROR_INVALID_VALUE".into()));
        }
        let is_op = !matches!(work.command, Command::Wait(_) | Command::Edge(_) | Command::Elided);
        if is_op && self.driver.refuse_op.lock().unwrap().take_if(|op| *op == work.site.op()).is_some() {
            return Err(DriverError::Refused("CUDA_ERROR_INVALID_VALUE".into()));
        }
        let before = self.track.submitted.fetch_max(work.reaches(), Ordering::Relaxed);
        assert!(before < work.ticket, "tickets grow");
        let what = match work.command {
            Command::Wait(_) => "wait",
            Command::Edge(_) => "edge",
            Command::Elided => "nothing",
            _ => work.site.op(),
        };
        self.driver.pause_at(what);
        let stream = self.track.label.clone();
        self.driver.calls().push(Call::Submit { stream, ticket: work.ticket, what });
        Ok(())
    }

    fn signal(&self, ticket: Ticket) {
        let before = self.track.signalled.swap(ticket, Ordering::Relaxed);
        // Tickets may have gaps: a wait whose order already holds takes one, but is never
        // submitted.
        assert!(ticket > before);
        self.track.submitted.fetch_max(ticket, Ordering::Relaxed);
        self.driver.calls().push(Call::Signal { stream: self.track.label.clone(), ticket });
    }

    fn raw(&self) -> Option<RawHandle> {
        // With a handle, foreign work is submitted as such and not as a host function. Only tests
        // with slow page-locking need that.
        self.driver.pinning.is_some().then(|| RawHandle::new(std::ptr::dangling_mut::<u8>()))
    }

    fn record(&self) -> Result<Option<DriverEvent>, DriverError> {
        self.driver.pause_at("record");
        self.driver.calls().push(Call::Record { stream: self.track.label.clone() });
        Ok(Some(Arc::new(())))
    }
}
