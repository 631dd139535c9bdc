//! Calls to the runtime by code that the runtime itself calls: every public method, from every such
//! caller, on every backend.
//!
//! [`METHODS`] assigns a rule to each method, and [`Rule::says`] gives the outcome of that rule for
//! each caller. Every cell runs twice: about the stream that the caller holds up, and about another
//! stream. A cell that hangs ends its process, and the last line of output names it.

use crate::support;
use crate::support::software::in_child;
use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use tracing_subscriber::layer::SubscriberExt;
use warpline::prelude::*;
use warpline::{Graph, Permit, Priority, Result, StreamLease, kernels, reads, writes};

/// Code that the runtime calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    HostFunction,
    /// The drop of what a host function captured.
    Captured,
    /// A kernel's CPU form.
    Twin,
    Waker,
    /// The drop of the owner of lent memory.
    Owner,
}

const CALLERS: [Caller; 5] =
    [Caller::HostFunction, Caller::Captured, Caller::Twin, Caller::Waker, Caller::Owner];

/// The expected outcome of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Never waits: looks, polls, drops.
    Free,
    /// Asks the device or the driver.
    Asks,
    /// Blocks the thread until an op has finished.
    Blocks,
}
use Rule::{Asks, Blocks, Free};

impl Rule {
    /// Returns the kind of the expected error, or `None` if the call succeeds.
    fn says(self, caller: Caller) -> Option<ErrorKind> {
        let holds_the_device = !matches!(caller, Caller::Waker | Caller::Owner);
        match self {
            Free => None,
            Asks => holds_the_device.then_some(ErrorKind::Reentrant),
            Blocks => (caller != Caller::Owner).then_some(ErrorKind::Reentrant),
        }
    }
}

/// The outcome of a call.
type Seen = Option<ErrorKind>;

fn of<T>(result: Result<T>) -> Seen {
    result.err().map(|error| error.kind())
}

/// Polls a future once. A future that is still pending was not refused.
fn polled<T>(future: impl Future<Output = Result<T>>) -> Seen {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => of(result),
        Poll::Pending => None,
    }
}

/// The values that methods are called on, made before the caller runs.
struct Kit {
    device: Device,
    stream: Stream,
    side: Stream,
    x: Buffer<f32>,
    y: Buffer<f32>,
    event: Event,
    timed: [Event; 2],
    graph: Graph,
    limited: Stream,
    parts: Mutex<Parts>,
}

/// The values that methods consume.
#[derive(Default)]
struct Parts {
    host: Option<Pinned<f32>>,
    /// An op behind the caller on its stream, or an op on another stream.
    behind: Option<Pending<()>>,
    /// An op that has finished.
    over: Option<Pending<()>>,
    /// A `synchronize` that has finished.
    synchronized: Option<Pending<()>>,
    runtime: Option<Runtime>,
    graph: Option<Graph>,
    lease: Option<StreamLease>,
    permit: Option<Permit>,
    gate: Option<warpline::testing::Gate>,
    pinned: Option<Pinned<u8>>,
    registered: Option<Pinned<u8>>,
}

impl Kit {
    fn take<T>(&self, of: impl FnOnce(&mut Parts) -> &mut Option<T>) -> T {
        of(&mut self.parts.lock().unwrap()).take().expect("each method takes a part once")
    }
}

type Method = fn(&Kit) -> Seen;

const FOUR: LaunchConfig = LaunchConfig::linear(1, 4);

