//! Launches that break their context.

use crate::faults::{FOUR, add_one, cuda, four, query_until_done, stream};
use crate::support::software::in_child;
use crate::support::{block_on, refusal, says, within_a_minute};
use warpline::prelude::*;

const SECOND_LAUNCH: (&str, &str) = ("SOFTCUDA_POISON_LAUNCH", "2");

#[test]
fn a_poisoned_launch_fails_everything_of_the_device_and_nothing_else() {
    for code in ["700", "710", "716", "719"] {
        in_child(&[("SOFTCUDA_POISON_LAUNCH", &format!("2:{code}"))], || {
            let (runtime, device) = cuda();
            let (_theirs, same_device) = cuda();
            let next = runtime.device(DeviceId::Cuda(1)).unwrap();
            let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
            let compute = stream(&device, "compute");
            let (x, y) = (four(&compute, 1.0), four(&compute, 2.0));
            let host = device.blocking_pinned::<f32>(4).unwrap();
            let pool = device.stream_pool(1).unwrap();
            let lease = block_on(pool.lease()).unwrap();
            let limited = device.stream().max_in_flight(1).build().unwrap();
            let bystanders = [stream(&next, "next"), stream(&cpu, "cpu")];
            let elsewhere = bystanders.each_ref().map(|stream| four(stream, 5.0));

            let good = add_one(&compute, &x, &y);
            let held = [stream(&device, "side"), stream(&same_device, "theirs")];
            let mut gates: Vec<_> = held.iter().map(|stream| stream.hold().unwrap()).collect();
            gates.extend([lease.hold().unwrap(), limited.hold().unwrap()]);
            let [side, theirs] = &held;
            let mut pendings = vec![side.call(|| ()), theirs.call(|| ()), side.synchronize()];
            let event = side.record_timed_event().unwrap();
            pendings.push(event.synchronize());
            drop(lease.call(|| ()));
            drop(lease);
            let mut next_lease = Box::pin(pool.lease());
            assert!(tokio_test::task::spawn(&mut next_lease).poll().is_pending());
            let mut room = Box::pin(limited.room());
            assert!(tokio_test::task::spawn(&mut room).poll().is_pending());

            let gate = compute.hold().unwrap();
            let line = line!() + 1;
            pendings.push(add_one(&compute, &x, &y));
            let sent = compute.copy_into(&x, host);
            let read = compute.read(&y);
            pendings.extend([compute.synchronize(), device.synchronize()]);
            gate.open();

            let cause = refusal(read).to_string();
            let name = match std::env::var("SOFTCUDA_POISON_LAUNCH").unwrap().as_str() {
                "2:700" => "CUDA_ERROR_ILLEGAL_ADDRESS",
                "2:710" => "CUDA_ERROR_ASSERT",
                "2:716" => "CUDA_ERROR_MISALIGNED_ADDRESS",
                _ => "CUDA_ERROR_LAUNCH_FAILED",
            };
            for part in [
                // The error names the driver call that reported the fault first. It may be any
                // call.
                "cuda:0 failed: cu".to_owned(),
                format!(" returned {name}"),
                format!("axpy on stream \"compute\" (tests/cuda/faults/poisoned.rs:{line}) at ticket 5"),
                "call on stream \"side\" (tests/cuda/faults/poisoned.rs:".to_owned(),
                "call on stream \"theirs\" (tests/cuda/faults/poisoned.rs:".to_owned(),
                "cuda:0 accepts no more work in this process".to_owned(),
            ] {
                assert!(cause.contains(&part), "{part:?} is not in {cause:?}");
            }
            let is_cause = |error: Error| {
                assert_eq!((error.kind(), error.to_string()), (ErrorKind::Fault, cause.clone()))
            };
            pendings.into_iter().for_each(|pending| is_cause(refusal(pending)));
            is_cause(refusal(sent));
            is_cause(block_on(next_lease).unwrap_err());
            is_cause(match block_on(room) {
                Ok(permit) => permit.enter(|| refusal(limited.call(|| ()))),
                Err(error) => error,
            });
            for error in [
                refusal(compute.fill(&x, 2.0)),
                refusal(side.call(|| ())),
                refusal(theirs.call(|| ())),
                refusal(side.wait_stream(&compute)),
                event.query().unwrap_err(),
                compute.query().unwrap_err(),
                side.hold().unwrap_err(),
                compute.alloc::<f32>(4).unwrap_err(),
                device.new_stream().unwrap_err(),
                same_device.new_stream().unwrap_err(),
                device.fault().unwrap(),
                same_device.fault().unwrap(),
            ] {
                is_cause(error);
            }
            good.blocking_wait()
                .or_else(|error| if error.kind() == ErrorKind::Fault { Ok(()) } else { Err(error) })
                .unwrap();
            for (stream, buffer) in bystanders.iter().zip(&elsewhere) {
                drop(stream.fill(buffer, 6.0));
                assert_eq!(stream.read(buffer).blocking_wait().unwrap(), [6.0; 4]);
            }
            let opened_later = Runtime::new().unwrap().device(DeviceId::Cuda(0)).unwrap_err();
            says(
                &opened_later,
                ErrorKind::Fault,
                &[
                    "cuda:0 cannot be opened: it has failed in this process: cu",
                    name,
                    "; no runtime of this process can use it again, so start a new process",
                ],
            );
            assert_eq!(opened_later.cuda_code(), device.fault().unwrap().cuda_code());
            assert!(opened_later.cuda_code().is_some());
            drop(gates);
        });
    }
}

