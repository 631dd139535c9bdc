//! Stream capture, as far as this driver has it: which streams capture, what breaks a capture, what ends it. What is
//! captured is counted, not kept: there is no instantiating of graphs.
//!
//! # Rules
//! 1. A stream's `capture` names the capture it is part of. Work on it is counted there and does not run.
//! 2. A stream comes in by waiting for an event recorded inside, and must be joined back to the origin before the end:
//!    a stream inside waits for an event recorded on it after its last work.
//! 3. A query or a synchronisation of a capturing stream, or of its context, breaks the capture. So does a call that
//!    could disturb one (an allocation, a query of an event), by the thread that captures in thread-local mode, by any
//!    thread in global mode; `cuThreadExchangeStreamCaptureMode` changes how a thread is treated.

use crate::abi::{CUgraph, CUstream};
use crate::context::Context;
use crate::errors::{Code, Outcome, refuse};
use crate::slab::Slab;
use crate::stream::{self, Stream};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::ThreadId;

/// `CU_STREAM_CAPTURE_MODE_…`.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

struct Capture {
    mode: u32,
    thread: ThreadId,
    origin: &'static Stream,
    broken: bool,
    work: u64,
    /// The streams inside, and whether each is joined back, and to which.
    streams: Vec<(&'static Stream, Option<&'static Stream>)>,
}

/// What a capture leaves.
struct Graph {
    nodes: AtomicU64,
}

static CAPTURES: Mutex<BTreeMap<u64, Capture>> = Mutex::new(BTreeMap::new());
/// How many there are: what is asked first.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicU64 = AtomicU64::new(1);
static GRAPHS: Slab<Graph> = Slab::new(6);

thread_local! {
    static THREAD_MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// Changes which calls of this thread are refused while something captures. Returns what it was.
pub(crate) fn exchange_mode(mode: u32) -> Outcome<u32> {
    if mode > RELAXED {
        refuse!(INVALID_VALUE, "capture mode {mode}");
    }
    Ok(THREAD_MODE.replace(mode))
}

/// Begins a capture on a stream.
pub(crate) fn begin(handle: CUstream, mode: u32) -> Outcome {
    let stream = stream::named(handle)?;
    stream.refuse_if_null()?;
    if mode > RELAXED {
        refuse!(INVALID_VALUE, "capture mode {mode}");
    }
    let mut captures = CAPTURES.lock();
    if stream.capture.load(Relaxed) != 0 {
        refuse!(ILLEGAL_STATE, "the stream is capturing already");
    }
    let id = NEXT.fetch_add(1, Relaxed);
    let thread = std::thread::current().id();
    let streams = vec![(stream, None)];
    captures.insert(id, Capture { mode, thread, origin: stream, broken: false, work: 0, streams });
    COUNT.store(captures.len(), Relaxed);
    stream.capture.store(id, Relaxed);
    Ok(())
}

/// Ends the capture that began on a stream.
pub(crate) fn end(handle: CUstream) -> Outcome<CUgraph> {
    let stream = stream::named(handle)?;
    let mut captures = CAPTURES.lock();
    let id = stream.capture.load(Relaxed);
    let Some(capture) = captures.get_mut(&id) else {
        refuse!(ILLEGAL_STATE, "the stream is not capturing");
    };
    if !std::ptr::eq(capture.origin, stream) {
        capture.broken = true;
        refuse!(STREAM_CAPTURE_UNMATCHED, "the capture began on another stream");
    }
    if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
        capture.broken = true;
        refuse!(STREAM_CAPTURE_WRONG_THREAD, "the capture began on another thread");
    }
    let capture = remove(&mut captures, id).expect("it was just found");
    if capture.broken {
        return Err(Code::STREAM_CAPTURE_INVALIDATED.into());
    }
    if !capture.streams.iter().all(|(inside, _)| capture.leads_to_origin(inside)) {
        refuse!(STREAM_CAPTURE_UNJOINED, "a stream of the capture was not joined back");
    }
    let (index, graph) = GRAPHS.take(|_| Graph { nodes: AtomicU64::new(0) });
    graph.nodes.store(capture.work, Relaxed);
    Ok(CUgraph(GRAPHS.publish(index)))
}

fn remove(captures: &mut BTreeMap<u64, Capture>, id: u64) -> Option<Capture> {
    let capture = captures.remove(&id)?;
    COUNT.store(captures.len(), Relaxed);
    for (stream, _) in &capture.streams {
        stream.capture.store(0, Relaxed);
    }
    Some(capture)
}

/// Frees a graph.
pub(crate) fn destroy_graph(handle: CUgraph) -> Outcome {
    if GRAPHS.revoke(handle.0).is_none() {
        refuse!(INVALID_VALUE, "the graph is {}", GRAPHS.what_is(handle.0));
    }
    GRAPHS.recycle((handle.0 as u32) - 1);
    Ok(())
}

/// A stream's `CUstreamCaptureStatus` and the number of its capture.
pub(crate) fn status(stream: &Stream) -> (u32, u64) {
    let id = stream.capture.load(Relaxed);
    match CAPTURES.lock().get(&id) {
        Some(capture) => (1 + capture.broken as u32, id),
        None => (0, 0),
    }
}

