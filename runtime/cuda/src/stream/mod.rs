//! CUDA streams, which turn submissions into CUDA calls and completion markers.
//!
//! The calls are made under the stream's lock. Markers report the device's progress.
//!
//! # Rules
//! 1. A submission is one CUDA call, or none if there is nothing to do (fills of eight bytes and
//!    copies in pieces may be more); a marker is one more.
//! 2. A call that fails leaves nothing behind, and its ticket is free. A sticky error is the
//!    context's death.
//! 3. A marker that fails leaves tickets that would never be reached. So the stream is abandoned
//!    with that error and accepts no more work. It releases what it keeps when it is idle.
//! 4. Dropping returns the raw stream to its pool. Work on it still runs, and the next lease begins
//!    after that work.

mod copies;
mod library;
mod refused;
mod wait;

use crate::api::{Answer, opened};
use crate::completion::events::PooledEvent;
use crate::completion::reactor;
use crate::completion::track::{Parts, Track};
use crate::context::Context;
use crate::modules::functions::{Function, no_such_shared};
use crate::modules::requirements;
use crate::profiling::nvtx;
use crate::profiling::spans::{Begun, Spans};
use crate::work::capturing::{LEFT_CAPTURING, OWNER_CAPTURES, Relaxed, is_captured};
use crate::work::foreign::Enqueuing;
use crate::work::gate::Gates;
use crate::work::graph::Executable;
use crate::work::raw_streams::RawStream;
use crate::work::{copy, host_fn, launch};
use parking_lot::Mutex;
use refused::Refused;
use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};
use warpline_driver::background::{self, Duty};
use warpline_driver::kernel::Kernel;
use warpline_driver::timeline::{Progress, Ticket, Timeline};
use warpline_driver::{
    Command, CopyKind, DriverError, DriverEvent, DriverStream, Error, ErrorKind, Health, HostFn, Launch,
    RawHandle, Site, StreamOptions, Submission, WakeUp,
};

/// The number of kernels that a stream remembers, so that a launch takes no lock to find its
/// function.
const REMEMBERED: usize = 8;
/// The number of ops between two checks whether CUDA's queue may be full.
///
/// The queue takes about a thousand, and may be full if this many ops are in flight.
const DEPTH: u64 = 1024;
/// The time that a poll spins with [`WakeUp::LowLatency`]: about a small kernel and its word.
const LOW_LATENCY_SPIN: Duration = Duration::from_micros(20);

pub(crate) struct CudaStream {
    pub(crate) track: Arc<Track>,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) raw: RawStream,
    pub(crate) gates: Gates,
    /// True once the runtime was shut down.
    pub(crate) stopping: Arc<AtomicBool>,
    submitted: AtomicU64,
    /// The event that was recorded last, to be recorded again if nothing else holds it.
    event: Mutex<Option<Arc<PooledEvent>>>,
    functions: UnsafeCell<[(usize, Option<Function>); REMEMBERED]>,
}

// SAFETY: the raw handle may be used from any thread. Only `submit` touches `functions`, and one
// caller at a time calls it.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

/// The way a stream's markers are written, and how eagerly they are looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completing {
    pub(crate) wake_up: WakeUp,
    pub(crate) by_events: bool,
}

impl CudaStream {
    /// Creates a stream of `context`, from its pool or borrowed, whose progress goes to `timeline`.
    pub(crate) fn new(
        context: &'static Context,
        health: Arc<Health>,
        completing: Completing,
        options: &StreamOptions,
        timeline: Arc<Timeline>,
        stopping: Arc<AtomicBool>,
    ) -> Answer<Self> {
        let entered = context.enter()?;
        let raw = match options.borrowed {
            Some(lent) => RawStream::lent(context, lent.as_ptr()),
            None => context.work.streams.take(context, options.priority)?,
        };
        drop(entered);
        let parts = Parts {
            context,
            label: options.label.clone(),
            health,
            stream: raw.stream,
            borrowed: options.borrowed.is_some(),
            word: raw.word,
            base: raw.written,
            wake_up: completing.wake_up,
            by_events: completing.by_events,
            spans: Spans::new(options.runtime, options.key),
        };
        Ok(CudaStream {
            track: Track::new(parts, &timeline),
            timeline,
            raw,
            gates: Gates::default(),
            stopping,
            submitted: AtomicU64::new(0),
            event: Mutex::new(None),
            functions: UnsafeCell::new([(0, None); REMEMBERED]),
        })
    }