#[test]
fn who_only_queries_learns_of_the_fault() {
    for completion in ["word", "event"] {
        in_child(&[SECOND_LAUNCH, ("WARPLINE_COMPLETION", completion)], || {
            let (_runtime, device) = cuda();
            let stream = stream(&device, "compute");
            let (x, y) = (four(&stream, 1.0), four(&stream, 1.0));
            query_until_done(add_one(&stream, &x, &y)).unwrap();
            drop(add_one(&stream, &x, &y));
            let error = query_until_done(stream.read(&y)).unwrap_err();
            says(&error, ErrorKind::Fault, &["axpy on stream \"compute\"", "CUDA_ERROR_ILLEGAL_ADDRESS"]);
        });
    }
}

#[test]
fn with_launch_blocking_the_op_is_named_exactly() {
    in_child(&[SECOND_LAUNCH, ("CUDA_LAUNCH_BLOCKING", "1")], || {
        let (_runtime, device) = cuda();
        let compute = stream(&device, "compute");
        let (x, y) = (four(&compute, 1.0), four(&compute, 1.0));
        add_one(&compute, &x, &y).blocking_wait().unwrap();
        // This waiter makes the reactor check the device at the same time.
        let side = stream(&device, "side");
        let gate = side.hold().unwrap();
        let waiting = side.synchronize();
        let waiter = std::thread::spawn(move || refusal(waiting));
        let line = line!() + 1;
        let error = refusal(add_one(&compute, &x, &y));
        let text = error.to_string();
        let begins = format!(
            "axpy failed on stream \"compute\" at ticket 4 (tests/cuda/faults/poisoned.rs:{line}): cu"
        );
        assert!(text.starts_with(&begins), "{text}");
        says(
            &error,
            ErrorKind::Fault,
            &["CUDA_ERROR_ILLEGAL_ADDRESS", "; cuda:0 accepts no more work in this process"],
        );
        assert_eq!(waiter.join().unwrap().to_string(), text);
        drop(gate);
    });
}

warpline::kernel! {
    pub(crate) unsafe fn panics(y: &mut [f32]) {
        cuda: "extern \"C\" __global__ void panics(float* y) { __trap(); }",
        cpu: |y| { y[0] = 7.0; panic!("on purpose") },
    }
}

