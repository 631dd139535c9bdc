//! Builds CUDA graphs from plans, and launches them.
//!
//! A plan's steps are enqueued once more, on pooled streams that CUDA captures. The graph
//! that results is launched with one call.
//!
//! # Rules
//! 1. The capture ends before `instantiate` returns, and no user code runs meanwhile. Its mode is
//!    thread-local: other threads continue.
//! 2. Everything that a capture forbids is done before it: kernels are loaded, shared memory is
//!    requested, streams are taken, and libraries are prepared.
//! 3. Each of the plan's streams is a CUDA stream of the same priority, which its kernels get. An
//!    edge is an event, recorded directly behind the step it stands for. At the end all streams are
//!    joined to the first, which CUDA demands even of those that did nothing.
//! 4. A library works in memory of the graph, which no other work uses between launches. Its handle
//!    is reserved before the capture.
//! 5. The streams of a capture return to the pool unchanged: nothing has run on them. After a
//!    failed capture, a stream that CUDA reports as still capturing does not return.

use super::capturing::{Relaxed, is_captured};
use super::copy;
use super::launch;
use super::raw_streams::RawStream;
use crate::api::{Answer, CUstream, opened};
use crate::completion::events::PooledEvent;
use crate::context::Context;
use crate::modules::functions::{Function, no_such_shared};
use crate::modules::handles::{Handles, Reserved};
use crate::modules::library;
use crate::modules::requirements;
use crate::work::gate::note_not_freed;
use cudarc::driver::sys::{CUgraph, CUgraphExec};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use warpline_driver::kernel::{Arg, Args, Kernel, LaunchConfig, LibraryDriver, Workspace};
use warpline_driver::{DriverError, DriverGraph, Launch, Plan, Step, Work};