#[rustfmt::skip]
const METHODS: &[(&str, Rule, Method)] = &[
    ("Stream::alloc", Asks, |kit| of(kit.stream.alloc::<f32>(4))),
    ("Stream::alloc, of a new segment", Asks, |kit| of(kit.stream.alloc::<u8>(30 << 20))),
    ("Stream::alloc_zeroed", Asks, |kit| of(kit.stream.alloc_zeroed::<f32>(4))),
    ("Stream::launch", Asks, |kit| polled(kit.stream.launch(kernels::axpy(4, 1.0, &kit.x, &kit.y), FOUR))),
    ("Stream::fill", Asks, |kit| polled(kit.stream.fill(&kit.x, 2.0))),
    ("Stream::copy", Asks, |kit| polled(kit.stream.copy_buffer(&kit.y, &kit.x))),
    ("Stream::copy_peer", Asks, |kit| polled(kit.stream.copy_buffer_peer(&kit.y, &kit.x))),
    ("Stream::write", Asks, |kit| polled(kit.stream.write(&kit.x, &[1.0; 4]))),
    ("Stream::write_vec", Asks, |kit| polled(kit.stream.write_vec(&kit.x, vec![1.0; 4]))),
    ("Stream::read", Asks, |kit| polled(kit.stream.read(&kit.x))),
    ("Stream::read_one", Asks, |kit| polled(kit.stream.read_one(&kit.x.slice(0..1).unwrap()))),
    ("Stream::copy_to_device", Asks, |kit| match kit.stream.copy_to_device(kit.take(|parts| &mut parts.host)) {
        Ok((_, sent)) => polled(sent),
        Err(error) => of::<()>(Err(error)),
    }),
    ("Stream::copy_into", Asks, |kit| polled(kit.stream.copy_into(&kit.x, kit.take(|parts| &mut parts.host)))),
    ("Stream::copy_from_shared", Asks, |kit| {
        polled(kit.stream.copy_from_shared(&kit.x, &Arc::new(kit.take(|parts| &mut parts.host))))
    }),
    ("Stream::copy_to_host", Asks, |kit| polled(kit.stream.copy_to_host(&kit.x))),
    ("Stream::call", Asks, |kit| polled(kit.stream.call(|| ()))),
    ("Stream::wait_stream", Asks, |kit| polled(kit.stream.wait_stream(&kit.side).into_future())),
    ("Stream::wait_event", Asks, |kit| polled(kit.stream.wait_event(&kit.event).into_future())),
    ("Stream::wait_for", Asks, |kit| polled(kit.side.wait_for(&kit.x).into_future())),
    ("Stream::record_event", Asks, |kit| polled(kit.stream.record_event().into_future())),
    ("Stream::record_timed_event", Asks, |kit| of(kit.stream.record_timed_event())),
    ("Stream::query", Asks, |kit| of(kit.stream.query())),
    ("Stream::synchronize", Asks, |kit| polled(kit.stream.synchronize())),
    ("Stream::external", Asks, |kit| {
        // SAFETY: the host function touches no device memory.
        polled(unsafe { kit.stream.external(reads([&kit.x]), writes([&kit.y]), |raw| raw.call(|| ())) })
    }),
    ("Stream::capture", Asks, |kit| of(kit.stream.capture(|s| s.fill(&kit.x, 1.0)))),
    ("Stream::borrow_memory", Asks, |kit| {
        // SAFETY: it is the memory of `kit.x`, which outlives the lent buffer, and nothing uses
        // that buffer.
        of(unsafe { kit.stream.borrow_memory::<f32>(kit.x.device_ptr().0, 4, ()) })
    }),
    ("Stream::buffer_from_pinned", Asks, |kit| {
        // Devices other than the CPU refuse it as unsupported, where it may be called.
        let made = kit.stream.buffer_from_pinned(kit.take(|parts| &mut parts.host));
        of(made).filter(|&kind| kind != ErrorKind::Unsupported)
    }),
    ("Stream::hold", Asks, |kit| of(kit.stream.hold().map(drop))),
    ("Stream::room", Free, |kit| polled(kit.limited.room())),
    ("Permit::enter", Asks, |kit| {
        let permit = kit.take(|parts| &mut parts.permit);
        polled(permit.enter(|| kit.limited.call(|| ())))
    }),
    ("Stream::enter", Free, |kit| of(kit.stream.enter(|| Stream::current(&kit.device)))),
    ("Stream::issued and its like", Free, |kit| {
        let stream = &kit.stream;
        let _ = (stream.device(), stream.id(), stream.label(), stream.issued(), stream.completed());
        (stream.priority() != Priority::Normal).then_some(ErrorKind::Driver)
    }),
    ("Stream, dropped", Free, |kit| {
        let stream = kit.take(|parts| &mut parts.lease);
        let handle = Stream::clone(&stream);
        drop((handle, stream));
        None
    }),
    ("Graph::launch", Asks, |kit| polled(kit.graph.launch(&kit.stream))),
    ("Graph, dropped", Free, |kit| {
        drop(kit.take(|parts| &mut parts.graph));
        None
    }),
    ("Device::default_stream", Free, |kit| of(kit.device.default_stream())),
    ("Device::default_stream, for the first time", Asks, |kit| {
        let runtime = kit.take(|parts| &mut parts.runtime);
        of(runtime.device(kit.device.id()).and_then(|device| device.default_stream()))
    }),
    ("Device::new_stream", Asks, |kit| of(kit.device.new_stream())),
    ("StreamBuilder::build", Asks, |kit| of(kit.device.stream().max_in_flight(1).build())),
    ("StreamPool::try_lease", Asks, |kit| of(kit.device.stream_pool(1).unwrap().try_lease())),
    ("StreamPool::lease", Asks, |kit| polled(kit.device.stream_pool(1).unwrap().lease())),
    ("Device::alloc", Asks, |kit| of(kit.device.alloc::<f32>(4))),
    ("Device::alloc_zeroed", Asks, |kit| of(kit.device.alloc_zeroed::<f32>(4))),
    ("Device::synchronize", Asks, |kit| polled(kit.device.synchronize())),
    ("Device::pinned, cached", Free, |kit| polled(kit.device.pinned::<u8>(100))),
    ("Device::pinned, more of it", Asks, |kit| polled(kit.device.pinned::<u8>(3 << 20))),
    ("Device::blocking_pinned, cached", Free, |kit| of(kit.device.blocking_pinned::<u8>(100))),
    ("Device::blocking_pinned, more of it", Asks, |kit| of(kit.device.blocking_pinned::<u8>(3 << 20))),
    ("Device::pin", Asks, |kit| of(kit.device.pin(vec![0u8; 8192]))),
    ("Device::load", Asks, |kit| of(kit.device.load([&kernels::RELU]))),
    ("Device::suggest_config", Asks, |kit| of(kit.device.suggest_config(&kernels::AXPY, 1000, 0))),
    ("Device::can_access_peer", Asks, |kit| of(kit.device.can_access_peer(&kit.device))),
    ("Device::sibling", Free, |kit| of(kit.device.sibling(kit.device.id()))),
    ("Device::empty_cache", Free, |kit| {
        kit.device.empty_cache();
        None
    }),
    ("Device::memory_snapshot", Free, |kit| {
        kit.device.memory_snapshot().segments.is_empty().then_some(ErrorKind::Driver)
    }),
    ("Device::memory_summary", Free, |kit| kit.device.memory_summary().is_empty().then_some(ErrorKind::Driver)),
    ("Device::properties and its like", Free, |kit| {
        let device = &kit.device;
        let _ = (device.id(), device.ordinal(), device.runs_in_turns(), device.generator().take(1));
        let _ = (device.memory_stats(), device.pinned_stats(), device.free_bytes(), device.stream_pool(1).unwrap().size());
        device.reset_peak_memory_stats();
        (device.properties().multiprocessors == 0).then_some(ErrorKind::Driver)
    }),
    ("Device::health", Free, |kit| kit.device.health().fault().map(|fault| fault.kind())),
    ("Device::watch_health", Free, |kit| kit.device.watch_health().state().fault().map(|fault| fault.kind())),
    ("Device::needs_new_process", Free, |kit| kit.device.needs_new_process().then_some(ErrorKind::Fault)),
    ("Device::fault", Free, |kit| kit.device.fault().map(|fault| fault.kind())),
    ("Buffer::slice and its like", Free, |kit| {
        let view = kit.x.slice(0..4).and_then(|x| x.as_matrix(2)).and_then(|x| x.columns(0..1)?.rows(0..1));
        kit.y.accept_contents();
        let _ = (kit.x.device(), kit.x.device_ptr(), kit.x.len(), kit.x.is_same(&kit.y), kit.x.clone());
        of(view)
    }),
    ("Buffer, dropped", Free, |kit| {
        drop(kit.x.clone());
        None
    }),
    ("Pinned, dropped", Free, |kit| {
        drop((kit.take(|parts| &mut parts.pinned), kit.take(|parts| &mut parts.registered)));
        None
    }),
    ("Event::ticket", Free, |kit| (kit.event.ticket() == 0).then_some(ErrorKind::Driver)),
    ("Event::query", Asks, |kit| of(kit.event.query())),
    ("Event::synchronize", Free, |kit| polled(kit.event.synchronize())),
    ("Event::synchronize, blocking", Blocks, |kit| of(kit.event.synchronize().blocking_wait())),
    ("Event::elapsed_since", Asks, |kit| of(kit.timed[1].elapsed_since(&kit.timed[0]))),
    ("Pending, polled", Free, |kit| polled(kit.take(|parts| &mut parts.behind))),
    ("Pending, dropped", Free, |kit| {
        drop(kit.take(|parts| &mut parts.behind));
        None
    }),
    ("Pending::query", Asks, |kit| of(kit.take(|parts| &mut parts.behind).query())),
    ("Pending::queued", Free, |kit| of(kit.take(|parts| &mut parts.behind).queued())),
    ("Pending::blocking_wait, what comes behind", Blocks, |kit| of(kit.take(|parts| &mut parts.behind).blocking_wait())),
    ("Pending::blocking_wait, what is over", Blocks, |kit| of(kit.take(|parts| &mut parts.over).blocking_wait())),
    ("Pending, polled when it is over", Free, |kit| polled(kit.take(|parts| &mut parts.over))),
    ("Stream::synchronize, polled when it is over", Free, |kit| polled(kit.take(|parts| &mut parts.synchronized))),
    ("Stream::call and Pending::blocking_wait", Blocks, |kit| of(kit.side.call(|| ()).blocking_wait())),
    ("Stream::synchronize and Pending::blocking_wait", Blocks, |kit| of(kit.stream.synchronize().blocking_wait())),
    ("Device::synchronize and Pending::blocking_wait", Blocks, |kit| of(kit.device.synchronize().blocking_wait())),
    ("Gate, opened", Free, |kit| {
        kit.take(|parts| &mut parts.gate).open();
        None
    }),
    ("Tensor, an op", Asks, |kit| polled(kit.stream.enter(|| Tensor::ones([4], &kit.device)))),
    ("Runtime::device and its like", Free, |kit| {
        let runtime = kit.take(|parts| &mut parts.runtime);
        let _ = (runtime.devices(), runtime.order());
        of(runtime.device(kit.device.id()))
    }),
    ("Runtime::new", Free, |_| of(Runtime::new())),
    ("Runtime::cuda_devices", Asks, |kit| of(kit.take(|parts| &mut parts.runtime).cuda_devices())),
    ("Runtime, dropped", Free, |kit| {
        drop(kit.take(|parts| &mut parts.runtime));
        None
    }),
];

