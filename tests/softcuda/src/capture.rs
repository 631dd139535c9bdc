//! Stream capture: the streams of a capture, the nodes and edges of its graph, and the calls that
//! invalidate or end it.
//!
//! # Rules
//! 1. A stream's `capture` names the capture that it is part of. An operation on the stream becomes
//!    a node and does not run. The node depends on the nodes in the stream's `after`, and then
//!    replaces them there.
//! 2. An event recorded in a capture stands for the nodes in its stream's `after` at that time. A
//!    stream enters the capture by waiting for such an event. A wait on a stream that is already
//!    part of the capture adds the event's nodes to its `after`.
//! 3. A stream that entered must be joined back before the end: the origin waits for all nodes,
//!    directly or through other streams.
//! 4. A query or a synchronization of a capturing stream or of its context invalidates the
//!    capture, whatever the modes. So does one of the null stream if the capturing stream is
//!    blocking (CUDA programming guide, "Prohibited and Unhandled Operations").
//! 5. A potentially unsafe call invalidates the global captures of all threads, and those of its
//!    own thread that are not relaxed. A call from a thread in thread-local mode invalidates only
//!    the latter, and one from a thread in relaxed mode invalidates none (cuda.h,
//!    `cuThreadExchangeStreamCaptureMode`).
//! 6. cuda.h has no list of such calls. Known ones are: allocating, freeing and page-locking
//!    memory, synchronous copies and fills, queries and synchronizations of events (pytorch
//!    #104555, #105182, #148594), loading modules, unloading them (rocm-systems #11698), and
//!    settings of memory pools (cccl #11360). No document mentions those in
//!    [`Entry::may_be_unsafe`](crate::entries::Entry::may_be_unsafe).

use crate::abi::{CUgraph, CUgraphNode, CUstream};
use crate::context::Context;
use crate::errors::{Code, Outcome, refuse};
use crate::event::Captured;
use crate::graph::{self, Graph, Node};
use crate::stream::{self, Stream};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::ThreadId;

/// `CU_STREAM_CAPTURE_MODE_…`.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

struct Capture {
    id: u64,
    mode: u32,
    thread: ThreadId,
    origin: &'static Stream,
    broken: bool,
    handle: CUgraph,
    graph: &'static Graph,
    /// The origin, then the streams that entered.
    streams: Vec<Inside>,
}

/// A stream that is part of a capture.
struct Inside {
    stream: &'static Stream,
    /// The nodes that the stream's next node depends on.
    after: Vec<usize>,
    /// True once another stream of the capture waited for an event of this one.
    joined: bool,
    /// The handles of the nodes in `after`, kept for the caller of the latest query.
    told: Vec<CUgraphNode>,
}

/// The answer to a query of a stream's capture.
pub(crate) struct Info {
    /// `CUstreamCaptureStatus`.
    pub(crate) status: u32,
    /// The number of the capture.
    pub(crate) id: u64,
    pub(crate) graph: CUgraph,
    /// The nodes that the next node depends on: a pointer to their handles, and their number. The
    /// pointer is valid until the next query of the stream or the end of the capture.
    pub(crate) dependencies: (*const CUgraphNode, usize),
}

static CAPTURES: Mutex<BTreeMap<u64, Capture>> = Mutex::new(BTreeMap::new());
/// The number of captures, which calls load before they take the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD_MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// Sets this thread's mode, which decides the captures that its unsafe calls concern (rule 5).
/// Returns the previous mode.
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
    if stream.is_capturing() {
        refuse!(ILLEGAL_STATE, "the stream is capturing already");
    }
    let id = NEXT.fetch_add(1, Relaxed);
    let thread = std::thread::current().id();
    let (handle, graph) = graph::open();
    let streams = vec![Inside::new(stream, Vec::new())];
    captures.insert(id, Capture { id, mode, thread, origin: stream, broken: false, handle, graph, streams });
    COUNT.store(captures.len(), Relaxed);
    stream.capture.store(id, Relaxed);
    Ok(())
}

/// Ends the capture that began on a stream, and returns its graph.
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
    drop(captures);
    let closed = capture.close();
    if closed.is_err() {
        graph::discard(capture.handle);
    }
    closed.map(|()| capture.handle)
}

fn remove(captures: &mut BTreeMap<u64, Capture>, id: u64) -> Option<Capture> {
    let capture = captures.remove(&id)?;
    COUNT.store(captures.len(), Relaxed);
    for inside in &capture.streams {
        inside.stream.capture.store(0, Relaxed);
    }
    Some(capture)
}

/// Returns true if any stream captures.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Returns the state of a stream's capture.
pub(crate) fn info(stream: &'static Stream) -> Info {
    let mut captures = CAPTURES.lock();
    let id = stream.capture.load(Relaxed);
    let Some(capture) = captures.get_mut(&id) else {
        return Info { status: 0, id: 0, graph: CUgraph(0), dependencies: (std::ptr::null(), 0) };
    };
    let (graph, handle) = (capture.graph, capture.handle);
    if capture.broken {
        return Info { status: 2, id, graph: handle, dependencies: (std::ptr::null(), 0) };
    }
    let inside = capture.inside(stream);
    inside.told = inside.after.iter().map(|node| graph.node_handle(*node)).collect();
    Info { status: 1, id, graph: handle, dependencies: (inside.told.as_ptr(), inside.told.len()) }
}

