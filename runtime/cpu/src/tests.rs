//! Tests of the CPU device as a driver: the behaviour a stream layer may rely on, under both
//! schedules.

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
        let work = Submission { ticket, site: Site::here(op), command, claims };
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

#[test]
fn ops_of_a_stream_run_in_order() {
    for schedule in BOTH {
        let rig = Rig::new(schedule);
        let stream = rig.stream("a");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut last = None;
        for i in 0..1000 {
            let seen = seen.clone();
            last = Some(stream.call(move || seen.lock().push(i)));
        }
        assert!(stream.finish(&last.unwrap(), rig.health(0)));
        assert!(seen.lock().iter().copied().eq(0..1000));
    }
}

#[test]
fn a_wait_holds_a_stream_until_another_has_got_there() {
    for schedule in BOTH {
        let rig = Rig::with(schedule, &[DeviceOptions::default(), DeviceOptions::default()]);
        let (a, b) = (rig.stream("a"), rig.stream_on(1, "b"));
        let gate = gate();
        let value = Arc::new(AtomicU32::new(0));
        a.wait(&gate);
        let written = a.call({
            let value = value.clone();
            move || value.store(5, Ordering::Relaxed)
        });
        b.wait(&written);
        let (send, receive) = mpsc::channel();
        let read = b.call(move || send.send(value.load(Ordering::Relaxed)).unwrap());
        while a.driver.turn() {}
        assert!(receive.try_recv().is_err());
        open(&gate);
        assert!(b.finish(&read, rig.health(1)));
        assert_eq!(receive.recv(), Ok(5));
    }
}

#[test]
fn a_gate_opened_by_another_thread_wakes_a_sleeping_poller() {
    for schedule in BOTH {
        for _ in 0..200 {
            let rig = Rig::new(schedule);
            let stream = rig.stream("a");
            let gate = gate();
            stream.wait(&gate);
            let done = stream.call(|| {});
            std::thread::scope(|scope| {
                scope.spawn(|| open(&gate));
                assert!(stream.finish(&done, rig.health(0)));
            });
        }
    }
}

#[test]
fn detached_work_submitted_later_wakes_a_poller_that_found_nothing() {
    for schedule in BOTH {
        let rig = Rig::new(schedule);
        let (held, opener) = (rig.stream("held"), rig.stream("opener"));
        let gate = gate();
        held.wait(&gate);
        let done = held.call(|| {});
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| held.finish(&done, rig.health(0)));
            opener.call(move || open(&gate));
            assert!(waiter.join().unwrap());
        });
    }
}

#[test]
fn pollers_on_several_threads_share_the_turns() {
    let rig = Rig::new(Schedule::Seeded(3));
    let streams: Vec<_> = (0..4).map(|_| rig.stream("x")).collect();
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| {
                for _ in 0..500 {
                    let done = stream.call(|| {});
                    assert!(stream.finish(&done, rig.health(0)));
                }
            });
        }
    });
}

#[test]
fn every_ready_strand_is_counted_once() {
    let rig = Rig::new(Schedule::Threads);
    let lane_of = |priority| rig.stream_with(0, StreamOptions { priority, ..StreamOptions::default() });
    let priorities = [Priority::High, Priority::Normal, Priority::Low];
    let streams: Vec<_> = priorities.into_iter().cycle().take(12).map(lane_of).collect();
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| {
                for _ in 0..500 {
                    let done = stream.launch();
                    assert!(stream.finish(&done, rig.health(0)));
                }
            });
        }
    });
    assert!(!rig.backend.pool().unwrap().has_work());
}

#[test]
fn who_polls_is_told_how_the_workers_rest() {
    let rig = Rig::new(Schedule::Threads);
    let stream = rig.stream("a");
    let rest = || rig.backend.pool().expect("threads").rest();
    let done = stream.launch();
    assert!(stream.finish(&done, rig.health(0)));
    all_are_asleep(&rig);
    assert_eq!(rest(), Rest::Asleep);
    let (entered, is_in) = mpsc::channel();
    let (open, opened) = mpsc::channel::<()>();
    let held = stream.call_on_a_worker(move || {
        entered.send(()).unwrap();
        opened.recv().unwrap();
    });
    // The worker is being woken, or is awake already.
    assert_ne!(rest(), Rest::Asleep);
    is_in.recv().unwrap();
    assert_eq!(rest(), Rest::Awake);
    open.send(()).unwrap();
    assert!(stream.finish(&held, rig.health(0)));
}