#[test]
fn a_twin_that_panics_is_a_failed_launch() {
    in_child(&[], || {
        let (_runtime, device) = cuda();
        let stream = stream(&device, "compute");
        let x = four(&stream, 1.0);
        drop(stream.launch(panics(&x), FOUR));
        says(
            &refusal(stream.read(&x)),
            ErrorKind::Fault,
            &["panics on stream \"compute\"", "CUDA_ERROR_LAUNCH_FAILED"],
        );
    });
}

#[test]
fn host_memory_that_a_copy_may_be_using_when_the_device_dies_is_given_to_nobody() {
    in_child(&[SECOND_LAUNCH], || {
        let (_runtime, device) = cuda();
        let [compute, copy, closing] = ["compute", "copy", "closing"].map(|label| stream(&device, label));
        let (x, y) = (four(&compute, 1.0), four(&compute, 1.0));
        add_one(&compute, &x, &y).blocking_wait().unwrap();
        let z = copy.alloc::<f32>(4).unwrap();
        let gate = copy.hold().unwrap();
        drop(copy.copy_into(&z, device.blocking_pinned::<f32>(4).unwrap()));
        drop(copy.copy_into(&z, device.pin(vec![1.0f32; 4]).unwrap()));
        let (told, hears) = std::sync::mpsc::channel();
        let never = closing.hold().unwrap();
        drop(closing.call(move || told.send(()).unwrap()));
        refusal(add_one(&compute, &x, &y));
        let refused = device.pin(vec![2.0f32; 4]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fault);
        assert_eq!(refused.into_vec::<f32>().expect("it is handed back"), [2.0; 4]);
        // A host function that is never called drops its captures. The memory of the copies would
        // have been released before that.
        assert!(hears.recv().is_err());
        within_a_minute(move || {
            while device.bookkeeping().driver_streams == 0 {
                std::thread::yield_now();
            }
            assert_eq!(device.pinned_stats().allocated_bytes, 4096);
        });
        drop((gate, never));
    });
}

#[test]
fn a_stream_of_another_device_that_waits_for_the_lost_one_fails_with_its_device() {
    in_child(&[SECOND_LAUNCH], || {
        let (runtime, device) = cuda();
        let next = runtime.device(DeviceId::Cuda(1)).unwrap();
        let (_theirs, untouched) = {
            let runtime = Runtime::new().unwrap();
            let device = runtime.device(DeviceId::Cuda(1)).unwrap();
            (runtime, device)
        };
        let (compute, waiting) = (stream(&device, "compute"), stream(&next, "waiting"));
        let (x, y) = (four(&compute, 1.0), four(&compute, 1.0));
        add_one(&compute, &x, &y).blocking_wait().unwrap();
        let gate = compute.hold().unwrap();
        let lost = add_one(&compute, &x, &y);
        drop(four(&stream(&next, "cached"), 1.0));
        let event = compute.record_event();
        let line = line!() + 1;
        waiting.wait_event(&event);
        let op = waiting.call(|| ());
        gate.open();
        assert_eq!(refusal(lost).kind(), ErrorKind::Fault);
        // A thread that has this error may free memory before the error of the other device is
        // known.
        next.empty_cache();
        let place = format!(
            "wait_event failed on stream \"waiting\" at ticket 1 (tests/cuda/faults/poisoned.rs:{line}): it waits for work that will not run: "
        );
        let error = refusal(op);
        assert_eq!(error.cuda_code(), Some(700), "the code of the other device's fault");
        says(
            &error,
            ErrorKind::Fault,
            &[&place, "cuda:0 failed", "cuda:1 accepts no more work in this runtime"],
        );
        assert_eq!(refusal(waiting.call(|| ())).kind(), ErrorKind::Fault);
        let other = untouched.new_stream().unwrap();
        assert_eq!(other.call(|| 3).blocking_wait().unwrap(), 3, "the context lives");

        // A free in the driver would wait for the stalled stream, and would not return.
        let u = four(&other, 1.0);
        assert_eq!(other.read(&u).blocking_wait().unwrap(), [1.0; 4]);
        drop(u);
        assert_eq!(untouched.empty_cache(), 0, "the pool keeps what it has");
        assert!(untouched.memory_stats().reserved_bytes > 0);
        next.empty_cache();
        let registered = untouched.pin(vec![2.0f32; 4]).unwrap();
        drop(registered);
    });
}

