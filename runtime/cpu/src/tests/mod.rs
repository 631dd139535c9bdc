//! Tests of the CPU device as a driver: the behaviour a stream layer may rely on, under both
//! schedules.

mod failures;
mod host_functions;
mod order;
mod pollers;
mod workers;

use super::idle::Rest;
use super::*;
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;
use std::task::{Wake, Waker};
use warpline_driver::kernel::{Arg, Args, Compared, Kernel, LaunchConfig, Source, TwinThreads};
use warpline_driver::{
    ByteRange, Claim, Command, Error, ErrorKind, Health, HostFn, Launch, Point, Priority, Submission,
};

struct Rig {
    backend: Arc<CpuBackend>,
    devices: Vec<(Arc<CpuDriver>, Arc<Health>)>,
}

struct TestStream {
    driver: Arc<CpuDriver>,
    handle: Arc<dyn DriverStream>,
    timeline: Arc<Timeline>,
    next: AtomicU64,
}

impl Rig {
    fn with(schedule: Schedule, devices: &[DeviceOptions]) -> Self {
        Self::of(CpuBackend::new(BackendOptions { schedule, ..BackendOptions::default() }), devices)
    }

    fn of(backend: Arc<CpuBackend>, devices: &[DeviceOptions]) -> Self {
        let devices = devices.iter().zip(0..).map(|(options, ordinal)| {
            let health = Arc::new(Health::default());
            (backend.device(ordinal, health.clone(), options.clone()), health)
        });
        Rig { devices: devices.collect(), backend }
    }

    fn new(schedule: Schedule) -> Self {
        Self::with(schedule, &[DeviceOptions::default()])
    }

    fn planned(schedule: Schedule, plan: FaultPlan) -> Self {
        let options = DeviceOptions { fault_plan: Some(plan), ..DeviceOptions::default() };
        Self::with(schedule, &[options, DeviceOptions::default()])
    }

    fn stream_on(&self, device: usize, label: &str) -> TestStream {
        self.stream_with(device, StreamOptions { label: label.into(), ..StreamOptions::default() })
    }

    fn stream_with(&self, device: usize, options: StreamOptions) -> TestStream {
        let (driver, health) = &self.devices[device];
        let timeline = Arc::new(Timeline::new());
        health.watch(&timeline);
        let handle = driver.new_stream(&options, timeline.clone()).unwrap();
        TestStream { driver: driver.clone(), handle, timeline, next: AtomicU64::new(1) }
    }

    fn stream(&self, label: &str) -> TestStream {
        self.stream_on(0, label)
    }

    fn health(&self, device: usize) -> &Health {
        &self.devices[device].1
    }
}

impl TestStream {
    fn submit_as(&self, op: &'static &'static str, command: Command, claims: Option<Box<[Claim]>>) -> Point {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let work = Submission { ticket, site: Site::here(op), command, claims, caller: None };
        // SAFETY: the commands of these tests name only memory that they own.
        unsafe { self.handle.submit(work) }.unwrap();
        self.driver.after_submit();
        Point { timeline: self.timeline.clone(), ticket, event: None }
    }

    fn call(&self, f: impl FnOnce() + Send + 'static) -> Point {
        self.submit_as(&"host_fn", Command::Call(HostFn(Box::new(f))), None)
    }

    fn wait(&self, point: &Point) -> Point {
        self.submit_as(&"wait_event", Command::Wait(point.clone()), None)
    }

    fn launch(&self) -> Point {
        self.launch_of(&NOTHING)
    }

    fn launch_of(&self, kernel: &'static Kernel) -> Point {
        self.launch_with(kernel, Args::new())
    }

    fn launch_with(&self, kernel: &'static Kernel, args: Args) -> Point {
        let config = LaunchConfig::for_elements(1u32);
        let launch = Launch { kernel, config, args, extras: None };
        self.submit_as(&kernel.name, Command::Launch(launch), None)
    }

    /// Launches a kernel whose twin calls `f`. A worker runs it, unlike a host function.
    fn call_on_a_worker(&self, f: impl FnOnce() + Send + 'static) -> Point {
        static CALLS_MADE: AtomicU64 = AtomicU64::new(0);
        let number = CALLS_MADE.fetch_add(1, Ordering::Relaxed);
        TO_CALL.lock().push((number, Box::new(f)));
        self.launch_with(&CALLS, Args::from_slice(&[Arg::scalar(number)]))
    }

    /// Blocks until `point` is reached or `health` has failed. Returns true if it was reached.
    fn finish(&self, point: &Point, health: &Health) -> bool {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut registration = None;
        loop {
            if point.timeline.register(point.ticket, &waker, &mut registration).is_ready() {
                return true;
            }
            if health.fault().is_some() {
                point.timeline.deregister(&mut registration);
                return point.timeline.reached(point.ticket);
            }
            if self.driver.turn() {
                continue;
            }
            std::thread::park();
        }
    }
}

static COMPARED: Compared = Compared::not_yet();
static NOTHING: Kernel = Kernel {
    name: "nothing",
    params: &[],
    in_place: false,
    source: Source::None,
    library: None,
    twin: Some(|_: &[Arg]| {}),
    tolerance: 0.0,
    compared: &COMPARED,
};

/// The numbers of threads that the twin of `LOOKS` was allowed, 0 for none entered.
static ALLOWED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static LOOKS: Kernel = Kernel {
    name: "looks",
    params: &[],
    in_place: false,
    source: Source::None,
    library: None,
    twin: Some(|_: &[Arg]| {
        ALLOWED.lock().push(TwinThreads::current().map_or(0, |threads| threads.most()));
    }),
    tolerance: 0.0,
    compared: &COMPARED,
};

/// The functions that the twin of `CALLS` calls, by the number that is its argument.
static TO_CALL: Mutex<Vec<(u64, Function)>> = Mutex::new(Vec::new());
type Function = Box<dyn FnOnce() + Send>;
static CALLS: Kernel = Kernel {
    name: "calls",
    params: &[],
    in_place: false,
    source: Source::None,
    library: None,
    twin: Some(|args: &[Arg]| {
        let mut to_call = TO_CALL.lock();
        let at = to_call.iter().position(|(number, _)| *number == args[0].to_scalar::<u64>());
        let (_, f) = to_call.swap_remove(at.expect("it is called once"));
        drop(to_call);
        f();
    }),
    tolerance: 0.0,
    compared: &COMPARED,
};

struct Unpark(std::thread::Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn gate() -> Point {
    Point { timeline: Arc::new(Timeline::new()), ticket: 1, event: None }
}

fn open(gate: &Point) {
    gate.timeline.complete(gate.ticket);
}

const BOTH: [Schedule; 2] = [Schedule::Threads, Schedule::Seeded(7)];

/// Returns a rig with two workers and two devices, if the machine has the cores.
fn two_workers() -> Option<Rig> {
    let options = BackendOptions { threads: Some(2), ..BackendOptions::default() };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores > 1)
        .then(|| Rig::of(CpuBackend::new(options), &[DeviceOptions::default(), DeviceOptions::default()]))
}

/// Waits until all workers sleep. The next worker that wakes up becomes attentive.
fn all_are_asleep(rig: &Rig) {
    while rig.backend.pool().unwrap().rest() != Rest::Asleep {
        std::thread::yield_now();
    }
}

/// Waits for something that a worker does after it has notified every waiter.
fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}
