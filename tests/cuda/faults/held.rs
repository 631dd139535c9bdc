//! Waits that the host releases: gates, and waits for an event that could not be recorded.

use crate::faults::{add_one, cuda, four, stream};
use crate::support::software::in_child;
use crate::support::{refusal, says};
use warpline::prelude::*;

#[test]
fn what_waits_for_an_event_that_was_not_recorded_is_held_by_the_host() {
    in_child(&[("SOFTCUDA_FAIL", "cuEventRecord:1:1")], || {
        let (_runtime, device) = cuda();
        let (a, b) = (stream(&device, "a"), stream(&device, "b"));
        let x = four(&a, 1.0);
        let gate = a.hold().unwrap();
        drop(a.fill(&x, 2.0));
        let event = a.record_event();
        b.wait_event(&event);
        let read = b.read(&x);
        gate.open();
        assert_eq!(
            read.blocking_wait().unwrap(),
            [2.0; 4],
            "nobody awaits the event, and the host sees to the wait"
        );
        says(&refusal(a.synchronize()), ErrorKind::Driver, &["record_event failed on cuda:0: cuEventRecord"]);
    });
}

#[test]
fn a_held_wait_stays_when_the_stream_that_it_waits_for_is_given_up() {
    // The first two writes are those of the self-test and of the awaited fill.
    in_child(&[("SOFTCUDA_FAIL", "cuEventRecord:1:1,cuStreamWriteValue64_v2:3:1")], || {
        let (_runtime, device) = cuda();
        let (a, b) = (stream(&device, "a"), stream(&device, "b"));
        let x = four(&a, 1.0);
        let gate = a.hold().unwrap();
        drop(a.fill(&x, 2.0));
        let event = a.record_event();
        let waits = b.wait_event(&event);
        let mut read = b.read(&x);
        says(&refusal(a.call(|| ())), ErrorKind::Driver, &["was abandoned"]);
        for _ in 0..100 {
            // The failure of `a` has woken waiters, which opens no gate.
            assert!(!read.query().unwrap(), "what it waits for has not run");
            stream(&device, "other").call(|| ()).blocking_wait().unwrap();
        }
        gate.open();
        waits.blocking_wait().unwrap();
        assert_eq!(read.blocking_wait().unwrap(), [2.0; 4]);
    });
}

#[test]
fn a_held_wait_for_a_device_that_dies_fails() {
    in_child(&[("SOFTCUDA_FAIL", "cuEventRecord:1:1"), ("SOFTCUDA_POISON_LAUNCH", "2")], || {
        let (runtime, device) = cuda();
        let next = runtime.device(DeviceId::Cuda(1)).unwrap();
        let (a, b) = (stream(&device, "a"), stream(&next, "b"));
        let (x, y) = (four(&a, 1.0), four(&a, 1.0));
        let z = four(&b, 1.0);
        add_one(&a, &x, &y).blocking_wait().unwrap();
        let gate = a.hold().unwrap();
        drop(add_one(&a, &x, &y));
        let event = a.record_event();
        b.wait_event(&event);
        let read = b.read(&z);
        gate.open();
        says(
            &refusal(read),
            ErrorKind::Fault,
            &["wait_event failed on stream \"b\"", "it waits for work that will not run: cuda:0 failed"],
        );
    });
}

#[test]
fn without_memory_operations_there_is_one_gate_at_a_time() {
    in_child(&[("SOFTCUDA_NO_MEMOPS", "1")], || {
        let (_runtime, device) = cuda();
        let (a, b) = (stream(&device, "a"), stream(&device, "b"));
        let x = four(&a, 1.0);
        let gate = a.hold().unwrap();
        drop(a.fill(&x, 2.0));
        says(
            &b.hold().unwrap_err(),
            ErrorKind::Driver,
            &[
                "hold on stream \"b\"",
                "cuda:0 has no memory words that a stream can wait for",
                "open that gate first",
            ],
        );
        let y = four(&b, 3.0);
        assert_eq!(b.read(&y).blocking_wait().unwrap(), [3.0; 4], "it goes on");
        gate.open();
        assert_eq!(a.read(&x).blocking_wait().unwrap(), [2.0; 4]);
        let gate = b.hold().unwrap();
        let held = b.call(|| 4);
        gate.open();
        assert_eq!(held.blocking_wait().unwrap(), 4);
    });
}

#[test]
fn without_memory_operations_no_stream_is_held_for_another() {
    // The first record is the marker of the awaited fill.
    in_child(&[("SOFTCUDA_NO_MEMOPS", "1"), ("SOFTCUDA_FAIL", "cuEventRecord:2:1")], || {
        let (_runtime, device) = cuda();
        let (a, b) = (stream(&device, "a"), stream(&device, "b"));
        let x = four(&a, 1.0);
        let gate = a.hold().unwrap();
        drop(a.fill(&x, 2.0));
        // A gate on `b` would block the driver's thread for host functions, which has to run this
        // function first.
        let called = a.call(|| 5);
        let event = a.record_event();
        says(
            &refusal(b.wait_event(&event)),
            ErrorKind::Driver,
            &["wait_event on stream \"b\"", "could not be recorded", "await it on the host"],
        );
        assert_eq!(refusal(b.read(&x)).kind(), ErrorKind::Unordered);
        gate.open();
        assert_eq!(called.blocking_wait().unwrap(), 5);
        event.synchronize().blocking_wait().unwrap();
        assert_eq!(b.read(&x).blocking_wait().unwrap(), [2.0; 4]);
    });
}
