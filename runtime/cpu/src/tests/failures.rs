//! Devices that fail.

use super::*;

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
