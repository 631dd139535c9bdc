//! Order within a stream and between streams, and seeded interleavings.

use super::*;

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
    assert!(size_of::<CpuStream>() + size_of::<Timeline>() <= 520);
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