/// Refuses an operation on a capturing stream that no graph here can hold. The capture continues.
pub(crate) fn refuse_uncaptured(stream: &Stream, what: &str) -> Outcome {
    if stream.is_capturing() {
        refuse!(NOT_SUPPORTED, "{what} cannot be captured here");
    }
    Ok(())
}

/// Adds a node to the graph of a capturing stream.
pub(crate) fn add(stream: &'static Stream, node: Arc<Node>) -> Outcome {
    with(stream, |capture| {
        let graph = capture.graph;
        let inside = capture.inside(stream);
        let node = graph.add(node, std::mem::take(&mut inside.after));
        inside.after = vec![node];
    })
}

/// Returns the moment that an event recorded on a capturing stream stands for.
pub(crate) fn moment(stream: &'static Stream) -> Outcome<Captured> {
    with(stream, |capture| {
        let after = capture.inside(stream).after.clone();
        Captured { capture: capture.id, stream, after }
    })
}

fn with<T>(stream: &'static Stream, then: impl FnOnce(&mut Capture) -> T) -> Outcome<T> {
    match CAPTURES.lock().get_mut(&stream.capture.load(Relaxed)) {
        Some(capture) if !capture.broken => Ok(then(capture)),
        _ => Err(Code::STREAM_CAPTURE_INVALIDATED.into()),
    }
}

/// Lets a stream wait for an event recorded in a capture. The stream enters the capture, or its
/// next node also depends on the event.
pub(crate) fn join(stream: &'static Stream, moment: &Captured) -> Outcome {
    let mut captures = CAPTURES.lock();
    let (own, id) = (stream.capture.load(Relaxed), moment.capture);
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
        capture.streams.push(Inside::new(stream, moment.after.clone()));
        stream.capture.store(id, Relaxed);
        return Ok(());
    }
    let inside = capture.inside(stream);
    for node in &moment.after {
        if !inside.after.contains(node) {
            inside.after.push(*node);
        }
    }
    if !std::ptr::eq(moment.stream, stream)
        && let Some(source) =
            capture.streams.iter_mut().find(|inside| std::ptr::eq(inside.stream, moment.stream))
    {
        source.joined = true;
    }
    Ok(())
}

/// Invalidates the capture of a stream, if it has one.
pub(crate) fn invalidate(stream: &Stream) {
    if let Some(capture) = CAPTURES.lock().get_mut(&stream.capture.load(Relaxed)) {
        capture.broken = true;
    }
}

/// Refuses a call that capturing streams do not allow, and invalidates the stream's capture.
pub(crate) fn refuse_on(stream: &Stream) -> Outcome {
    if !stream.is_capturing() {
        return Ok(());
    }
    let mut captures = CAPTURES.lock();
    let capture = captures.get_mut(&stream.capture.load(Relaxed));
    if capture.is_some_and(|capture| std::mem::replace(&mut capture.broken, true)) {
        return Err(Code::STREAM_CAPTURE_INVALIDATED.into());
    }
    refuse!(STREAM_CAPTURE_UNSUPPORTED, "the stream is capturing; the capture is broken");
}

/// Refuses a call that contexts with capturing streams do not allow, and invalidates their
/// captures.
pub(crate) fn refuse_on_context(context: &Context) -> Outcome {
    refuse_if(|capture| capture.streams.iter().any(|inside| std::ptr::eq(inside.stream.context(), context)))
}

/// Refuses a potentially unsafe call beside captures that concern it (rule 5), and invalidates
/// them.
#[inline]
pub(crate) fn refuse_unsafe() -> Outcome {
    if !any() {
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
    if !any() {
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

/// Removes a stream that is being destroyed from its capture. Ends the capture if it began on the
/// stream, and otherwise invalidates it.
pub(crate) fn forget(stream: &'static Stream) {
    let id = stream.capture.load(Relaxed);
    if id == 0 {
        return;
    }
    let mut captures = CAPTURES.lock();
    let Some(capture) = captures.get_mut(&id) else { return };
    capture.broken = true;
    if !std::ptr::eq(capture.origin, stream) {
        capture.streams.retain(|inside| !std::ptr::eq(inside.stream, stream));
        stream.capture.store(0, Relaxed);
        return;
    }
    let ended = remove(&mut captures, id);
    drop(captures);
    if let Some(ended) = ended {
        graph::discard(ended.handle);
    }
}

impl Inside {
    fn new(stream: &'static Stream, after: Vec<usize>) -> Self {
        Inside { stream, after, joined: false, told: Vec::new() }
    }
}

impl Capture {
    fn inside(&mut self, stream: &'static Stream) -> &mut Inside {
        let found = self.streams.iter_mut().find(|inside| std::ptr::eq(inside.stream, stream));
        found.expect("a stream names the capture that it is inside of")
    }

    /// Checks that the capture is intact and that all its streams were joined back.
    fn close(&self) -> Outcome {
        if self.broken {
            return Err(Code::STREAM_CAPTURE_INVALIDATED.into());
        }
        let mut others = self.streams.iter().filter(|inside| !std::ptr::eq(inside.stream, self.origin));
        let joined = others.all(|inside| inside.joined);
        if !self.graph.close(&self.streams[0].after) || !joined {
            refuse!(STREAM_CAPTURE_UNJOINED, "a stream of the capture was not joined back");
        }
        Ok(())
    }
}