/// Counts work on a capturing stream.
pub(crate) fn note_work(stream: &'static Stream) -> Outcome {
    with(stream, |capture| {
        capture.work += 1;
        if let Some((_, joined)) =
            capture.streams.iter_mut().find(|(inside, _)| std::ptr::eq(*inside, stream))
        {
            *joined = None;
        }
    })
}

/// Notes that an event was recorded on a capturing stream.
pub(crate) fn note_record(stream: &'static Stream) -> Outcome {
    with(stream, |_| ())
}

fn with<T>(stream: &'static Stream, then: impl FnOnce(&mut Capture) -> T) -> Outcome<T> {
    match CAPTURES.lock().get_mut(&stream.capture.load(Relaxed)) {
        Some(capture) if !capture.broken => Ok(then(capture)),
        _ => Err(Code::STREAM_CAPTURE_INVALIDATED.into()),
    }
}

/// A stream waits for an event recorded in a capture on `source`: it comes in, or joins `source` back.
pub(crate) fn join(stream: &'static Stream, id: u64, source: &'static Stream) -> Outcome {
    let mut captures = CAPTURES.lock();
    let own = stream.capture.load(Relaxed);
    if own != 0 && own != id {
        for id in [own, id] {
            captures.entry(id).and_modify(|capture| capture.broken = true);
        }
        refuse!(STREAM_CAPTURE_MERGE, "the wait would merge two captures");
    }
    let Some(capture) = captures.get_mut(&id) else {
        refuse!(INVALID_VALUE, "the event was recorded in a capture that has ended");
    };
    if capture.broken {
        return Err(Code::STREAM_CAPTURE_INVALIDATED.into());
    }
    if own == 0 {
        capture.streams.push((stream, None));
        stream.capture.store(id, Relaxed);
    } else if !std::ptr::eq(source, stream)
        && let Some((_, joined)) =
            capture.streams.iter_mut().find(|(inside, _)| std::ptr::eq(*inside, source))
    {
        *joined = Some(stream);
    }
    Ok(())
}

/// Breaks the capture of a stream, if it has one.
pub(crate) fn invalidate(stream: &Stream) {
    if let Some(capture) = CAPTURES.lock().get_mut(&stream.capture.load(Relaxed)) {
        capture.broken = true;
    }
}

/// Refuses what cannot be asked of a capturing stream, and breaks its capture.
pub(crate) fn refuse_on(stream: &Stream) -> Outcome {
    if stream.capture.load(Relaxed) == 0 {
        return Ok(());
    }
    let broken = status(stream).0 == 2;
    invalidate(stream);
    if broken {
        return Err(Code::STREAM_CAPTURE_INVALIDATED.into());
    }
    refuse!(STREAM_CAPTURE_UNSUPPORTED, "the stream is capturing; the capture is broken");
}

/// Refuses what cannot be asked of a context with capturing streams, and breaks their captures.
pub(crate) fn refuse_on_context(context: &Context) -> Outcome {
    refuse_if(|capture| std::ptr::eq(capture.origin.context(), context))
}

/// Refuses a call that could disturb a capture that this thread has to mind, and breaks that capture.
#[inline]
pub(crate) fn refuse_unsafe() -> Outcome {
    if COUNT.load(Relaxed) == 0 {
        return Ok(());
    }
    let (mode, thread) = (THREAD_MODE.get(), std::thread::current().id());
    refuse_if(|capture| {
        let own = capture.thread == thread && capture.mode != RELAXED;
        let others = capture.mode == GLOBAL;
        match mode {
            GLOBAL => own || others,
            THREAD_LOCAL => own,
            _ => false,
        }
    })
}

fn refuse_if(concerned: impl Fn(&Capture) -> bool) -> Outcome {
    if COUNT.load(Relaxed) == 0 {
        return Ok(());
    }
    let mut any = false;
    for capture in CAPTURES.lock().values_mut().filter(|capture| concerned(capture)) {
        capture.broken = true;
        any = true;
    }
    if any {
        refuse!(STREAM_CAPTURE_UNSUPPORTED, "a stream is capturing; the capture is broken");
    }
    Ok(())
}

/// A stream is destroyed: a capture that began on it ends, any other is broken.
pub(crate) fn forget(stream: &'static Stream) {
    let id = stream.capture.load(Relaxed);
    if id == 0 {
        return;
    }
    let mut captures = CAPTURES.lock();
    if let Some(capture) = captures.get_mut(&id) {
        capture.broken = true;
        if std::ptr::eq(capture.origin, stream) {
            remove(&mut captures, id);
        } else {
            capture.streams.retain(|(inside, _)| !std::ptr::eq(*inside, stream));
            stream.capture.store(0, Relaxed);
        }
    }
}

impl Capture {
    /// Whether following the joins from a stream ends at the origin.
    fn leads_to_origin(&self, mut stream: &'static Stream) -> bool {
        for _ in 0..=self.streams.len() {
            if std::ptr::eq(stream, self.origin) {
                return true;
            }
            let found = self.streams.iter().find(|(inside, _)| std::ptr::eq(*inside, stream));
            let Some((_, Some(next))) = found else { return false };
            stream = next;
        }
        false
    }
}
