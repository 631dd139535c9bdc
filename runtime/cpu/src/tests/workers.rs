//! Workers: what they run while another waits, and how they leave.

use super::*;

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
                caller: None,
            })
        };
        assert!(refused.is_err());
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