#[test]
fn a_stream_that_waited_for_what_the_lost_device_did_in_time_goes_on() {
    // A copy takes longer than the time in which a stream at its wait has to pass it.
    for completion in ["word", "event"] {
        in_child(
            &[SECOND_LAUNCH, ("SOFTCUDA_COPY_DELAY_US", "400000"), ("WARPLINE_COMPLETION", completion)],
            || {
                let (runtime, device) = cuda();
                let next = runtime.device(DeviceId::Cuda(1)).unwrap();
                let [compute, lost] = ["compute", "lost"].map(|label| stream(&device, label));
                let [before, behind, clock] = ["before", "behind", "clock"].map(|label| stream(&next, label));
                let (x, y) = (four(&compute, 1.0), four(&compute, 1.0));
                let [u, v, w] = [&before, &behind, &clock].map(|stream| four(stream, 1.0));
                let gate = compute.hold().unwrap();
                let mut done = add_one(&compute, &x, &y);
                let event = compute.record_event();
                let busy = before.hold().unwrap();
                drop(before.fill(&u, 2.0));
                before.wait_event(&event);
                drop(before.fill(&u, 3.0));
                let read_before = before.read(&u);
                behind.wait_event(&event);
                let read_behind = behind.read(&v);
                // The waiting work is awaited, so that the reactor watches the lost device for it.
                let waiter = std::thread::spawn(move || read_before.blocking_wait());
                gate.open();
                while !done.query().unwrap() {
                    std::thread::yield_now();
                }
                lost.wait_stream(&compute);
                refusal(add_one(&lost, &x, &y));
                assert_eq!(read_behind.blocking_wait().unwrap(), [1.0; 4]);
                assert_eq!(clock.read(&w).blocking_wait().unwrap(), [1.0; 4]);
                assert!(next.fault().is_none());
                busy.open();
                assert_eq!(waiter.join().unwrap().unwrap(), [3.0; 4]);
                assert!(next.fault().is_none());
            },
        );
    }
}

#[test]
fn a_copy_to_a_lost_device_is_refused_and_its_own_device_goes_on() {
    in_child(&[SECOND_LAUNCH], || {
        let (runtime, device) = cuda();
        let next = runtime.device(DeviceId::Cuda(1)).unwrap();
        let (lost, mine) = (stream(&device, "lost"), stream(&next, "mine"));
        let (x, y, z) = (four(&lost, 1.0), four(&lost, 1.0), four(&mine, 2.0));
        let (v, w) = (four(&lost, 1.0), four(&lost, 1.0));
        mine.copy_buffer_peer(&w, &z).blocking_wait().unwrap();
        add_one(&lost, &x, &y).blocking_wait().unwrap();
        let event = lost.record_event();
        refusal(add_one(&lost, &x, &y));
        for (from, to) in [(&z, &w), (&w, &z), (&w, &v)] {
            let error = refusal(mine.copy_buffer_peer(to, from));
            says(&error, ErrorKind::Driver, &["it needs cuda:0, which failed", "cuda:1", "still usable"]);
            assert_eq!(error.cuda_code(), Some(700), "the code of the other device's fault");
        }
        mine.wait_event(&event);
        drop(mine.fill(&z, 4.0));
        assert_eq!(mine.read(&z).blocking_wait().unwrap(), [4.0; 4]);
        assert!(next.fault().is_none());
    });
}

