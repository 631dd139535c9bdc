//! Graphs: work that is captured once and launched repeatedly as one op.
//!
//! The state of a capture in progress is in `shared/capture/`. Each driver decides how it
//! represents a captured [`Plan`].

use crate::edge::Edge;
use crate::order::{AccessMode, ByteRange, Site};
use crate::pending::{DeviceValue, Pending};
use crate::shared::{
    Allocation, Capturing, Device, DeviceShared, Effect, GraphPool, Operand, OwnedOperand, Recorded, Request,
    Stream,
};
use crate::stream::alloc_outside;
use std::fmt;
use std::sync::Arc;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Keep;
use warpline_driver::{Claim, Command, DriverGraph, Error, ErrorKind, Plan, Result, Step, Work};

/// Ops that were captured on a stream with [`Stream::capture`], to be launched as one op any number
/// of times.
///
/// A graph is a cheap handle; all clones are the same graph. It keeps the memory that its ops touch
/// alive. Memory that was allocated during the capture belongs to the graph, and is released when
/// the graph and the values made in the capture are dropped. Each launch writes all of that memory,
/// as if it was allocated anew: contents that no op of the graph writes are lost.
#[derive(Clone)]
pub struct Graph(Arc<Captured>);

struct Captured {
    device: Arc<DeviceShared>,
    executable: DriverGraph,
    plan: Arc<Plan>,
    label: Arc<str>,
    site: Site,
    ops: usize,
    /// Represents the memory of the pool: each launch writes it.
    own: Arc<Allocation>,
    touched: Vec<OwnedOperand<Arc<Allocation>>>,
    /// The memory of the pool, and of the pools of nested graphs.
    claims: Vec<Claim>,
    /// The bytes of the pool alone.
    memory_bytes: usize,
    _keeps: Vec<Keep>,
    _pool: Arc<GraphPool>,
}

/// A value that the closure passed to [`Stream::capture`] can return, such as a [`Pending`], a
/// `Result`, or a tuple of them.
pub trait CaptureOutput {
    /// The value that [`Stream::capture`] returns beside the graph.
    type Value;

    /// Returns the value, or the refusal of the call that should have produced it.
    ///
    /// # Errors
    /// That refusal.
    fn into_captured(self) -> Result<Self::Value>;
}

impl CaptureOutput for () {
    type Value = ();

    fn into_captured(self) -> Result<()> {
        Ok(())
    }
}

impl<T> CaptureOutput for Result<T> {
    type Value = T;

    fn into_captured(self) -> Result<T> {
        self
    }
}

impl<T: DeviceValue> CaptureOutput for Pending<T> {
    type Value = T;

    fn into_captured(self) -> Result<T> {
        self.queued()
    }
}

impl CaptureOutput for Edge {
    type Value = ();

    fn into_captured(self) -> Result<()> {
        self.queued()
    }
}

impl<A: CaptureOutput, B: CaptureOutput> CaptureOutput for (A, B) {
    type Value = (A::Value, B::Value);

    fn into_captured(self) -> Result<(A::Value, B::Value)> {
        let (a, b) = (self.0.into_captured(), self.1.into_captured());
        Ok((a?, b?))
    }
}

impl<A: CaptureOutput, B: CaptureOutput, C: CaptureOutput> CaptureOutput for (A, B, C) {
    type Value = (A::Value, B::Value, C::Value);

    fn into_captured(self) -> Result<(A::Value, B::Value, C::Value)> {
        let (a, b, c) = (self.0.into_captured(), self.1.into_captured(), self.2.into_captured());
        Ok((a?, b?, c?))
    }
}

