//! Host functions and the thread that calls them.

use super::*;

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

#[test]
fn workers_call_the_functions_if_no_thread_can_be_started() {
    let rig = Rig::new(Schedule::Threads);
    let (a, b) = (rig.stream("a"), rig.stream("b"));
    let line = &rig.devices[0].0.0.host_line;
    assert!(line.give_up().is_empty());
    for round in 0..200 {
        let (tell, told) = mpsc::channel();
        let name = move || tell.send(std::thread::current().name().unwrap_or_default().to_owned()).unwrap();
        if round % 2 == 0 {
            // A worker reaches the function behind a kernel.
            a.launch();
        }
        let called = a.call(name);
        b.wait(&called);
        assert!(b.finish(&b.launch(), rig.health(0)));
        let name = told.recv().unwrap();
        assert!(name.starts_with("warpline-cpu-"), "{name}");
    }
    rig.devices[0].0.shut_down();
    until(|| rig.backend.pool().unwrap().alive() == 0);
    assert!(rig.health(0).fault().is_none());
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
        caller: None,
    };
    // SAFETY: the command names no memory.
    assert!(unsafe { b.handle.submit(late) }.is_err());
    assert!(told.recv().is_err());
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
        let work = Submission { ticket: 1, site: Site::here(&"call"), command, claims: None, caller: None };
        // SAFETY: the command names no memory.
        assert!(unsafe { stream.handle.submit(work) }.is_err());
        // The caller of `submit` holds the stream's lock here, and a value owned by the function
        // may take it.
        assert_ne!(told.recv().unwrap(), std::thread::current().id());
    }
}
