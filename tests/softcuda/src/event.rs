//! Events: a position in a stream's work, and the time when the stream reached it.
//!
//! Recording stores a stream and a ticket. A wait copies that pair, so that recording the event
//! again does not move waits already issued. An event that was never recorded counts as complete: a
//! wait for it does nothing, and a query succeeds.

use crate::abi::{CUevent, CUstream};
use crate::capture;
use crate::context::{self, Context};
use crate::errors::{Code, Outcome, refuse};
use crate::plan;
use crate::slab::Slab;
use crate::stream::{self, Stream};
use crate::work::Work;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;

/// `CU_EVENT_WAIT_EXTERNAL`.
const EXTERNAL: u32 = 1;

/// An event, aligned so that the recorders of two events do not share a cache line.
#[repr(align(64))]
pub(crate) struct Event {
    index: u32,
    context: AtomicU32,
    flags: AtomicU32,
    handle: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    recorded: bool,
    /// The number of the recording, counted over all events that have had this slot.
    record: u64,
    mark: Option<(&'static Stream, u64)>,
    time: Option<Instant>,
    /// The position in a capture, if the last recording was in one.
    captured: Option<Captured>,
}

/// A position in a capture.
#[derive(Clone)]
pub(crate) struct Captured {
    /// The number of the capture.
    pub(crate) capture: u64,
    /// The stream that the event was recorded on.
    pub(crate) stream: &'static Stream,
    /// The nodes of the graph that work waiting for the event runs after.
    pub(crate) after: Vec<usize>,
}

static EVENTS: Slab<Event> = Slab::new(3);

/// Creates an event in the current context.
pub(crate) fn create(flags: u32) -> Outcome<CUevent> {
    let context = context::current()?;
    if flags & !7 != 0 || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
        refuse!(INVALID_VALUE, "flags {flags:#x}");
    }
    let (index, event) = EVENTS.take(|index| Event {
        index,
        context: AtomicU32::new(0),
        flags: AtomicU32::new(0),
        state: Mutex::default(),
        handle: AtomicU64::new(0),
    });
    event.context.store(context.index, Relaxed);
    event.flags.store(flags, Relaxed);
    {
        let mut state = event.state.lock();
        *state = State { record: state.record + 1, ..State::default() };
    }
    let handle = EVENTS.publish(index);
    event.handle.store(handle, Relaxed);
    Ok(CUevent(handle))
}

#[inline]
fn known(handle: CUevent) -> Outcome<&'static Event> {
    match EVENTS.get(handle.0) {
        Some(event) => Ok(event),
        None => refuse!(INVALID_HANDLE, "the event is {}", EVENTS.what_is(handle.0)),
    }
}

/// Returns the event that a call names, if its context and the current one are usable.
fn named(handle: CUevent) -> Outcome<&'static Event> {
    let current = context::current()?;
    let event = known(handle)?;
    if event.context.load(Relaxed) != current.index {
        event.context().usable()?;
    }
    Ok(event)
}

/// Destroys an event. Waits already issued remain.
pub(crate) fn destroy(handle: CUevent) -> Outcome {
    let event = named(handle)?;
    if EVENTS.revoke(handle.0).is_some() {
        EVENTS.recycle(event.index);
    }
    Ok(())
}

/// Destroys all events of a context.
pub(crate) fn destroy_all(context: &Context) {
    for event in EVENTS.all().filter(|event| event.context.load(Relaxed) == context.index) {
        if EVENTS.revoke(event.handle.load(Relaxed)).is_some() {
            EVENTS.recycle(event.index);
        }
    }
}

/// Records an event at the current end of a stream.
#[inline]
pub(crate) fn record(handle: CUevent, on: CUstream) -> Outcome {
    let stream = stream::named(on)?;
    let event = known(handle)?;
    if !std::ptr::eq(event.context(), stream.context()) {
        refuse!(INVALID_HANDLE, "the event and the stream are of different contexts");
    }
    if plan::get().immediate && !stream.is_capturing() {
        if event.has_timing() {
            let mut state = event.state.lock();
            state.recorded = true;
            state.captured = None;
            state.time = Some(Instant::now());
        }
        return Ok(());
    }
    if !stream.is_capturing() {
        // Before taking the lock: making room may need a stamp to run, which takes the lock too.
        stream.make_room()?;
    }
    let mut state = event.state.lock();
    state.record += 1;
    if stream.is_capturing() {
        state.captured = Some(capture::moment(stream)?);
        state.mark = None;
        return Ok(());
    }
    let ticket = if event.has_timing() {
        // The stamp may start before the mark is stored, but it blocks on this lock until then.
        stream.enqueue_at_once(Work::Stamp { event, record: state.record })?
    } else {
        stream.mark()?
    };
    let record = state.record;
    *state = State { recorded: true, record, mark: Some((stream, ticket)), time: None, captured: None };
    Ok(())
}