impl Stream {
    /// Records the work that `f` puts on this stream, instead of running it. Returns a [`Graph`],
    /// and the value of `f`.
    ///
    /// `f` is called immediately, with this stream current. Each op that `f` enqueues is checked,
    /// and recorded with the memory it was given. Each launch of the graph runs the same ops on the
    /// same memory, with its contents at that time. Memory that `f` allocates belongs to the graph,
    /// and its contents are unspecified before the first launch.
    ///
    /// A `Pending` made inside has nothing to wait for: `queued()` returns its value, and awaiting
    /// it returns a `Captured` error. A graph launched inside becomes part of this one.
    ///
    /// Other streams join the capture by waiting for this one (`side.wait_stream(&s)`), and have to
    /// be joined back (`s.wait_stream(&side)`) before `f` returns. Between these two waits, work on
    /// the two streams may run in parallel.
    ///
    /// # Ordering
    /// The streams and waits order the ops of the graph, and the order check applies to them as
    /// usual. The capture does not wait for work put on the streams before it: each launch is
    /// ordered on its own, see [`Graph::launch`].
    ///
    /// # Refused inside a capture
    /// These calls are refused as `Captured`:
    /// - host functions, [`external`](Self::external) work and timed events;
    /// - copies to the host or to another device;
    /// - in `f`, `query` and `synchronize` of a captured stream;
    /// - waits for streams that are not captured;
    /// - calls of other threads that enqueue on the captured streams.
    ///
    /// Queries by other threads, and `Device::synchronize`, ignore the captured work. With
    /// `OrderMode::Wait`, an op that lacks an edge inside the capture is refused, as with `Deny`.
    ///
    /// # Fixed at the capture
    /// Random numbers are drawn at the capture: each launch uses the same ones. A copy from the
    /// host keeps its pinned buffer, and copies the contents that the buffer had at the capture.
    ///
    /// # Errors
    /// - The error that `f` returns, or the refusal of a call in `f` that the program has not seen.
    /// - `Captured` if this stream is being captured already, or a stream that joined was not
    ///   joined back.
    /// - `InvalidArgument` if the ops touch more than 65 534 ranges of memory.
    /// - `OutOfMemory` if there is too little for a library's workspace, which cuBLAS matrix
    ///   products need on each stream.
    /// - `Driver` if the driver cannot make the graph.
    ///
    /// After any error the streams are as before, and the captured work is discarded.
    ///
    /// # Panics
    /// If `f` panics. The capture is ended first.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> warpline::Result<()> {
    /// # let runtime = warpline::Runtime::builder().build()?;
    /// # let stream = runtime.device("cpu".parse()?)?.new_stream()?;
    /// let x = stream.alloc::<f32>(3)?;
    /// let (graph, copy) = stream.capture(|s| {
    ///     let copy = s.alloc::<f32>(3)?;
    ///     s.copy_buffer(&copy, &x).queued()?;
    ///     Ok(copy)
    /// })?;
    /// for value in [1.0, 2.0] {
    ///     stream.fill(&x, value).queued()?;
    ///     graph.launch(&stream).queued()?;
    ///     assert_eq!(stream.read(&copy).blocking_wait()?, [value; 3]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn capture<R: CaptureOutput>(&self, f: impl FnOnce(&Stream) -> R) -> Result<(Graph, R::Value)> {
        let site = Site::here(&"capture");
        // Allocated before the capture begins, so that it belongs to no graph.
        let own = alloc_outside(self.core(), site, 1)?;
        own.ledger.open().forget_accesses();
        let capturing = Capturing::begin(self.core(), site)?;
        let mut made = None;
        self.enter(|| made = Some(f(self)));
        let value = made.expect("the closure was called").into_captured()?;
        let recorded = capturing.finish(site)?;
        Ok((Graph::new(self, site, own, recorded)?, value))
    }
}

impl Graph {
    fn new(stream: &Stream, site: Site, own: Arc<Allocation>, recorded: Recorded) -> Result<Self> {
        let core = stream.core();
        let Recorded { plan, touched, keeps, claims: inner, pool } = recorded;
        let ops = plan.steps.iter().filter(|step: &&Step| !matches!(step.work, Work::Wait { .. })).count();
        let plan = Arc::new(plan);
        let executable = core.device.with_room(|driver| driver.instantiate(&plan));
        let executable = executable.map_err(|error| core.refused(site, &error))?;
        let (segments, memory_bytes) = core.device.memory.pieces_of(pool.id);
        let own_claims = segments.into_iter().map(|addresses| {
            let range = ByteRange::contiguous(0, addresses.end - addresses.start).shifted(addresses.start);
            Claim { range, exclusive: true }
        });
        let claims = own_claims.chain(inner).collect();
        Ok(Graph(Arc::new(Captured {
            device: core.device.clone(),
            executable,
            plan,
            label: core.label.clone(),
            site,
            ops,
            own,
            touched,
            claims,
            memory_bytes,
            _keeps: keeps,
            _pool: pool,
        })))
    }