warpline::kernel! {
    /// Calls the function in `PROBE`.
    unsafe fn probe(x: &mut [f32])
    where !x.is_empty()
    {
        descriptor: PROBE_KERNEL,
        cuda: "extern \"C\" __global__ void probe(float* x) {}",
        cpu: |x| {
            x[0] = 1.0;
            let probe = PROBE.lock().unwrap().take();
            if let Some(probe) = probe {
                probe();
            }
        },
    }
}

type Probe = Box<dyn FnOnce() + Send>;

static PROBE: Mutex<Option<Probe>> = Mutex::new(None);

/// A function that is called once, by waking it or by dropping [`WhenDropped`].
struct Calls(Mutex<Option<Probe>>);

impl Calls {
    fn new(probe: Probe) -> Self {
        Calls(Mutex::new(Some(probe)))
    }

    fn call(&self) {
        let probe = self.0.lock().unwrap().take();
        if let Some(probe) = probe {
            probe();
        }
    }
}

struct WhenDropped(Calls);

impl Drop for WhenDropped {
    fn drop(&mut self) {
        self.0.call();
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

/// Enqueues work that calls `probe` when it runs, and calls `behind` to enqueue the next work.
/// Returns what the caller has to keep until `probe` has run.
///
/// With `CUDA_LAUNCH_BLOCKING`, only the launch of [`Caller::Twin`] waits for the device.
fn put(
    caller: Caller,
    stream: &Stream,
    x: &Buffer<f32>,
    probe: Probe,
    behind: impl FnOnce(),
) -> Result<Option<Pending<()>>> {
    match caller {
        Caller::HostFunction => drop(stream.call(probe)),
        Caller::Captured => {
            let captured = WhenDropped(Calls::new(probe));
            drop(stream.call(move || {
                let _ = &captured;
            }));
        }
        Caller::Twin => {
            *PROBE.lock().unwrap() = Some(probe);
            drop(stream.launch(self::probe(x), FOUR));
        }
        Caller::Waker => {
            let mut awaited = stream.call(|| ());
            // `behind` comes first, because enqueuing an op may wake the waiter.
            behind();
            let waker = Waker::from(Arc::new(Calls::new(probe)));
            assert!(pin!(&mut awaited).poll(&mut Context::from_waker(&waker)).is_pending());
            return Ok(Some(awaited));
        }
        Caller::Owner => {
            let owner = WhenDropped(Calls::new(probe));
            // SAFETY: it is memory of `x`, which only this stream uses and which lives until the
            // cell ends.
            let lent = unsafe { stream.borrow_memory::<f32>(x.device_ptr().0, 4, owner) }?;
            let none: [&Buffer<f32>; 0] = [];
            // SAFETY: the host function touches no device memory.
            drop(unsafe { stream.external(reads(none), writes([&lent]), |raw| raw.call(|| ())) });
        }
    }
    behind();
    Ok(None)
}

/// Waits for an answer. On a device that runs its work in polls, it polls.
fn receive<T>(stream: &Stream, answer: &Receiver<T>) -> T {
    while stream.device().runs_in_turns() {
        match answer.try_recv() {
            Ok(answer) => return answer,
            Err(TryRecvError::Empty) => drop(stream.query().unwrap()),
            Err(TryRecvError::Disconnected) => break,
        }
    }
    // Does not poll: the poll might call what the runtime's own threads are to call.
    answer.recv().expect("the method was called")
}

/// Tries one cell: a method called by `caller`, about the stream that the caller holds up if `own`,
/// otherwise about another stream.
fn cell((name, _, method): &(&str, Rule, Method), caller: Caller, own: bool, made: &Made) -> Result<Seen> {
    let runtimes = [(made.runtime)(), (made.runtime)()];
    let [device, same] = [runtimes[0].device(made.device)?, runtimes[1].device(made.device)?];
    device.load([&kernels::AXPY, &PROBE_KERNEL])?;
    device.default_stream()?;
    let [on, other, side] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
    let stream = if own { on.clone() } else { other };
    let four = |stream: &Stream| -> Result<Buffer<f32>> {
        let four = stream.alloc::<f32>(4)?;
        stream.fill(&four, 1.0).blocking_wait()?;
        Ok(four)
    };
    let (of_caller, x, y) = (four(&on)?, four(&stream)?, four(&stream)?);
    let timed = [side.record_timed_event()?, side.record_timed_event()?];
    let over = side.call(|| ());
    let event = side.record_event();
    side.synchronize().blocking_wait()?;
    let (graph, ()) = stream.capture(|s| s.fill(&x, 1.0))?;
    let limited = device.stream().max_in_flight(2).build()?;
    let host = device.blocking_pinned::<f32>(4)?;
    drop([device.blocking_pinned::<u8>(100)?, device.blocking_pinned::<u8>(100)?]);
    let [unused, runtime] = runtimes;
    let parts = Parts {
        host: Some(host),
        over: Some(over),
        synchronized: Some(side.synchronize()),
        runtime: Some(runtime),
        graph: Some(stream.capture(|s| s.fill(&s.alloc::<f32>(4)?, 1.0).queued())?.0),
        lease: device.stream_pool(1)?.try_lease()?,
        permit: Some(support::block_on(limited.room())?),
        gate: (*name == "Gate, opened").then(|| side.hold()).transpose()?,
        pinned: Some(device.blocking_pinned(100)?),
        registered: Some(device.pin(vec![0; 8192])?),
        behind: None,
    };
    let kit = Kit {
        device: device.clone(),
        stream,
        side,
        x,
        y,
        event,
        timed,
        graph,
        limited,
        parts: Mutex::new(parts),
    };
    let kit = Arc::new(kit);

    let gate = on.hold()?;
    let (answer, answered) = channel();
    let (asked, method) = (kit.clone(), *method);
    let probe = Box::new(move || answer.send(method(&asked)).unwrap());
    let behind = || kit.parts.lock().unwrap().behind = Some(kit.stream.call(|| ()));
    let kept = put(caller, &on, &of_caller, probe, behind)?;
    gate.open();
    let seen = receive(&on, &answered);

    // The device is still usable, whatever the outcome.
    drop((kept, kit));
    device.synchronize().blocking_wait()?;
    assert_eq!(device.new_stream()?.call(|| 7).blocking_wait()?, 7);
    assert!(device.fault().is_none());
    drop((same, unused));
    Ok(seen)
}

/// The runtime and device that cells are tried on, and the callers.
struct Made {
    runtime: fn() -> Runtime,
    device: DeviceId,
    callers: &'static [Caller],
}

impl Made {
    fn try_all(&self) {
        let mut wrong = Vec::new();
        for method in METHODS {
            for &caller in self.callers {
                for own in [true, false] {
                    let (name, rule, _) = method;
                    let about = if own { "its stream" } else { "another stream" };
                    let cell_name = format!("{name} by {caller:?} about {about} of {}", self.device);
                    println!("{cell_name}");
                    let seen = cell(method, caller, own, self)
                        .unwrap_or_else(|error| panic!("{cell_name}: {error}"));
                    if seen != rule.says(caller) {
                        wrong.push(format!("{cell_name}: {seen:?} and not {:?}", rule.says(caller)));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} cells are wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
}

fn default_runtime() -> Runtime {
    Runtime::new().unwrap()
}

const ON_CUDA: Made = Made { runtime: default_runtime, device: DeviceId::Cuda(0), callers: &CALLERS };

#[test]
fn the_table_holds_on_the_cpu_device() {
    in_child(&[], || {
        Made { runtime: default_runtime, device: DeviceId::Cpu(0), callers: &CALLERS }.try_all();
    });
}

#[test]
fn the_table_holds_on_the_cpu_device_with_one_worker() {
    in_child(&[], || {
        let runtime = || Runtime::builder().workers(1).build().unwrap();
        Made { runtime, device: DeviceId::Cpu(0), callers: &CALLERS }.try_all();
    });
}

#[test]
fn the_table_holds_on_the_cpu_device_with_seeds() {
    in_child(&[], || {
        let runtime = || Runtime::builder().schedule(Schedule::Seeded(3)).build().unwrap();
        Made { runtime, device: DeviceId::Cpu(0), callers: &CALLERS }.try_all();
    });
}

#[test]
fn the_table_holds_on_a_cuda_device() {
    let said = in_child(&[], || ON_CUDA.try_all());
    assert!(!said.contains("called from a host function"), "the driver was: {said}");
}

#[test]
fn the_table_holds_on_a_cuda_device_with_event_completion() {
    let said = in_child(&[("WARPLINE_COMPLETION", "event")], || ON_CUDA.try_all());
    assert!(!said.contains("called from a host function"), "the driver was: {said}");
}

#[test]
fn the_table_holds_on_a_cuda_device_where_each_launch_is_waited_for() {
    in_child(&[("CUDA_LAUNCH_BLOCKING", "1")], || {
        // The launch waits for its kernel, so nothing can be enqueued behind a CPU form.
        let callers = &[Caller::HostFunction, Caller::Captured, Caller::Waker, Caller::Owner];
        Made { callers, ..ON_CUDA }.try_all();
    });
}

#[test]
fn the_table_holds_on_a_cpu_device_where_each_launch_is_waited_for() {
    in_child(&[("CUDA_LAUNCH_BLOCKING", "1")], || {
        let callers = &[Caller::HostFunction, Caller::Captured, Caller::Waker, Caller::Owner];
        Made { runtime: default_runtime, device: DeviceId::Cpu(0), callers }.try_all();
    });
}

/// A subscriber layer that blocks on a `Pending` at the first op event on a worker, and sends the
/// outcome.
struct BlocksOnce(Mutex<Option<Pending<()>>>, Mutex<Sender<Seen>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for BlocksOnce {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let on_worker = std::thread::current().name().is_some_and(|name| name.starts_with("warpline-cpu"));
        if on_worker
            && event.metadata().target() == "warpline::op"
            && let Some(behind) = self.0.lock().unwrap().take()
        {
            self.1.lock().unwrap().send(of(behind.blocking_wait())).unwrap();
        }
    }
}

#[test]
fn a_subscriber_does_not_block_the_one_worker() {
    in_child(&[], || {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let gate = stream.hold().unwrap();
        let behind = stream.call(|| ());
        let (tell, told) = channel();
        let subscriber =
            tracing_subscriber::registry().with(BlocksOnce(Mutex::new(Some(behind)), Mutex::new(tell)));
        tracing::subscriber::set_global_default(subscriber).unwrap();
        gate.open();
        assert_eq!(told.recv().unwrap(), Some(ErrorKind::Reentrant));
        stream.synchronize().blocking_wait().unwrap();
    });
}

/// Checks that a waker is refused on a stream whose turn for foreign work another thread holds.
fn meet_a_turn(device: &Device) {
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let gate = other.hold().unwrap();
    let mut awaited = other.call(|| ());
    let (answer, answered) = channel();
    let enqueues = stream.clone();
    let waker = Calls::new(Box::new(move || answer.send(polled(enqueues.call(|| ()))).unwrap()));
    let waker = Waker::from(Arc::new(waker));
    assert!(pin!(&mut awaited).poll(&mut Context::from_waker(&waker)).is_pending());
    let none: [&Buffer<f32>; 0] = [];
    // SAFETY: nothing is enqueued.
    let done = unsafe {
        stream.external(reads(none), writes(none), |_| {
            gate.open();
            assert_eq!(answered.recv().unwrap(), Some(ErrorKind::Reentrant));
        })
    };
    done.blocking_wait().unwrap();
    awaited.blocking_wait().unwrap();
}

#[test]
fn a_waker_does_not_wait_for_another_threads_turn() {
    in_child(&[], || {
        let one_worker = Runtime::builder().workers(1).build().unwrap();
        meet_a_turn(&one_worker.device(DeviceId::Cpu(0)).unwrap());
        meet_a_turn(&one_worker.device(DeviceId::Cuda(0)).unwrap());
    });
}
