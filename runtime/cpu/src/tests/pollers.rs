//! Threads that run work while they poll.

use super::*;

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