#[test]
fn a_copy_that_finds_another_device_lost_ends_that_one_alone() {
    // The end of the copy that is on the lost device.
    for end in ["source", "destination", "both"] {
        in_child(&[SECOND_LAUNCH, ("WARPLINE_TEST_END", end)], || {
            let (runtime, device) = cuda();
            let next = runtime.device(DeviceId::Cuda(1)).unwrap();
            let (lost, mine) = (stream(&device, "lost"), stream(&next, "mine"));
            let (x, y, z) = (four(&lost, 1.0), four(&lost, 1.0), four(&mine, 2.0));
            let (v, w) = (four(&lost, 1.0), four(&lost, 1.0));
            lost.synchronize().blocking_wait().unwrap();
            add_one(&lost, &x, &y).blocking_wait().unwrap();
            // Nothing awaits this launch, so only the copies find out that it failed.
            drop(add_one(&lost, &x, &y));
            let end = std::env::var("WARPLINE_TEST_END").unwrap();
            let copy = || match end.as_str() {
                "source" => mine.copy_buffer_peer(&z, &v),
                "destination" => mine.copy_buffer_peer(&v, &z),
                _ => mine.copy_buffer_peer(&w, &v),
            };
            while copy().queued().is_ok() {}
            assert!(device.fault().is_some());
            mine.fill(&z, 4.0).blocking_wait().unwrap();
            assert!(next.fault().is_none());
        });
    }
}

#[test]
fn a_device_is_synchronized_although_one_of_its_streams_waits_for_the_lost_one_and_the_others_for_that() {
    // The stream that the `synchronize` of the device waits for first.
    for first in ["waiting", "behind"] {
        in_child(&[SECOND_LAUNCH, ("WARPLINE_TEST_FIRST", first)], || {
            let (runtime, device) = cuda();
            let next = runtime.device(DeviceId::Cuda(1)).unwrap();
            let compute = stream(&device, "compute");
            let [one, other] = ["one", "other"].map(|label| stream(&next, label));
            let waits_first = std::env::var("WARPLINE_TEST_FIRST").unwrap() == "waiting";
            let (waiting, behind) = if waits_first { (one, other) } else { (other, one) };
            let (x, y) = (four(&compute, 1.0), four(&compute, 1.0));
            add_one(&compute, &x, &y).blocking_wait().unwrap();
            let gate = compute.hold().unwrap();
            drop(add_one(&compute, &x, &y));
            drop((waiting.wait_event(&compute.record_event()), waiting.call(|| ())));
            drop((behind.wait_stream(&waiting), behind.call(|| ())));
            let all = next.synchronize();
            gate.open();
            within_a_minute(|| says(&refusal(all), ErrorKind::Fault, &["cuda:0 failed"]));
        });
    }
}

#[test]
fn who_awaits_a_stream_behind_one_that_waits_for_the_lost_device_learns_of_it() {
    // The third device depends on the lost one through the second, or through a stream of its own
    // that nothing awaits.
    for through in ["stream", "device"] {
        in_child(&[SECOND_LAUNCH, ("SOFTCUDA_DEVICES", "3"), ("WARPLINE_TEST_THROUGH", through)], || {
            let (runtime, device) = cuda();
            let (second, third) =
                (runtime.device(DeviceId::Cuda(1)).unwrap(), runtime.device(DeviceId::Cuda(2)).unwrap());
            let through_device = std::env::var("WARPLINE_TEST_THROUGH").unwrap() == "device";
            let compute = stream(&device, "compute");
            let waiting = stream(if through_device { &second } else { &third }, "waiting");
            let behind = stream(&third, "behind");
            let (x, y) = (four(&compute, 1.0), four(&compute, 1.0));
            add_one(&compute, &x, &y).blocking_wait().unwrap();
            let gate = compute.hold().unwrap();
            drop(add_one(&compute, &x, &y));
            drop((waiting.wait_event(&compute.record_event()), waiting.call(|| ())));
            drop((behind.wait_stream(&waiting), behind.call(|| ())));
            let awaited = behind.synchronize();
            gate.open();
            within_a_minute(|| says(&refusal(awaited), ErrorKind::Fault, &["cuda:0 failed"]));
        });
    }
}