    /// Fails the device in this runtime, which was shut down while a gate of this stream is closed.
    pub(crate) fn fail_by_shutdown(&self) {
        let text = format!(
            "the runtime was shut down with work in flight on stream \"{}\", held at a wait that nothing will release",
            self.track.label()
        );
        let (error, health) = (Error::new(ErrorKind::ShutDown, text), self.track.health());
        health.note(error.clone());
        self.context().fail_dependents(health, &error);
        reactor::wake(health.clone());
    }

    /// Returns the number of gates on the stream that are not open.
    pub(crate) fn closed_gates(&self) -> usize {
        self.gates.closed()
    }

    pub(crate) fn context(&self) -> &'static Context {
        self.track.context
    }

    #[inline(never)]
    fn perform(&self, command: Command, ticket: Ticket, site: Site) -> Result<(), Refused> {
        let stream = self.raw.stream;
        match command {
            Command::Launch(launch) => self.launch(&launch, ticket, site),
            Command::Graph(graph) => {
                Ok(graph.downcast_ref::<Executable>().expect("a graph of this driver").launch(stream)?)
            }
            Command::Copy(copy) if copy.width_bytes == 0 || copy.height == 0 => Ok(()),
            Command::Copy(copy) => match copy.kind {
                CopyKind::Peer { source, destination } => self.copy_peer(&copy, source, destination),
                _ => Ok(copy::copy(&copy, stream)?),
            },
            Command::StagedCopy(staged) => self.copy_staged(*staged, ticket, site),
            Command::Fill(fill) if fill.width_bytes == 0 || fill.height == 0 => Ok(()),
            Command::Fill(fill) => match copy::fill(&fill, stream) {
                Ok(()) => Ok(()),
                Err((enqueued, failed)) => {
                    if enqueued > 0 && !self.context().is_killed_by(failed, None) {
                        return Err(DriverError::Halfway(failed.into()).into());
                    }
                    Err(failed.into())
                }
            },
            Command::Wait(point) => self.wait(&point, ticket, site, true),
            Command::Edge(point) => self.wait(&point, ticket, site, false),
            Command::Elided => Ok(()),
            Command::Call(function) | Command::HostWork(function) => Ok(self.call(function, ticket, site)?),
            Command::Stamp(stamp) => {
                stamp.set_event(Arc::new(
                    self.context().completion.timed_events.record(self.context(), stream)?,
                ));
                Ok(())
            }
            Command::Foreign => Ok(()),
        }
    }

    #[inline]
    fn launch(&self, launch: &Launch, ticket: Ticket, site: Site) -> Result<(), Refused> {
        if let Some(library) = launch.kernel.library
            && self.ask(library, launch, ticket, site)?
        {
            return Ok(());
        }
        self.launch_kernel(launch)
    }

    /// Enqueues the kernel's device code.
    #[inline]
    pub(crate) fn launch_kernel(&self, launch: &Launch) -> Result<(), Refused> {
        let function = self.function(launch.kernel)?;
        let bytes = launch.config.shared_bytes;
        if let Err(failed) = self.context().modules.functions.allow_shared(function, bytes) {
            if failed.is_fault() {
                return Err(failed.into());
            }
            return Err(no_such_shared(self.context(), launch.kernel, bytes, failed).into());
        }
        launch::launch(launch, function, self.raw.stream).map_err(|failed| {
            let why = requirements::explain_launch(self.context(), &launch.config, function, failed);
            why.map_or(failed.into(), |why| DriverError::Refused(why).into())
        })
    }

    #[inline]
    fn function(&self, kernel: &'static Kernel) -> Result<Function, DriverError> {
        let key = std::ptr::from_ref(kernel) as usize;
        // SAFETY: only `submit` reaches this, and its contract is one caller at a time.
        let slot = unsafe { &mut (*self.functions.get())[(key / align_of::<Kernel>()) % REMEMBERED] };
        if let (known, Some(function)) = *slot
            && known == key
        {
            return Ok(function);
        }
        let function = self.context().modules.functions.of(self.context(), kernel)?;
        *slot = (key, Some(function));
        Ok(function)
    }

    /// Records an event at the stream's end. Mostly the last one is free again: only the wait that
    /// was issued right after its record used it.
    fn record_event(&self) -> Answer<Arc<PooledEvent>> {
        let mut last = self.event.lock();
        match last.as_mut().and_then(Arc::get_mut) {
            Some(free) => free.record_again(self.raw.stream)?,
            None => {
                let events = &self.context().completion.events;
                *last = Some(Arc::new(events.record(self.context(), self.raw.stream)?));
            }
        }
        Ok(last.clone().expect("it was recorded above"))
    }

    /// Ends a traced op: gives it a marker of its own, and has the reactor watch the stream.
    #[cold]
    fn trace(&self, begun: Begun, ticket: Ticket, site: Site) {
        let spans = &self.track.spans;
        let traced = spans.end(self.context(), self.raw.stream, begun, ticket, site);
        if let Err(failed) = traced.and_then(|()| self.track.write_marker(ticket)) {
            self.context().note_failure(failed);
        }
        fence(Ordering::SeqCst);
        self.track.wanted();
    }

    pub(crate) fn call(&self, function: HostFn, ticket: Ticket, site: Site) -> Answer {
        host_fn::enqueue(self.raw.stream, &self.track, site, ticket, function)
    }

    /// Waits until the op has finished, so that a fault can be attributed to it.
    ///
    /// A wait that fails for another reason says nothing about the op, which is on the stream.
    #[cold]
    fn block(&self, ticket: Ticket, site: Site) -> Result<(), DriverError> {
        let _relaxed = Relaxed::new();
        // SAFETY: cuStreamSynchronize takes a live stream.
        match unsafe { opened().cuStreamSynchronize(self.raw.stream) } {
            Err(failed) => {
                let error = self.refused(Refused::Call(failed), ticket, site);
                if self.context().death().is_some() { Err(error) } else { Ok(()) }
            }
            Ok(()) => Ok(()),
        }
    }
}