use std::sync::Arc;

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: u32 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`: a kernel gets the priority of the stream it was
/// captured on, not of the launching stream.
const USE_NODE_PRIORITY: u64 = 8;

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Executable {
    context: &'static Context,
    raw: CUgraphExec,
    /// Held during a launch. CUDA does not promise that two threads may launch one graph at
    /// the same time, and without the order check two threads may try to.
    launching: Mutex<()>,
}

// SAFETY: a graph may be launched and destroyed from any thread, by one at a time: launches take a
// lock, and the last holder destroys it.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Executable {
    /// Launches the graph on `stream`. The graph's context is current.
    pub(crate) fn launch(&self, stream: CUstream) -> Answer {
        let _launching = self.launching.lock();
        // SAFETY: cuGraphLaunch takes a live graph and a live stream of one context.
        unsafe { opened().cuGraphLaunch(self.raw, stream) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if warpline_driver::process::is_ending() {
            return;
        }
        let (context, raw) = (self.context, Handle(self.raw));
        warpline_driver::background::run_where_it_may_block(move || {
            let Handle(raw) = { raw };
            let destroyed = context.enter_relaxed().and_then(|_entered| {
                // SAFETY: cuGraphExecDestroy takes a graph that is no longer in use: this was the
                // last holder, and the timeline of a launch holds it.
                unsafe { opened().cuGraphExecDestroy(raw) }
            });
            if let Err(failed) = destroyed {
                note_not_freed(context, failed);
            }
        });
    }
}

/// The raw handle of a graph, on its way to the thread that destroys it.
struct Handle(CUgraphExec);

// SAFETY: as for `Executable`.
unsafe impl Send for Handle {}

/// Makes a graph from `plan`.
pub(crate) fn instantiate(context: &'static Context, plan: &Plan) -> Result<DriverGraph, DriverError> {
    let entered = context.enter().map_err(|failed| context.driver_error(failed))?;
    let functions = functions(context, plan)?;
    let mut streams = Vec::with_capacity(plan.streams.len());
    for stream in &plan.streams {
        match context.work.capture_streams.take(context, stream.priority) {
            Ok(stream) => streams.push(stream),
            Err(failed) => {
                give_back(context, streams);
                return Err(context.driver_error(failed));
            }
        }
    }
    let raw: Vec<CUstream> = streams.iter().map(|stream| stream.stream).collect();
    let relaxed = Relaxed::new();
    let reserved = reserve(context, plan);
    // Relaxed mode ends before our own capture, so that a forbidden call during it is found.
    drop(relaxed);
    let reserved = match reserved {
        Ok(reserved) => reserved,
        Err(error) => {
            give_back(context, streams);
            return Err(error);
        }
    };
    let captured = capture(context, plan, &functions, &raw, &reserved.handles);
    drop(reserved);
    if captured.is_err() {
        streams.retain(|stream| is_captured(stream.stream) == Ok(false));
    }
    give_back(context, streams);
    let (graph, _events) = captured?;
    let executable = graph.instantiate().map_err(|failed| context.driver_error(failed));
    drop(graph);
    drop(entered);
    Ok(Arc::new(Executable { context, raw: executable?, launching: Mutex::new(()) }))
}

fn give_back(context: &Context, streams: Vec<RawStream>) {
    streams.into_iter().for_each(|stream| context.work.capture_streams.give_back(stream, None));
}

/// Returns the functions of all launches, ready to be launched.
fn functions(context: &'static Context, plan: &Plan) -> Result<HashMap<usize, Function>, DriverError> {
    let mut functions = HashMap::new();
    for step in &plan.steps {
        let Work::Launch(Launch { kernel, config, .. }) = &step.work else { continue };
        let at = |error| told(step, error);
        let function = context.modules.functions.of(context, kernel).map_err(at)?;
        context.modules.functions.allow_shared(function, config.shared_bytes).map_err(|failed| {
            at(match failed.is_fault() {
                true => context.driver_error(failed),
                false => no_such_shared(context, kernel, config.shared_bytes, failed),
            })
        })?;
        functions.insert(std::ptr::from_ref::<Kernel>(kernel) as usize, function);
        for kernel in kernel.library.map_or(&[][..], |library| library.kernels) {
            context.modules.functions.of(context, kernel).map_err(at)?;
        }
    }
    Ok(functions)
}

/// Returns how many bytes of workspace the libraries want on each of the plan's streams.
pub(crate) fn workspace_bytes(context: &Context, plan: &Plan) -> Result<Vec<usize>, DriverError> {
    let mut bytes = vec![0; plan.streams.len()];
    for step in &plan.steps {
        if let Work::Launch(Launch { kernel: Kernel { library: Some(library), .. }, .. }) = &step.work {
            let wanted = library::workspace_bytes(context, library.provider);
            let wanted = wanted.map_err(|error| told(step, error))?.map_or(0, |wanted| *wanted.end());
            bytes[step.stream] = wanted.max(bytes[step.stream]);
        }
    }
    Ok(bytes)
}

/// Reserves a handle of each library that the steps call.
///
/// The steps are enqueued one after the other, so one handle serves all streams.
fn reserve(context: &'static Context, plan: &Plan) -> Result<Reserved, DriverError> {
    let reserved = Reserved::none(context);
    for step in &plan.steps {
        if let Work::Launch(Launch { kernel: Kernel { library: Some(library), .. }, .. }) = &step.work
            && plan.streams[step.stream].workspace.is_some()
        {
            reserved.add(library.provider).map_err(|error| told(step, error))?;
        }
    }
    Ok(reserved)
}

/// A capturing stream, as a library sees it.
struct Captured {
    context: &'static Context,
    stream: CUstream,
}

impl LibraryDriver for Captured {
    unsafe fn launch(
        &self,
        kernel: &'static Kernel,
        config: LaunchConfig,
        args: &[Arg],
    ) -> Result<(), String> {
        // Loaded before the capture.
        let function =
            self.context.modules.functions.of(self.context, kernel).map_err(|error| error.to_string())?;
        let launch = Launch { kernel, config, args: Args::from_slice(args), extras: None };
        launch::launch(&launch, function, self.stream).map_err(|failed| failed.to_string())
    }
}

/// The events recorded behind steps, by stream and step number.
type Events = HashMap<(usize, u64), PooledEvent>;

/// The graph that CUDA captured.
struct Graph(CUgraph);

impl Graph {
    fn instantiate(&self) -> Answer<CUgraphExec> {
        let (_relaxed, mut executable) = (Relaxed::new(), std::ptr::null_mut());
        // SAFETY: cuGraphInstantiateWithFlags takes a live graph and writes an executable one.
        unsafe { opened().cuGraphInstantiateWithFlags(&raw mut executable, self.0, USE_NODE_PRIORITY) }?;
        Ok(executable)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _relaxed = Relaxed::new();
        // SAFETY: cuGraphDestroy takes a live graph; executables made from it are independent of
        // it.
        let _ = unsafe { opened().cuGraphDestroy(self.0) };
    }
}

/// Captures the plan's steps. The events must live until the capture has ended.
fn capture(
    context: &'static Context,
    plan: &Plan,
    functions: &HashMap<usize, Function>,
    streams: &[CUstream],
    handles: &Handles,
) -> Result<(Graph, Events), DriverError> {
    let mut events = Events::new();
    let origin = streams[0];
    // SAFETY: cuStreamBeginCapture takes a live stream that is not captured.
    unsafe { opened().cuStreamBeginCapture_v2(origin, THREAD_LOCAL) }
        .map_err(|failed| context.driver_error(failed))?;
    let enqueued = enqueue(context, plan, functions, streams, handles, &mut events);
    let graph = end(origin).inspect_err(|_| {
        // While it captures, calls that a capture forbids fail on this thread.
        if is_captured(origin) != Ok(false) {
            let _ = end(origin);
        }
    });
    enqueued?;
    let graph = graph.map_err(|failed| context.driver_error(failed))?;
    Ok((graph, events))
}

fn end(origin: CUstream) -> Answer<Graph> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: cuStreamEndCapture takes a live stream, and writes a graph, or null.
    unsafe { opened().cuStreamEndCapture(origin, &raw mut graph) }?;
    Ok(Graph(graph))
}

/// Enqueues all steps, and an edge from the end of each other stream to the first stream.
fn enqueue(
    context: &'static Context,
    plan: &Plan,
    functions: &HashMap<usize, Function>,
    streams: &[CUstream],
    handles: &Handles,
    events: &mut Events,
) -> Result<(), DriverError> {
    let waited: HashSet<(usize, u64)> = plan.steps.iter().filter_map(Step::waits_for).collect();
    let record = |at: (usize, u64)| -> Result<PooledEvent, DriverError> {
        context
            .completion
            .events
            .record(context, streams[at.0])
            .map_err(|failed| context.driver_error(failed))
    };
    if waited.contains(&(0, 0)) {
        events.insert((0, 0), record((0, 0))?);
    }
    for step in &plan.steps {
        let stream = streams[step.stream];
        let library = (plan.streams[step.stream].workspace, handles);
        perform(context, step, library, functions, stream, events).map_err(|error| told(step, error))?;
        let here = (step.stream, step.number);
        if waited.contains(&here) {
            events.insert(here, record(here)?);
        }
    }
    for side in 1..streams.len() {
        let event = record((side, u64::MAX))?;
        // SAFETY: cuStreamWaitEvent takes a live stream and a live event of one context.
        unsafe { opened().cuStreamWaitEvent(streams[0], event.raw(), 0) }
            .map_err(|failed| context.driver_error(failed))?;
        events.insert((side, u64::MAX), event);
    }
    Ok(())
}

fn perform(
    context: &'static Context,
    step: &Step,
    (workspace, handles): (Option<Workspace>, &Handles),
    functions: &HashMap<usize, Function>,
    stream: CUstream,
    events: &Events,
) -> Result<(), DriverError> {
    let done = match &step.work {
        Work::Copy(copy) if copy.width_bytes == 0 || copy.height == 0 => Ok(()),
        Work::Copy(copy) => copy::copy(copy, stream),
        Work::Fill(fill) if fill.width_bytes == 0 || fill.height == 0 => Ok(()),
        Work::Fill(fill) => copy::fill(fill, stream).map_err(|(_, failed)| failed),
        Work::Launch(launch) => {
            if let Some(library) = launch.kernel.library {
                let driver = &Captured { context, stream };
                let (label, ticket, site) = ("of a graph", step.number, step.site);
                let (stream, may_make) = (stream.cast(), false);
                let to = library::Target {
                    context,
                    stream,
                    label,
                    ticket,
                    site,
                    workspace,
                    handles,
                    may_make,
                    driver,
                };
                if library::enqueue(library, launch, &to)? {
                    return Ok(());
                }
            }
            let function = functions[&(std::ptr::from_ref(launch.kernel) as usize)];
            launch::launch(launch, function, stream).map(Ok).or_else(|failed| {
                match requirements::explain_launch(context, &launch.config, function, failed) {
                    Some(why) => Err(DriverError::Refused(why)),
                    None => Ok(Err(failed)),
                }
            })?
        }
        Work::Wait { stream: other, number } => {
            let event = &events[&(*other, *number)];
            // SAFETY: cuStreamWaitEvent takes a live stream and a live event of one context.
            unsafe { opened().cuStreamWaitEvent(stream, event.raw(), 0) }
        }
    };
    done.map_err(|failed| context.driver_error(failed))
}

/// Names the step in its error.
#[cold]
fn told(step: &Step, error: DriverError) -> DriverError {
    match error {
        DriverError::OutOfMemory(_) => error,
        DriverError::Refused(why) | DriverError::Halfway(why) | DriverError::Captured(why) => {
            let text = format!("{} in it: {why}", step.site);
            DriverError::Refused(why.with_text(text))
        }
    }
}