/// Makes a stream wait for the last recording of an event.
#[inline]
pub(crate) fn wait(on: CUstream, handle: CUevent, flags: u32) -> Outcome {
    let stream = stream::named(on)?;
    let event = known(handle)?;
    if !std::ptr::eq(event.context(), stream.context()) {
        event.context().usable()?;
    }
    if flags > 1 {
        refuse!(INVALID_VALUE, "flags {flags:#x}");
    }
    if flags == EXTERNAL {
        capture::refuse_uncaptured(stream, "a wait for what is outside")?;
    }
    if plan::get().immediate && !capture::any() {
        return Ok(());
    }
    let (mark, captured) = {
        let state = event.state.lock();
        (state.mark, state.captured.clone())
    };
    if let Some(moment) = captured {
        return capture::join(stream, &moment);
    }
    let Some((source, ticket)) = mark else { return Ok(()) };
    if stream.is_capturing() {
        capture::invalidate(stream);
        refuse!(
            STREAM_CAPTURE_ISOLATION,
            "a capturing stream cannot wait for an event from outside the capture"
        );
    }
    if !source.reached(ticket) && !std::ptr::eq(source, stream) {
        source.report_own_fault()?;
        stream.enqueue(Work::Wait { on: source, ticket })?;
    }
    Ok(())
}

/// Checks that the stream has reached the event. Fails with `NOT_READY` if it has not.
pub(crate) fn query(handle: CUevent) -> Outcome {
    match named(handle)?.mark()? {
        Some((source, ticket)) if !source.reached(ticket) => {
            source.report_own_fault()?;
            Err(Code::NOT_READY.into())
        }
        _ => Ok(()),
    }
}

/// Blocks the calling thread until the stream reaches the event.
pub(crate) fn synchronize(handle: CUevent) -> Outcome {
    match named(handle)?.mark()? {
        Some((source, ticket)) => source.wait(ticket),
        None => Ok(()),
    }
}

/// Returns the milliseconds from one event to another.
pub(crate) fn elapsed(start: CUevent, end: CUevent) -> Outcome<f32> {
    let (start, end) = (named(start)?, named(end)?);
    if start.context.load(Relaxed) != end.context.load(Relaxed) {
        refuse!(INVALID_HANDLE, "the events are of different contexts");
    }
    if !start.has_timing() || !end.has_timing() {
        refuse!(INVALID_HANDLE, "an event was made without timing");
    }
    let (start, end) = (start.time()?, end.time()?);
    Ok(match end.checked_duration_since(start) {
        Some(later) => later.as_secs_f64() * 1e3,
        None => start.duration_since(end).as_secs_f64() * -1e3,
    } as f32)
}

impl Event {
    fn context(&self) -> &'static Context {
        context::at(self.context.load(Relaxed))
    }

    fn has_timing(&self) -> bool {
        self.flags.load(Relaxed) & DISABLE_TIMING == 0
    }

    /// Stores the time, unless the event was recorded again since.
    pub(crate) fn stamp(&self, record: u64) {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.record == record {
            state.time = Some(now);
        }
    }

    /// Returns the recorded position. Fails if the event was recorded in a capture, or if the call
    /// is unsafe beside one.
    fn mark(&self) -> Outcome<Option<(&'static Stream, u64)>> {
        let state = self.state.lock();
        if let Some(moment) = &state.captured {
            capture::invalidate(moment.stream);
            refuse!(CAPTURED_EVENT, "the event was last recorded in a capturing stream");
        }
        let mark = state.mark;
        drop(state);
        capture::refuse_unsafe()?;
        Ok(mark)
    }

    fn time(&self) -> Outcome<Instant> {
        let state = self.state.lock();
        if !state.recorded {
            refuse!(INVALID_HANDLE, "the event was never recorded");
        }
        match (state.time, state.mark) {
            (_, Some((source, ticket))) if !source.reached(ticket) => {
                source.report_own_fault()?;
                Err(Code::NOT_READY.into())
            }
            (Some(time), _) => Ok(time),
            (None, _) => Err(Code::NOT_READY.into()),
        }
    }
}