// SAFETY: CUDA runs a stream's work in order, and the word is written after it.
unsafe impl DriverStream for CudaStream {
    #[inline]
    unsafe fn submit(&self, work: Submission) -> Result<(), DriverError> {
        let (ticket, site) = (work.ticket, work.site);
        let is_edge = matches!(work.command, Command::Edge(_));
        let is_foreign = matches!(work.command, Command::Foreign);
        if let Some(error) = self.timeline.fault() {
            work.command.drop_elsewhere();
            return Err(DriverError::Refused(error.into()));
        }
        let entered = match self.context().enter() {
            Ok(entered) => entered,
            Err(failed) => {
                work.command.drop_elsewhere();
                return Err(self.refused(Refused::Call(failed), ticket, site));
            }
        };
        if self.track.borrowed {
            let refused = match is_captured(self.raw.stream) {
                Ok(false) => None,
                Ok(true) => Some(DriverError::Captured(OWNER_CAPTURES.into()).into()),
                Err(failed) => Some(Refused::Call(failed)),
            };
            if let Some(refused) = refused {
                work.command.drop_elsewhere();
                return Err(self.refused(refused, ticket, site));
            }
        }
        // Foreign work is enqueued after this, in a turn of its own.
        let (begun, _range) = match &work.command {
            Command::Foreign | Command::Edge(_) | Command::Elided => (None, None),
            command => (
                Spans::begin(self.context(), self.raw.stream, command, &work.caller),
                nvtx::range(site, self.track.label(), ticket),
            ),
        };
        let waited_for = self.context().blocking
            && matches!(
                work.command,
                Command::Launch(_)
                    | Command::Graph(_)
                    | Command::Copy(_)
                    | Command::StagedCopy(_)
                    | Command::Fill(_)
            );
        // Noted before the op starts: once it has, other threads may find the context dead.
        let _noted = waited_for.then(|| self.context().wait_for(self.track.label(), ticket, site));
        let performed = match &work.command {
            // Borrowed rather than moved, because a launch is large.
            Command::Launch(launch) => self.launch(launch, ticket, site),
            _ => self.perform(work.command, ticket, site),
        };
        let performed = performed.map_err(|why| self.refused(why, ticket, site));
        if !matches!(performed, Ok(()) | Err(DriverError::Halfway(_))) {
            return performed;
        }
        if is_edge {
            return performed;
        }
        self.track.recent.note(ticket, site);
        self.submitted.store(ticket, Ordering::Relaxed);
        if let Some(begun) = begun {
            self.trace(begun, ticket, site);
        }
        if waited_for {
            self.block(ticket, site)?;
        }
        if self.track.borrowed
            && !is_foreign
            && let Err(failed) = self.track.write_marker(ticket)
        {
            self.give_up(ticket, failed);
        }
        drop(entered);
        if ticket.is_multiple_of(DEPTH) && ticket - self.track.passed() >= DEPTH {
            let (first, label) = (self.context().work.tell_of_full_queue(), self.track.label().to_owned());
            // Subscribers must not run under a stream's lock.
            warpline_driver::background::detach(move || crate::report::queue_is_full(first, &label));
        }
        performed
    }