    /// Runs the graph on `stream`, which must be of the device that the graph was captured on.
    ///
    /// # Ordering
    /// A launch is one op of that stream. It accesses all memory that the graph's ops access, and
    /// the order check applies to all of it. It writes the graph's own memory, so two launches of
    /// one graph have to be ordered.
    ///
    /// # Callers that share a graph
    /// All launches use the same inputs and outputs, and a stream is not a critical section. If two
    /// requests write the inputs, launch and read the answer at once, one can get the answer of the
    /// other, though no edge is missing. Let one request at a time use a graph: hold a mutex from
    /// the first write until the answer has been read, or capture a graph for each request.
    ///
    /// # Cancel safety
    /// Dropping the `Pending` detaches the work. The graph stays alive until the work has finished.
    ///
    /// # On the CPU device
    /// The ops run one after another. Under `Schedule::Seeded` the order of branches is drawn from
    /// the seed.
    ///
    /// # On a CUDA device
    /// The driver decides whether branches run in parallel. Each kernel has the priority of the
    /// stream that it was captured on, whichever stream the graph is launched on. This also holds
    /// for the kernels of a nested graph, a graph that was launched in the capture, with one
    /// exception. The kernels of the nested graph's first stream have the priority of the stream
    /// that the nested graph was launched on.
    ///
    /// # Errors
    /// In the `Pending`: `DeviceMismatch` if the stream is on another device or of another runtime,
    /// and the errors of any op, as for [`Stream::launch`].
    #[track_caller]
    pub fn launch(&self, stream: &Stream) -> Pending<()> {
        let site = Site::here(&"graph");
        let graph = &*self.0;
        let range = ByteRange::contiguous(0, 1);
        let own = Operand { allocation: &graph.own, range, access: AccessMode::Write };
        let touched = graph.touched.iter().map(|OwnedOperand { allocation, range, access }| Operand {
            allocation,
            range: *range,
            access: *access,
        });
        let operands: Vec<_> = std::iter::once(own).chain(touched).collect();
        let core = stream.core();
        if !Arc::ptr_eq(&core.device, &graph.device) {
            let (there, here) = (graph.device.id, core.device.id);
            let of_another = if here == there { " of another runtime" } else { "" };
            let why = format!(
                "{}: the graph was captured on {there} and the stream is on {here}{of_another}; launch it on \
                 a stream of the device it was captured on",
                site.on(&core.label)
            );
            return Pending::refused_on(core, Error::new(ErrorKind::DeviceMismatch, why).at(site));
        }
        let effect = Effect::Graph { plan: &graph.plan, claims: &graph.claims };
        let request = Request::with_effect("graph", site, &operands, effect);
        let place =
            core.enqueue(&mut request.keeping(self.0.clone()), |_| Command::Graph(graph.executable.clone()));
        Pending::value(core, place, ())
    }

    /// Returns the device that it was captured on.
    pub fn device(&self) -> Device {
        Device::of(self.0.device.clone())
    }

    /// Returns the number of captured ops; waits do not count.
    pub fn len(&self) -> usize {
        self.0.ops
    }

    /// Returns true if the graph has no ops.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of streams that it was captured on.
    pub fn streams(&self) -> usize {
        self.0.plan.streams.len()
    }

    /// Returns the bytes of device memory that it holds for allocations in its capture and for the
    /// workspaces of libraries.
    pub fn memory_bytes(&self) -> usize {
        self.0.memory_bytes
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = &*self.0;
        let (ops, device, site) = (graph.ops, graph.device.id, graph.site.on(&graph.label));
        write!(f, "Graph({ops} ops, captured on {device} by {site})")
    }
}
