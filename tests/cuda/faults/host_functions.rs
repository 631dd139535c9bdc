//! Host functions that panic, and the values that host functions may drop.

use crate::faults::{cuda, four, stream};
use crate::support::software::in_child;
use crate::support::{refusal, says, within_a_minute};
use std::sync::Arc;
use warpline::prelude::*;
use warpline::{reads, writes};

#[test]
fn a_panic_in_foreign_work_fails_the_device_of_its_runtime_and_nothing_behind_it_says_ok() {
    for completion in ["word", "event"] {
        in_child(&[("WARPLINE_COMPLETION", completion)], || {
            let (_runtime, device) = cuda();
            let (_theirs, same_device) = cuda();
            let (stream, other) = (stream(&device, "work"), stream(&device, "other"));
            let x = four(&stream, 1.0);
            let host = device.blocking_pinned::<f32>(4).unwrap();
            let (_held, last) = (Arc::new(()), Arc::new(()));
            let gate = stream.hold().unwrap();
            let before = stream.read(&x);
            let line = line!() + 3;
            // SAFETY: the work is a host function, which touches no device memory.
            let panicked = unsafe {
                stream.external(reads([&x; 0]), writes([&x; 0]), |raw| raw.call(|| panic!("on purpose")))
            };
            drop(stream.fill(&x, 2.0));
            let read = stream.read(&x);
            drop(stream.copy_into(&x, host));
            other.wait_stream(&stream);
            let after = other.read(&x);
            let mine = last.clone();
            let ran = stream.call(move || drop(mine));
            let closing = device.new_stream().unwrap();
            closing.wait_stream(&stream);
            drop(closing);
            gate.open();
            // The device runs the work that it has, and releases everything that the work holds.
            // None of the work counts as done.
            let devices = device.clone();
            within_a_minute(move || {
                while devices.pinned_stats().allocated_bytes > 3 * 4096
                    || devices.bookkeeping().live_streams > 2
                {
                    std::thread::yield_now();
                }
            });
            let place = format!(
                "external failed on stream \"work\" at ticket 4 (tests/cuda/faults/host_functions.rs:{line}): panicked: on purpose; \
                 cuda:0 accepts no more work in this runtime"
            );
            let cause = refusal(panicked);
            says(&cause, ErrorKind::Fault, &[&place]);
            for error in [
                refusal(read),
                refusal(after),
                refusal(ran),
                refusal(stream.fill(&x, 1.0)),
                refusal(device.synchronize()),
                refusal(other.synchronize()),
            ] {
                assert_eq!(error.to_string(), cause.to_string());
            }
            assert_eq!(before.blocking_wait().unwrap(), [1.0; 4], "what came before it");
            assert_eq!(
                same_device.new_stream().unwrap().call(|| 5).blocking_wait().unwrap(),
                5,
                "another runtime goes on"
            );
        });
    }
}

#[test]
fn a_host_function_may_drop_streams_buffers_and_its_runtime() {
    let said = in_child(&[], || {
        let (runtime, device) = cuda();
        let stream = stream(&device, "work");
        let (other, x) = (device.new_stream().unwrap(), four(&stream, 1.0));
        let gate = other.hold().unwrap();
        let busy = other.call(|| 3);
        let all =
            (other, x, device.default_stream().unwrap(), runtime, device.blocking_pinned::<f32>(4).unwrap());
        let pinned = device.pin(vec![0u8; 100]).unwrap();
        gate.open();
        stream.call(move || drop((all, pinned))).blocking_wait().unwrap();
        assert_eq!(busy.blocking_wait().unwrap(), 3);
        assert_eq!(refusal(stream.call(|| ())).kind(), ErrorKind::ShutDown);
        within_a_minute(move || {
            while device.bookkeeping().live_streams > 1 {
                std::thread::yield_now();
            }
        });
    });
    assert!(!said.contains("softcuda: "), "{said}");
}