    #[inline]
    fn signal(&self, ticket: Ticket) {
        if self.track.may_be_captured() && self.timeline.fault().is_some() {
            return;
        }
        let written = self.context().enter().and_then(|_entered| self.track.write_marker(ticket));
        if let Err(failed) = written {
            self.give_up(ticket, failed);
        }
    }

    #[inline]
    fn wait_briefly(&self, ticket: Ticket) -> bool {
        // The device may have reached the ticket before the marker was requested.
        if self.timeline.settle(ticket) || self.track.wake_up != WakeUp::LowLatency {
            return self.timeline.reached(ticket);
        }
        let since = Instant::now();
        while since.elapsed() < LOW_LATENCY_SPIN {
            std::hint::spin_loop();
            if self.timeline.settle(ticket) {
                return true;
            }
        }
        false
    }

    fn may_signal(&self) -> bool {
        background::duty() != Duty::Callback
    }

    fn record(&self) -> Result<Option<DriverEvent>, DriverError> {
        let context = self.context();
        let recorded = context.enter().and_then(|_entered| {
            if self.track.borrowed && is_captured(self.raw.stream)? {
                // The host holds the streams that wait for this point.
                return Ok(None);
            }
            self.record_event().map(Some)
        });
        recorded.map(|event| event.map(|event| event as DriverEvent)).map_err(|failed| {
            context.is_killed_by(failed, None);
            context.driver_error(failed)
        })
    }

    fn raw(&self) -> Option<RawHandle> {
        Some(RawHandle::new(self.raw.stream))
    }

    fn make_current(&self) -> Result<Box<dyn Any>, DriverError> {
        let entered = self.context().enter().map_err(|failed| self.context().driver_error(failed))?;
        Ok(Box::new(entered))
    }

    fn foreign_begins(&self, ticket: Ticket, site: Site) -> Box<dyn Any> {
        Box::new(Enqueuing::begin(&self.track, self.raw.stream, ticket, site))
    }

    fn signals_every_op(&self) -> bool {
        self.track.borrowed
    }

    fn foreign_ends(&self) -> Result<(), DriverError> {
        let stream = self.raw.stream;
        // A stream that does not answer has failed in another way, which its marker will report.
        if !self.context().enter().is_ok_and(|_entered| is_captured(stream) == Ok(true)) {
            return Ok(());
        }
        self.track.is_left_capturing();
        let error = DriverError::Captured(LEFT_CAPTURING.into());
        let what = format!("stream \"{}\" of cuda:{}: {error}", self.track.label(), self.context().ordinal);
        self.timeline.give_up(Error::new(ErrorKind::Captured, what));
        reactor::wake_timeline(self.timeline.clone());
        Err(error)
    }

    fn call_now(&self, site: Site, function: HostFn) -> Result<(), DriverError> {
        let context = self.context();
        let ticket = self.submitted.load(Ordering::Relaxed);
        context.enter().and_then(|_entered| self.call(function, ticket, site)).map_err(|failed| {
            context.is_killed_by(failed, None);
            context.driver_error(failed)
        })
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let context = self.context();
        if warpline_driver::process::is_ending()
            || context.death().is_some()
            || self.timeline.fault().is_some()
        {
            return;
        }
        let mut raw = self.raw.taken();
        raw.written = self.track.value(self.track.marker_at());
        self.gates.collect(&self.track);
        if self.track.borrowed {
            // Only the word is ours. If its last write has arrived, the stream's next borrower
            // continues with it.
            if let Some(word) = raw.word
                && word.host.load(Ordering::Acquire) == raw.written
            {
                self.track.word_goes();
                context.work.lent.give_back(raw.stream, word, raw.written);
            }
            return;
        }
        let submitted = self.submitted.load(Ordering::Relaxed);
        let until = if self.track.passed() >= submitted {
            None
        } else if background::duty() == Duty::Callback {
            // Dropped by a host function: the stream is never reused.
            return;
        } else {
            let event =
                context.enter().and_then(|_entered| context.completion.events.record(context, raw.stream));
            match event {
                Ok(event) => Some(event),
                // Nothing tells when the stream is idle, so it is never reused.
                Err(_) => return,
            }
        };
        context.work.streams.give_back(raw, until);
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaStream")
            .field("device", &self.context().ordinal)
            .field("label", &self.track.label())
            .field("timeline", &self.timeline)
            .finish_non_exhaustive()
    }
}
