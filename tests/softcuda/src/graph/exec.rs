//! Executable graphs: instantiation, launch, update and destruction.
//!
//! # Rules
//! 1. A launch is one piece of its stream's work. It shares the program, so that the graph may be
//!    destroyed, and the executable graph destroyed or updated, while the launch is in flight.
//! 2. Launches of one executable graph run one after the other, in the order of the calls, on any
//!    streams.
//! 3. A launch on a capturing stream is refused and invalidates the capture.

use super::order::Order;
use super::program::Program;
use super::update::Change;
use super::{Run, named as graph_named};
use crate::abi::{CUgraph, CUgraphExec, CUstream};
use crate::capture;
use crate::errors::{Outcome, refuse};
use crate::plan;
use crate::slab::Slab;
use crate::stream::{self, Stream};
use crate::work::Work;
use parking_lot::Mutex;
use std::sync::Arc;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`.
const DEVICE_LAUNCH: u64 = 4;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`: without effect, since no graph allocates.
const AUTO_FREE: u64 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`
const BY_PRIORITY: u64 = 8;

/// An executable graph.
pub(crate) struct Exec {
    index: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None once the executable graph is destroyed.
    program: Option<Arc<Program>>,
    by_priority: bool,
    launches: u64,
    /// The stream and the ticket of the newest launch.
    last: Option<(&'static Stream, u64)>,
}

static EXECS: Slab<Exec> = Slab::new(10);

/// Instantiates a graph.
pub(crate) fn instantiate(handle: CUgraph, flags: u64) -> Outcome<CUgraphExec> {
    if flags == DEVICE_LAUNCH {
        refuse!(NOT_SUPPORTED, "graphs are not launched from the device");
    }
    if flags & !(AUTO_FREE | BY_PRIORITY) != 0 {
        refuse!(INVALID_VALUE, "flags {flags:#x}");
    }
    let program = Arc::new(graph_named(handle)?.program()?);
    program.check()?;
    let (index, exec) = EXECS.take(|index| Exec { index, state: Mutex::default() });
    *exec.state.lock() =
        State { program: Some(program), by_priority: flags & BY_PRIORITY != 0, ..State::default() };
    Ok(CUgraphExec(EXECS.publish(index)))
}

fn named(handle: CUgraphExec) -> Outcome<&'static Exec> {
    match EXECS.get(handle.0) {
        Some(exec) => Ok(exec),
        None => refuse!(INVALID_VALUE, "the executable graph is {}", EXECS.what_is(handle.0)),
    }
}

/// Destroys an executable graph. Launches in flight run to their end.
pub(crate) fn destroy(handle: CUgraphExec) -> Outcome {
    named(handle)?;
    if let Some(exec) = EXECS.revoke(handle.0) {
        let ended = std::mem::take(&mut *exec.state.lock());
        drop(ended);
        EXECS.recycle(exec.index);
    }
    Ok(())
}

/// Updates an executable graph with a graph, from the next launch on. Returns the change that
/// prevents the update, if any; then the executable graph stays unchanged.
pub(crate) fn update(handle: CUgraphExec, graph: CUgraph) -> Outcome<Option<Change>> {
    let exec = named(handle)?;
    let new = Arc::new(graph_named(graph)?.program()?);
    new.check()?;
    let mut state = exec.state.lock();
    let Some(program) = &mut state.program else {
        refuse!(INVALID_VALUE, "the executable graph is destroyed");
    };
    let change = Change::between(program, &new);
    let unused = if change.is_none() { std::mem::replace(program, new) } else { new };
    drop(state);
    drop(unused);
    Ok(change)
}

/// Checks the arguments of an upload. There is nothing to move.
pub(crate) fn upload(handle: CUgraphExec, on: CUstream) -> Outcome {
    let stream = stream::named_here(on)?;
    capture::refuse_on(stream)?;
    named(handle)?.program()?.check()
}

/// Enqueues a launch on a stream.
pub(crate) fn launch(handle: CUgraphExec, on: CUstream) -> Outcome {
    let stream = stream::named_here(on)?;
    let exec = named(handle)?;
    // Strict: a driver for CUDA 13 refused this, and no document says that it is allowed.
    capture::refuse_on(stream)?;
    let program = exec.program()?;
    program.check()?;
    if plan::get().immediate {
        for node in &program.nodes {
            node.execute_at_call().map_err(|fault| {
                node.context.poison(fault.code, &fault.why);
                fault.code
            })?;
        }
        return Ok(());
    }
    let mut state = exec.state.lock();
    if let Some((before, ticket)) = state.last
        && !std::ptr::eq(before, stream)
        && !before.reached(ticket)
    {
        before.context().report()?;
        stream.enqueue(Work::Wait { on: before, ticket })?;
    }
    let order = Order::of_launch(state.launches, plan::get().graph_seed, state.by_priority);
    let run = Run::new(program, order);
    let ticket = stream.enqueue(Work::Graph(Box::new(run)))?;
    state.launches += 1;
    state.last = Some((stream, ticket));
    Ok(())
}

impl Exec {
    fn program(&self) -> Outcome<Arc<Program>> {
        match &self.state.lock().program {
            Some(program) => Ok(Arc::clone(program)),
            None => refuse!(INVALID_VALUE, "the executable graph is destroyed"),
        }
    }
}