#[test]
fn ten_thousand_streams_share_a_few_threads() {
    let rig = Rig::new(Schedule::Threads);
    let count = Arc::new(AtomicU32::new(0));
    let streams: Vec<_> = (0..10_000).map(|_| rig.stream("one of many")).collect();
    let gate = gate();
    let points: Vec<_> = streams
        .iter()
        .map(|stream| {
            stream.wait(&gate);
            let count = count.clone();
            stream.call(move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    open(&gate);
    for (stream, point) in streams.iter().zip(&points) {
        assert!(stream.finish(point, rig.health(0)));
    }
    assert_eq!(count.load(Ordering::Relaxed), 10_000);
    let cores = std::thread::available_parallelism().unwrap().get();
    assert!(rig.backend.pool().unwrap().alive() <= cores);
}

#[test]
fn an_idle_stream_is_small() {
    assert!(size_of::<CpuStream>() + size_of::<Timeline>() <= 512);
}

#[test]
fn two_streams_that_park_on_each_other_lose_no_wake() {
    let rig = Rig::new(Schedule::Threads);
    let (a, b) = (rig.stream("a"), rig.stream("b"));
    let mut last = a.call(|| {});
    for _ in 0..5_000 {
        b.wait(&last);
        last = b.call(|| {});
        a.wait(&last);
        last = a.call(|| {});
    }
    assert!(a.finish(&last, rig.health(0)));
}

#[test]
fn a_gate_for_every_op_parks_and_wakes() {
    let rig = Rig::new(Schedule::Threads);
    let stream = rig.stream("a");
    let gate = Arc::new(Timeline::new());
    let mut last = None;
    for ticket in 1..=5_000 {
        stream.wait(&Point { timeline: gate.clone(), ticket, event: None });
        last = Some(stream.call(|| {}));
        gate.complete(ticket);
    }
    assert!(stream.finish(&last.unwrap(), rig.health(0)));
}

#[test]
fn work_submitted_before_the_handle_is_dropped_still_runs() {
    for schedule in BOTH {
        let rig = Rig::new(schedule);
        let stream = rig.stream("a");
        let gate = gate();
        stream.wait(&gate);
        let done = stream.call(|| {});
        let TestStream { driver, handle, timeline, next } = stream;
        drop(handle);
        open(&gate);
        let other = rig.stream("other");
        let stream = TestStream { driver, handle: other.handle, timeline, next };
        assert!(stream.finish(&done, rig.health(0)));
    }
}

fn interleaving(seed: u64) -> Vec<(Arc<str>, Ticket)> {
    let rig = Rig::new(Schedule::Seeded(seed));
    let streams: Vec<_> = ["a", "b", "c"].map(|label| rig.stream(label)).into();
    let mut points = Vec::new();
    for _ in 0..5 {
        points.extend(streams.iter().map(|stream| stream.call(|| {})));
    }
    for point in &points {
        assert!(streams[0].finish(point, rig.health(0)));
    }
    rig.backend.interleaving().into_iter().map(|step| (step.stream, step.ticket)).collect()
}

#[test]
fn a_seed_gives_one_interleaving_and_many_seeds_give_many() {
    let mut different = std::collections::HashSet::new();
    for seed in 0..50 {
        let first = interleaving(seed);
        assert_eq!(first.len(), 15);
        assert_eq!(first, interleaving(seed));
        different.insert(first);
    }
    assert!(different.len() > 25, "{} of 50", different.len());
}

#[test]
fn a_host_function_that_takes_a_turn_is_turned_away() {
    let rig = Rig::new(Schedule::Seeded(0));
    let stream = rig.stream("a");
    let driver = stream.driver.clone();
    let done = stream.call(move || assert!(!driver.turn()));
    assert!(stream.finish(&done, rig.health(0)));
    assert!(rig.health(0).fault().is_none());
}

#[test]
fn a_panic_fails_its_device_drops_the_rest_and_spares_the_others() {
    for schedule in BOTH {
        let rig = Rig::with(schedule, &[DeviceOptions::default(), DeviceOptions::default()]);
        let (bad, parked, healthy) = (rig.stream("bad"), rig.stream("parked"), rig.stream_on(1, "healthy"));
        let never = gate();
        let owned = Arc::new(());
        let (first, second) = (owned.clone(), owned.clone());
        parked.wait(&never);
        let held = parked.call(move || drop(first));
        let start = gate();
        bad.wait(&start);
        bad.call(|| panic!("seven is odd"));
        let unrun = bad.call(move || drop(second));
        bad.timeline.keep_until(unrun.ticket, owned.clone(), warpline_driver::timeline::Until::Over);
        let kept_elsewhere = Arc::new(());
        parked.timeline.keep_until(
            held.ticket,
            kept_elsewhere.clone(),
            warpline_driver::timeline::Until::Over,
        );
        open(&start);
        assert!(!bad.finish(&unrun, rig.health(0)));
        assert!(!parked.finish(&held, rig.health(0)));
        let fault = rig.health(0).fault().unwrap();
        assert_eq!(fault.kind(), ErrorKind::Fault);
        let text = fault.to_string();
        assert!(text.starts_with("host_fn failed on stream \"bad\" at ticket 2 (runtime"), "{text}");
        assert!(text.ends_with("): panicked: seven is odd; cpu:0 accepts no more work"), "{text}");
        assert_eq!(bad.timeline.completed(), 1);
        let fine = healthy.call(|| {});
        assert!(healthy.finish(&fine, rig.health(1)));
        until(|| Arc::strong_count(&owned) == 1 && Arc::strong_count(&kept_elsewhere) == 1);
    }
}

/// Waits for something that a worker does after it has notified every waiter.
fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

#[test]
fn a_healthy_device_that_waits_for_a_failed_one_fails_and_says_why() {
    for schedule in BOTH {
        let rig = Rig::with(schedule, &[DeviceOptions::default(), DeviceOptions::default()]);
        let (bad, waiting) = (rig.stream("bad"), rig.stream_on(1, "waiting"));
        let start = gate();
        bad.wait(&start);
        let lost = bad.call(|| panic!("gone"));
        waiting.wait(&lost);
        let done = waiting.call(|| {});
        open(&start);
        assert!(!waiting.finish(&done, rig.health(1)));
        let text = rig.health(1).fault().unwrap().to_string();
        assert!(text.contains("waits for work that will not run: host_fn failed"), "{text}");
        assert!(
            text.ends_with("panicked: gone; cpu:0 accepts no more work; cpu:1 accepts no more work"),
            "{text}"
        );
    }
}

#[test]
fn a_dropped_stream_of_a_failed_device_is_not_taken_for_a_gate() {
    for schedule in BOTH {
        let rig = Rig::with(schedule, &[DeviceOptions::default(), DeviceOptions::default()]);
        let bad = rig.stream("bad");
        let lost = bad.call(|| panic!("gone"));
        assert!(!bad.finish(&lost, rig.health(0)));
        let id = rig.devices[0].0.id();
        drop(bad);
        until(|| rig.backend.timelines.streams(Some(id)).is_empty());
        let waiting = rig.stream_on(1, "waiting");
        // Submit nothing more: as soon as the wait is found to be in vain, the stream refuses work.
        let wait = waiting.wait(&lost);
        assert!(!waiting.finish(&wait, rig.health(1)));
    }
}

#[test]
fn fault_plans_hit_the_op_they_name() {
    for schedule in BOTH {
        let rig = Rig::planned(schedule, FaultPlan { fail_op: Some(3), panic_in_twin: None });
        let stream = rig.stream("a");
        stream.call(|| {});
        stream.launch();
        let third = stream.launch();
        assert!(!stream.finish(&third, rig.health(0)));
        assert_eq!(stream.timeline.completed(), 2);
        let text = rig.health(0).fault().unwrap().to_string();
        assert!(text.starts_with("nothing failed on stream \"a\" at ticket 3"), "{text}");

        let rig = Rig::planned(schedule, FaultPlan { fail_op: None, panic_in_twin: Some(2) });
        let stream = rig.stream("a");
        stream.launch();
        stream.call(|| {});
        let second = stream.launch();
        assert!(!stream.finish(&second, rig.health(0)));
        let text = rig.health(0).fault().unwrap().to_string();
        assert!(text.contains("panicked: the fault plan"), "{text}");
    }
}

#[test]
fn exclusive_claims_keep_ops_apart() {
    let rig = Rig::new(Schedule::Threads);
    let streams: Vec<_> = (0..4).map(|_| rig.stream("claims")).collect();
    let inside = Arc::new(AtomicU32::new(0));
    let mut points = Vec::new();
    for _ in 0..500 {
        for stream in &streams {
            let inside = inside.clone();
            let body = move || {
                assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "two ops hold one exclusive range");
                std::thread::yield_now();
                inside.fetch_sub(1, Ordering::AcqRel);
            };
            let claim = Claim { range: ByteRange::contiguous(4096, 64), exclusive: true };
            points.push(stream.submit_as(
                &"host_fn",
                Command::Call(HostFn(Box::new(body))),
                Some([claim].into()),
            ));
        }
    }
    for point in &points {
        assert!(streams[0].finish(point, rig.health(0)));
    }
}

#[test]
fn shutting_down_runs_what_can_run_and_reports_what_is_held_at_a_gate() {
    for schedule in BOTH {
        let rig = Rig::with(schedule, &[DeviceOptions::default(), DeviceOptions::default()]);
        let (held, free, follower) = (rig.stream("held"), rig.stream("free"), rig.stream_on(1, "follower"));
        let never = gate();
        held.wait(&never);
        let op = held.call(|| {});
        follower.wait(&op);
        let follows = follower.call(|| {});
        let ran = Arc::new(AtomicU32::new(0));
        for _ in 0..1000 {
            let ran = ran.clone();
            free.call(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            });
        }
        for (driver, _) in &rig.devices {
            driver.shut_down();
        }
        assert!(!held.finish(&op, rig.health(0)));
        assert!(!follower.finish(&follows, rig.health(1)));
        assert_eq!(ran.load(Ordering::Relaxed), 1000);
        let fault = rig.health(0).fault().unwrap();
        assert_eq!(fault.kind(), ErrorKind::ShutDown);
        let text = fault.to_string();
        assert!(
            text.starts_with("the runtime was shut down with 1 op in flight on stream \"held\", the oldest host_fn (runtime"),
            "{text}"
        );
        assert!(text.ends_with("), held at a wait that nothing will release"), "{text}");
        assert_eq!(rig.health(1).fault().unwrap().kind(), ErrorKind::ShutDown);
        // SAFETY: the command names no memory.
        let refused = unsafe {
            free.handle.submit(Submission {
                ticket: 1001,
                site: Site::here(&"late"),
                command: Command::Call(HostFn(Box::new(|| {}))),
                claims: None,
            })
        };
        assert!(refused.is_err());
    }
}

#[test]
fn functions_that_wait_delay_each_other_and_nothing_else() {
    let options = BackendOptions { threads: Some(1), ..BackendOptions::default() };
    let rig = Rig::of(CpuBackend::new(options), &[DeviceOptions::default(), DeviceOptions::default()]);
    let waiting = [0, 1, 2, 3].map(|n| {
        let (send, receive) = mpsc::channel::<()>();
        let stream = rig.stream(&format!("waits {n}"));
        // The second two reach their functions through a worker.
        if n >= 2 {
            stream.launch();
        }
        let done = stream.call(move || receive.recv().unwrap());
        (send, stream, done)
    });
    let (busy, delayed, elsewhere) =
        (rig.stream("busy"), rig.stream("delayed"), rig.stream_on(1, "elsewhere"));
    assert!(busy.finish(&busy.launch(), rig.health(0)));
    assert!(elsewhere.finish(&elsewhere.call(|| {}), rig.health(1)));
    let behind = delayed.call(|| {});
    assert!(busy.finish(&busy.launch(), rig.health(0)));
    assert!(!behind.timeline.reached(behind.ticket), "one thread calls the functions of a device");
    for (send, stream, done) in &waiting {
        send.send(()).unwrap();
        assert!(stream.finish(done, rig.health(0)));
    }
    assert!(delayed.finish(&behind, rig.health(0)));
}

#[test]
fn functions_keep_their_place_between_kernels() {
    for schedule in BOTH {
        let rig = Rig::new(schedule);
        let (a, order) = (rig.stream("a"), Arc::new(Mutex::new(Vec::new())));
        for n in 0..500 {
            let order = order.clone();
            let note = move || order.lock().push(n);
            if n % 5 < 3 {
                a.call(note)
            } else {
                a.call_on_a_worker(note)
            };
        }
        assert!(a.finish(&a.launch(), rig.health(0)));
        assert_eq!(*order.lock(), (0..500).collect::<Vec<_>>());
    }
}

/// A stream that never runs out of functions lets those of another stream run.
#[test]
fn streams_take_turns_with_their_functions() {
    let rig = Rig::new(Schedule::Threads);
    let (a, b) = (rig.stream("a"), rig.stream("b"));
    let (start, started) = mpsc::channel::<()>();
    a.call(move || started.recv().unwrap());
    let counted = Arc::new(AtomicU32::new(0));
    for _ in 0..1000 {
        let counted = counted.clone();
        a.call(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
    }
    let seen = counted.clone();
    let (tell, told) = mpsc::channel();
    b.call(move || tell.send(seen.load(Ordering::Relaxed)).unwrap());
    start.send(()).unwrap();
    assert!(told.recv().unwrap() < 1000);
    assert!(a.finish(&a.launch(), rig.health(0)));
}

#[test]
fn a_function_that_runs_at_a_shutdown_may_end_what_others_wait_for() {
    for via_worker in [false, true] {
        let rig = Rig::new(Schedule::Threads);
        let (held, opens) = (rig.stream("held"), rig.stream("opens"));
        let (gate, (go, gone)) = (gate(), mpsc::channel::<()>());
        held.wait(&gate);
        let behind = held.launch();
        if via_worker {
            opens.launch();
        }
        opens.call({
            let timeline = gate.timeline.clone();
            move || {
                gone.recv().unwrap();
                timeline.complete(1);
            }
        });
        all_are_asleep(&rig);
        rig.devices[0].0.shut_down();
        go.send(()).unwrap();
        assert!(held.finish(&behind, rig.health(0)));
        until(|| rig.backend.pool().unwrap().alive() == 0);
        assert!(rig.health(0).fault().is_none(), "{:?}", rig.health(0).fault());
    }
}

#[test]
fn functions_of_a_device_that_fails_are_dropped_although_one_still_waits() {
    let rig = Rig::with(Schedule::Threads, &[DeviceOptions::default(), DeviceOptions::default()]);
    let (a, b, elsewhere) = (rig.stream("a"), rig.stream("b"), rig.stream_on(1, "elsewhere"));
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    a.call(move || {
        tell.send(()).unwrap();
        // The sender is dropped with the function behind, unrun.
        assert!(gone.recv().is_err());
    });
    told.recv().unwrap();
    let behind = b.call(move || go.send(()).unwrap());
    elsewhere.wait(&behind);
    let follows = elsewhere.launch();
    rig.devices[0].0.0.fail(Error::new(ErrorKind::Fault, "the test asked for it"));
    assert!(!b.finish(&behind, rig.health(0)));
    assert!(!elsewhere.finish(&follows, rig.health(1)));
    // Also one that comes later.
    let (tell, told) = mpsc::channel();
    let late = Submission {
        ticket: 100,
        site: Site::here(&"late"),
        command: Command::Call(HostFn(Box::new(move || tell.send(()).unwrap()))),
        claims: None,
    };
    // SAFETY: the command names no memory.
    assert!(unsafe { b.handle.submit(late) }.is_err());
    assert!(told.recv().is_err());
}

/// Checks that an attentive worker that becomes busy wakes another one, because work submitted in
/// the meantime woke none.
#[test]
fn a_kernel_that_waits_for_another_stream_does_not_keep_that_one_from_running() {
    let Some(rig) = two_workers() else { return };
    let (a, b) = (rig.stream("a"), rig.stream("b"));
    for round in 0..3000 {
        let (send, receive) = mpsc::channel();
        for _ in 0..round % 7 {
            a.submit_as(&"stamp", Command::Stamp(Arc::default()), None);
        }
        let waits = a.call_on_a_worker(move || receive.recv().unwrap());
        if round % 3 == 0 {
            std::thread::yield_now();
        }
        let sends = b.call_on_a_worker(move || send.send(()).unwrap());
        assert!(a.finish(&waits, rig.health(0)));
        assert!(b.finish(&sends, rig.health(0)));
    }
}

/// Checks that a worker is not attentive while it runs user code: a waker, or a function that is
/// dropped unrun.
#[test]
fn a_waker_that_waits_for_another_stream_does_not_keep_that_one_from_running() {
    let Some(rig) = two_workers() else { return };
    let (a, b) = (rig.stream("a"), rig.stream("b"));
    for _ in 0..200 {
        let gate = gate();
        a.wait(&gate);
        all_are_asleep(&rig);
        let done = a.submit_as(&"stamp", Command::Stamp(Arc::default()), None);
        let (met, waker) = Meets::new();
        assert!(done.timeline.register(done.ticket, &Waker::from(waker), &mut None).is_pending());
        open(&gate);
        met.meet(&b);
        assert!(a.finish(&done, rig.health(0)));
    }
}

#[test]
fn a_dropped_function_that_waits_for_another_stream_does_not_keep_that_one_from_running() {
    for _ in 0..50 {
        let Some(rig) = two_workers() else { return };
        let (a, b) = (rig.stream("a"), rig.stream_on(1, "b"));
        let (gate, (met, meets)) = (gate(), Meets::new());
        a.wait(&gate);
        a.call(move || drop(meets));
        all_are_asleep(&rig);
        rig.devices[0].0.0.fail(Error::new(ErrorKind::Fault, "the test asked for it"));
        assert!(b.finish(&met.meet(&b), rig.health(1)));
    }
}

#[test]
fn a_twin_may_use_the_threads_of_the_setting_and_only_its_own_under_a_seed() {
    let allowed = |options: BackendOptions| {
        let rig = Rig::of(CpuBackend::new(options), &[DeviceOptions::default()]);
        let stream = rig.stream("a");
        assert!(stream.finish(&stream.launch_of(&LOOKS), rig.health(0)));
        std::mem::take(&mut *ALLOWED.lock())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (kernel_threads, expected) in [(Some(1), 1), (Some(5), 5), (None, cores)] {
        assert_eq!(allowed(BackendOptions { kernel_threads, ..BackendOptions::default() }), [expected]);
    }
    let seeded = BackendOptions { schedule: Schedule::Seeded(1), ..BackendOptions::default() };
    assert_eq!(allowed(seeded), [0], "the polling thread has entered none");
}

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

/// A waker that announces its wake-up or its drop, and waits for an answer.
struct Meets(Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>);
struct Met(mpsc::Receiver<()>, mpsc::Sender<()>);

impl Meets {
    fn new() -> (Met, Arc<Self>) {
        let (say, heard) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        (Met(heard, answer), Arc::new(Meets(Mutex::new(Some((say, answered))))))
    }
}

impl Met {
    /// Waits for the announcement, and lets `stream` answer.
    fn meet(self, stream: &TestStream) -> Point {
        let Met(heard, answer) = self;
        heard.recv().unwrap();
        stream.call_on_a_worker(move || answer.send(()).unwrap())
    }
}

impl Drop for Meets {
    fn drop(&mut self) {
        if let Some((say, answered)) = self.0.lock().take() {
            say.send(()).unwrap();
            answered.recv().unwrap();
        }
    }
}

impl Wake for Meets {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn workers_leave_after_a_shutdown() {
    let rig = Rig::new(Schedule::Threads);
    let stream = rig.stream("a");
    stream.call(|| {});
    let done = stream.launch();
    assert!(stream.finish(&done, rig.health(0)));
    rig.devices[0].0.shut_down();
    until(|| rig.backend.pool().unwrap().alive() == 0);
    assert!(rig.health(0).fault().is_none());
}

#[test]
fn a_refused_host_function_is_dropped_by_another_thread() {
    struct Tells(mpsc::Sender<std::thread::ThreadId>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }
    for schedule in BOTH {
        let rig = Rig::new(schedule);
        let stream = rig.stream("a");
        rig.health(0).fail(Error::new(ErrorKind::Fault, "as planned"));
        let (tell, told) = mpsc::channel();
        let tells = Tells(tell);
        let command = Command::Call(HostFn(Box::new(move || drop(tells))));
        let work = Submission { ticket: 1, site: Site::here(&"call"), command, claims: None };
        // SAFETY: the command names no memory.
        assert!(unsafe { stream.handle.submit(work) }.is_err());
        // The caller of `submit` holds the stream's lock here, and a value owned by the function
        // may take it.
        assert_ne!(told.recv().unwrap(), std::thread::current().id());
    }
}

#[test]
fn dropping_the_driver_and_every_handle_frees_the_backend() {
    for schedule in BOTH {
        let rig = Rig::new(schedule);
        let stream = rig.stream("a");
        let never = gate();
        stream.wait(&never);
        stream.call(|| {});
        let backend = Arc::downgrade(&rig.backend);
        drop(stream);
        drop(rig);
        drop(never);
        until(|| backend.strong_count() == 0);
    }
}