#[test]
fn health_learns_of_work_that_nobody_awaits() {
    // The second code may mean anything.
    for (completion, launch) in [("word", "2"), ("event", "2"), ("word", "2:999")] {
        let poison = ("SOFTCUDA_POISON_LAUNCH", launch);
        in_child(&[poison, ("SOFTCUDA_DEVICES", "2"), ("WARPLINE_COMPLETION", completion)], || {
            let (runtime, device) = cuda();
            let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
            let stream = stream(&device, "compute");
            let (x, y) = (four(&stream, 1.0), four(&stream, 1.0));
            block_on(add_one(&stream, &x, &y)).unwrap();
            assert!(device.health().is_ready() && runtime.health().is_ready());
            let mut watched = [device.watch_health(), runtime.watch_health()];
            let of_cpu = cpu.watch_health();
            let line = line!() + 1;
            drop(add_one(&stream, &x, &y));
            // No call is made from here on.
            within_a_minute(move || {
                for health in &mut watched {
                    let state = block_on(health.unready());
                    let fault = state.fault().unwrap();
                    let text = format!("axpy on stream \"compute\" (tests/cuda/faults/poisoned.rs:{line})");
                    says(fault, ErrorKind::Fault, &["cuda:0 failed: cu", &text]);
                }
            });
            assert_eq!(device.health().fault().unwrap().to_string(), device.fault().unwrap().to_string());
            assert!(runtime.health().fault().is_some());
            assert!(of_cpu.state().is_ready() && cpu.health().is_ready());
        });
    }
}

#[test]
fn a_lost_device_is_left_out_and_not_replaced_by_the_cpu() {
    in_child(&[SECOND_LAUNCH, ("SOFTCUDA_DEVICES", "2")], || {
        let device = Device::best().unwrap();
        let stream = stream(&device, "compute");
        let (x, y) = (four(&stream, 1.0), four(&stream, 1.0));
        block_on(add_one(&stream, &x, &y)).unwrap();
        assert!(!device.memory_stats().is_lost && !device.needs_new_process());
        let fault = refusal(add_one(&stream, &x, &y));
        assert_eq!(fault.kind(), ErrorKind::Fault);

        // In this runtime and in a new one.
        assert!(device.needs_new_process());
        assert_eq!(Device::best().unwrap_err().to_string(), fault.to_string());
        let runtime = Runtime::new().unwrap();
        let text = "no runtime of this process can use it again, so start a new process";
        says(&runtime.best_device().unwrap_err(), ErrorKind::Fault, &[text]);
        for devices in [Device::all_cuda(), runtime.cuda_devices()] {
            let ids: Vec<_> = devices.unwrap().iter().map(Device::id).collect();
            assert_eq!(ids, [DeviceId::Cuda(1)]);
        }
        assert!(device.memory_stats().is_lost);
        let summary = device.memory_summary();
        assert!(
            summary.starts_with("memory of cuda:0, which cannot be used any more: what it held is lost\n"),
            "{summary}"
        );
    });
}

#[test]
fn of_lost_devices_alone_the_fault_is_returned() {
    in_child(&[SECOND_LAUNCH, ("SOFTCUDA_DEVICES", "1")], || {
        let (runtime, device) = cuda();
        let stream = stream(&device, "compute");
        let (x, y) = (four(&stream, 1.0), four(&stream, 1.0));
        block_on(add_one(&stream, &x, &y)).unwrap();
        let fault = refusal(add_one(&stream, &x, &y));
        assert_eq!(runtime.cuda_devices().unwrap_err().to_string(), fault.to_string());
    });
}

#[test]
fn a_device_that_other_code_lost_is_no_missing_device() {
    in_child(&[("SOFTCUDA_FAIL", "cuDevicePrimaryCtxRetain:1:719"), ("SOFTCUDA_DEVICES", "2")], || {
        let runtime = Runtime::new().unwrap();
        says(&runtime.best_device().unwrap_err(), ErrorKind::Fault, &["it has failed in this process"]);
    });
}
