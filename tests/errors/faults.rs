//! Devices that fail: every waiter gets the cause, nothing hangs, and other devices are unaffected.

use crate::support::{block_on, refusal, runtime, says, streams, within_a_minute};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use warpline::prelude::*;
use warpline::{RuntimeBuilder, kernels};

fn one_stream(builder: RuntimeBuilder) -> (Runtime, Device, Stream) {
    let runtime = builder.build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let stream = device.stream().label("work").build().unwrap();
    (runtime, device, stream)
}

const ACCEPTS_NO_MORE: &str = "cpu:0 accepts no more work";

#[test]
fn a_failed_op_is_named_with_stream_ticket_and_line() {
    let (_runtime, device, stream) = one_stream(Runtime::builder().fail_op(3));
    let x = stream.alloc::<f32>(4).unwrap();
    let before = stream.fill(&x, 1.0);
    let also = stream.read(&x);
    let line = line!() + 1;
    let error = refusal(stream.fill(&x, 2.0));
    let place = format!("fill failed on stream \"work\" at ticket 3 (tests/errors/faults.rs:{line}): ");
    says(&error, ErrorKind::Fault, &[&place, ACCEPTS_NO_MORE]);
    before.blocking_wait().expect("what ended before the fault is done");
    assert_eq!(also.blocking_wait().unwrap(), [1.0; 4]);
    assert_eq!(device.fault().unwrap().to_string(), error.to_string());
    assert!(!device.needs_new_process(), "the CPU device of another runtime is another one");
}

#[test]
fn a_panic_in_a_twin_is_named_like_any_fault() {
    let (_runtime, _, stream) = one_stream(Runtime::builder().panic_in_twin(2));
    let (x, y) = (stream.alloc::<f32>(4).unwrap(), stream.alloc::<f32>(4).unwrap());
    drop(stream.fill(&x, 1.0));
    drop(stream.fill(&y, 1.0));
    let config = LaunchConfig::for_elements(4u32);
    stream.launch(kernels::axpy(4, 1.0, &x, &y), config).blocking_wait().unwrap();
    let line = line!() + 1;
    let error = refusal(stream.launch(kernels::add_(4, &y, &x), config));
    let place =
        format!("add_ failed on stream \"work\" at ticket 4 (tests/errors/faults.rs:{line}): panicked: ");
    says(&error, ErrorKind::Fault, &[&place, ACCEPTS_NO_MORE]);
}

#[test]
fn a_panic_of_a_host_function_is_named_with_what_it_said_and_ends_no_device() {
    for (panic, said) in [
        ((|| panic!("a static text")) as fn(), "a static text"),
        (|| panic!("a number: {}", std::hint::black_box(5)), "a number: 5"),
        (|| std::panic::panic_any(5), "a value that is not text"),
    ] {
        let (_runtime, device, stream) = one_stream(Runtime::builder());
        let line = line!() + 1;
        let error = refusal(stream.call(panic));
        let place = format!(
            "call on stream \"work\" (tests/errors/faults.rs:{line}) panicked at ticket 1: {said}; the device is still usable"
        );
        says(&error, ErrorKind::Panicked, &[&place]);
        assert_eq!(error.site().expect("the call").op(), "call");
        assert!(device.fault().is_none());
        assert_eq!(stream.call(|| 5).blocking_wait().unwrap(), 5);
    }
}

#[test]
fn later_calls_fail_at_once_with_the_same_cause() {
    let (_runtime, device, stream) = one_stream(Runtime::builder());
    let other = device.stream().label("other").max_in_flight(1).build().unwrap();
    let pool = device.stream_pool(2).unwrap();
    let lease = block_on(pool.lease()).unwrap();
    let x = stream.alloc::<f32>(4).unwrap();
    stream.fill(&x, 1.0).blocking_wait().unwrap();
    let host = device.blocking_pinned::<f32>(4).unwrap();
    // This one is in the pool.
    drop(device.blocking_pinned::<f32>(1000).unwrap());
    let cause = refusal(crate::support::break_device(&stream)).to_string();
    for error in [
        refusal(stream.fill(&x, 2.0)),
        refusal(stream.read(&x)),
        refusal(stream.copy_into(&x, host)),
        refusal(stream.call(|| ())),
        refusal(other.call(|| ())),
        refusal(lease.call(|| ())),
        refusal(other.wait_stream(&lease)),
        stream.hold().unwrap_err(),
        stream.record_timed_event().unwrap_err(),
        stream.alloc::<f32>(4).unwrap_err(),
        device.alloc::<f32>(4).unwrap_err(),
        device.new_stream().unwrap_err(),
        device.default_stream().unwrap_err(),
        block_on(pool.lease()).unwrap_err(),
        block_on(device.pinned::<f32>(1000)).unwrap_err(),
        device.blocking_pinned::<f32>(5000).unwrap_err(),
        device.pin(vec![0u8; 8]).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Fault, cause.clone()));
    }
}

#[test]
fn memory_of_a_failed_device_is_not_handed_out_again() {
    let (_runtime, device, stream) = one_stream(Runtime::builder());
    let x = stream.alloc::<f32>(1000).unwrap();
    let reserved = device.memory_stats().reserved_bytes;
    let gate = stream.hold().unwrap();
    drop(stream.fill(&x, 1.0));
    drop(crate::support::break_device(&stream));
    let unfinished = stream.fill(&x, 2.0);
    gate.open();
    assert_eq!(refusal(unfinished).kind(), ErrorKind::Fault);
    drop(x);
    assert_eq!(stream.alloc::<f32>(1000).unwrap_err().kind(), ErrorKind::Fault);
    assert_eq!(device.memory_stats().reserved_bytes, reserved);
}

#[test]
fn pinned_buffers_of_work_that_never_ran_are_let_go() {
    let (_runtime, device, stream) = one_stream(Runtime::builder());
    let x = stream.alloc::<f32>(1000).unwrap();
    let gate = stream.hold().unwrap();
    drop(crate::support::break_device(&stream));
    drop(stream.copy_into(&x, device.blocking_pinned::<f32>(1000).unwrap()));
    let awaited = stream.copy_into(&x, device.blocking_pinned::<f32>(1000).unwrap());
    gate.open();
    assert_eq!(refusal(awaited).kind(), ErrorKind::Fault);
    within_a_minute(move || {
        while device.pinned_stats().allocated_bytes > 0 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_thousand_waiting_tasks_learn_of_the_fault() {
    within_a_minute(|| {
        let (_runtime, device, stream) = one_stream(Runtime::builder());
        let streams: Vec<_> = (0..10).map(|_| device.new_stream().unwrap()).collect();
        let gates: Vec<_> = streams.iter().map(|stream| stream.hold().unwrap()).collect();
        let gate = stream.hold().unwrap();
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let polled = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..1000)
            .map(|n| {
                let (mut op, polled) = (streams[n % 10].call(move || n), polled.clone());
                executor.spawn(async move {
                    assert!(futures::poll!(&mut op).is_pending());
                    polled.fetch_add(1, Ordering::SeqCst);
                    op.await
                })
            })
            .collect();
        while polled.load(Ordering::SeqCst) < 1000 {
            std::thread::yield_now();
        }
        let cause = crate::support::break_device(&stream);
        gate.open();
        let cause = refusal(cause).to_string();
        executor.block_on(async {
            for task in tasks {
                assert_eq!(task.await.unwrap().unwrap_err().to_string(), cause);
            }
        });
        // The gates stay closed until here.
        drop(gates);
    });
}

#[test]
fn another_runtime_and_another_device_go_on() {
    let (_theirs, _, [bystander]) = streams(["bystander"]);
    let runtime = runtime(2);
    let [one, two] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
    let (failing, healthy) = (one.new_stream().unwrap(), two.new_stream().unwrap());
    let x = healthy.alloc::<f32>(4).unwrap();
    let gate = healthy.hold().unwrap();
    let held = healthy.fill(&x, 1.0);
    refusal(crate::support::break_device(&failing));
    gate.open();
    held.blocking_wait().unwrap();
    assert_eq!(healthy.read(&x).blocking_wait().unwrap(), [1.0; 4]);
    assert_eq!(bystander.call(|| 5).blocking_wait().unwrap(), 5);
    assert!(one.fault().is_some() && two.fault().is_none());
    assert_eq!(two.new_stream().unwrap().call(|| 6).blocking_wait().unwrap(), 6);
}

#[test]
fn a_refused_copy_to_a_failed_device_is_returned_once() {
    let runtime = runtime(2);
    let [one, two] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
    let [x, y] = [&one, &two].map(|device| Tensor::ones([4], device).queued().unwrap());
    let failing = two.new_stream().unwrap();
    block_on(one.synchronize()).unwrap();
    block_on(two.synchronize()).unwrap();
    refusal(crate::support::break_device(&failing));
    assert_eq!(refusal(y.copy_(&x)).kind(), ErrorKind::Fault);
    block_on(one.synchronize()).expect("the program has seen the call's error");
}

#[test]
fn a_stream_that_waits_for_work_of_a_failed_device_says_so() {
    within_a_minute(|| {
        let runtime = runtime(2);
        let [one, two] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
        let failing = one.stream().label("failing").build().unwrap();
        let waiting = two.stream().label("waiting").build().unwrap();
        let gate = failing.hold().unwrap();
        drop(crate::support::break_device(&failing));
        drop(failing.call(|| ()));
        waiting.wait_stream(&failing);
        let op = waiting.call(|| ());
        gate.open();
        says(
            &refusal(op),
            ErrorKind::Fault,
            &[
                "wait_stream failed on stream \"waiting\" at ticket 1",
                "it waits for work that will not run: fails failed on",
            ],
        );
    });
}

// Nothing hangs.

#[test]
fn a_runtime_dropped_with_a_closed_gate_resolves_what_the_gate_held() {
    within_a_minute(|| {
        let (runtime, device, stream) = one_stream(Runtime::builder());
        let x = stream.alloc::<f32>(4).unwrap();
        let gate = stream.hold().unwrap();
        let line = line!() + 1;
        let held = stream.fill(&x, 1.0);
        drop(stream.fill(&x, 2.0));
        let all = device.synchronize();
        drop(runtime);
        let text = format!(
            "the runtime was shut down with 2 ops in flight on stream \"work\", the oldest fill (tests/errors/faults.rs:{line})"
        );
        says(&refusal(held), ErrorKind::ShutDown, &[&text, "held at a wait that nothing will release"]);
        says(&refusal(all), ErrorKind::ShutDown, &[&text]);
        gate.open();
        assert_eq!(refusal(stream.call(|| ())).kind(), ErrorKind::ShutDown);
    });
}

#[test]
fn a_runtime_dropped_with_queued_work_lets_it_run() {
    within_a_minute(|| {
        let (runtime, _, stream) = one_stream(Runtime::builder());
        let count = Arc::new(AtomicU32::new(0));
        let ops: Vec<_> = (0..1000)
            .map(|_| {
                let count = count.clone();
                stream.call(move || count.fetch_add(1, Ordering::SeqCst))
            })
            .collect();
        drop(runtime);
        for (n, op) in ops.into_iter().enumerate() {
            assert_eq!(op.blocking_wait().unwrap(), n as u32);
        }
    });
}

#[test]
fn a_seeded_runtime_dropped_with_work_runs_what_can_run_and_reports_the_rest() {
    within_a_minute(|| {
        for seed in 0..20 {
            let (runtime, device, stream) = one_stream(Runtime::builder().schedule(Schedule::Seeded(seed)));
            let other = device.stream().label("held").build().unwrap();
            let ran = stream.call(|| 5);
            let gate = other.hold().unwrap();
            let held = other.call(|| 6);
            drop(runtime);
            assert_eq!(ran.blocking_wait().unwrap(), 5);
            says(
                &refusal(held),
                ErrorKind::ShutDown,
                &["1 op in flight on stream \"held\", the oldest call"],
            );
            drop(gate);
        }
    });
}

#[test]
fn an_explicit_shutdown_waits_for_what_can_run_and_reports_the_rest() {
    within_a_minute(|| {
        let (runtime, _, stream) = one_stream(Runtime::builder());
        (0..99).for_each(|n| drop(stream.call(move || n)));
        let last = stream.call(|| 99);
        block_on(runtime.shut_down()).unwrap();
        assert_eq!(last.blocking_wait().unwrap(), 99);

        let (runtime, _, stream) = one_stream(Runtime::builder());
        let gate = stream.hold().unwrap();
        let error = block_on(runtime.shut_down()).unwrap_err();
        says(&error, ErrorKind::ShutDown, &["in flight on stream \"work\", the oldest hold"]);
        drop(gate);
    });
}

#[test]
fn a_runtime_may_be_dropped_by_a_host_function_of_its_own() {
    within_a_minute(|| {
        let (runtime, _, stream) = one_stream(Runtime::builder());
        let op = stream.call(move || drop(runtime));
        op.blocking_wait().unwrap();
        assert_eq!(refusal(stream.call(|| ())).kind(), ErrorKind::ShutDown);
    });
}

#[test]
fn a_runtime_may_be_dropped_while_tasks_enqueue() {
    within_a_minute(|| {
        for _ in 0..50 {
            let (runtime, device, _) = one_stream(Runtime::builder());
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let stream = device.new_stream().unwrap();
                    std::thread::spawn(move || {
                        loop {
                            if let Err(error) = stream.call(|| ()).blocking_wait() {
                                return error.kind();
                            }
                        }
                    })
                })
                .collect();
            drop(runtime);
            for thread in threads {
                assert_eq!(thread.join().unwrap(), ErrorKind::ShutDown);
            }
        }
    });
}

#[test]
fn who_waits_for_room_learns_of_the_fault() {
    within_a_minute(|| {
        let (_runtime, device, failing) = one_stream(Runtime::builder());
        let stream = device.stream().max_in_flight(1).build().unwrap();
        let gate = stream.hold().unwrap();
        let mut room = Box::pin(stream.room());
        assert!(tokio_test::task::spawn(&mut room).poll().is_pending());
        let cause = refusal(crate::support::break_device(&failing)).to_string();
        // The fault drops the held op, but the room that this frees is not granted.
        assert_eq!(block_on(room).unwrap_err().to_string(), cause);
        drop(gate);
    });
}

#[test]
fn who_waits_for_a_lease_learns_of_the_fault() {
    within_a_minute(|| {
        let (_runtime, device, failing) = one_stream(Runtime::builder());
        let pool = device.stream_pool(1).unwrap();
        let lease = block_on(pool.lease()).unwrap();
        let gate = lease.hold().unwrap();
        drop(lease);
        let mut next = Box::pin(pool.lease());
        assert!(tokio_test::task::spawn(&mut next).poll().is_pending());
        let cause = refusal(crate::support::break_device(&failing)).to_string();
        assert_eq!(block_on(next).unwrap_err().to_string(), cause);
        drop(gate);
    });
}

#[test]
fn an_aborted_task_and_a_panicking_waker_keep_nobody_from_learning_of_the_fault() {
    struct Panicking;
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics, on purpose");
        }
    }
    within_a_minute(|| {
        let (_runtime, device, failing) = one_stream(Runtime::builder());
        let stream = device.new_stream().unwrap();
        let gate = stream.hold().unwrap();
        let mut first = stream.synchronize();
        let waker = Waker::from(Arc::new(Panicking));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        executor.block_on(async {
            let [aborted, waiting] = [(); 2].map(|()| tokio::spawn(stream.synchronize()));
            aborted.abort();
            assert!(aborted.await.is_err());
            let cause = crate::support::break_device(&failing).await.unwrap_err();
            assert_eq!(waiting.await.unwrap().unwrap_err().to_string(), cause.to_string());
        });
        assert_eq!(refusal(first).kind(), ErrorKind::Fault);
        drop(gate);
    });
}

#[test]
fn a_value_that_panics_when_it_is_dropped_unrun_harms_nobody() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("a drop that panics, on purpose");
            }
        }
    }
    within_a_minute(|| {
        let (_runtime, _, stream) = one_stream(Runtime::builder());
        let gate = stream.hold().unwrap();
        drop(crate::support::break_device(&stream));
        let bomb = Bomb;
        drop(stream.call(move || std::mem::forget(bomb)));
        let last = stream.call(|| ());
        gate.open();
        assert_eq!(refusal(last).kind(), ErrorKind::Fault);
    });
}

#[test]
fn a_fault_of_a_seeded_schedule_is_the_same_every_time() {
    let fails_at = |seed| {
        let (_runtime, device, a) =
            one_stream(Runtime::builder().schedule(Schedule::Seeded(seed)).fail_op(5));
        let b = device.stream().label("b").build().unwrap();
        (0..4).for_each(|_| drop((a.call(|| ()), b.call(|| ()))));
        let error = refusal(device.synchronize()).to_string();
        assert!(error.contains("call failed on stream"), "{error}");
        error
    };
    let all: std::collections::BTreeSet<_> = (0..20)
        .map(|seed| {
            let error = fails_at(seed);
            assert_eq!(error, fails_at(seed));
            error
        })
        .collect();
    assert!(all.len() > 1, "the seeds differ: {all:?}");
}

#[test]
fn work_that_was_lost_is_reported_after_its_streams_are_gone() {
    for _ in 0..30 {
        let (runtime, device, stream) = one_stream(Runtime::builder().fail_op(2));
        let x = stream.alloc_zeroed::<f32>(4).unwrap();
        stream.fill(&x, 1.0).detach();
        drop((stream, x));
        says(&refusal(device.synchronize()), ErrorKind::Fault, &["fill failed on stream \"work\""]);
        let error = block_on(runtime.shut_down()).unwrap_err();
        says(&error, ErrorKind::Fault, &["fill failed on stream \"work\""]);
    }
}

#[test]
fn a_failed_device_gives_no_room_and_no_lease() {
    let (_runtime, device, stream) = one_stream(Runtime::builder().fail_op(2));
    let pool = device.stream_pool(1).unwrap();
    let limited = device.stream().max_in_flight(8).build().unwrap();
    let leased = pool.try_lease().unwrap().expect("it is the first");
    let x = stream.alloc_zeroed::<f32>(4).unwrap();
    drop(refusal(stream.fill(&x, 1.0)));
    let says_so = |error: Error| says(&error, ErrorKind::Fault, &["fill failed on stream \"work\""]);
    says_so(block_on(limited.room()).unwrap_err());
    says_so(pool.try_lease().unwrap_err());
    says_so(block_on(pool.lease()).unwrap_err());
    drop(leased);
    says_so(pool.try_lease().unwrap_err());
}

#[test]
fn health_moves_from_ready_to_failing_or_shutting_down() {
    let runtime = Runtime::builder().cpu_devices(2).build().unwrap();
    let [one, two] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
    let mut watches = [one.watch_health(), two.watch_health(), runtime.watch_health()];
    assert!(watches.iter().all(|watch| watch.state().is_ready()));
    let stream = one.new_stream().unwrap();
    let text = refusal(crate::support::break_device(&stream)).to_string();
    assert_eq!(block_on(watches[0].unready()).fault().unwrap().to_string(), text);
    let of_runtime = block_on(watches[2].changed()).unwrap();
    assert_eq!(of_runtime.fault().unwrap().to_string(), text);
    assert_eq!(runtime.health().fault().unwrap().to_string(), text);
    assert!(two.health().is_ready());

    drop(runtime);
    assert!(matches!(block_on(watches[1].unready()), warpline::HealthState::ShuttingDown));
    assert!(matches!(two.health(), warpline::HealthState::ShuttingDown));
    assert!(one.health().fault().is_some(), "a failure stays");
    drop((one, two, stream));
    assert!(block_on(watches[1].changed()).is_none(), "the device is gone");
}

#[test]
fn a_watch_knows_of_a_fault_as_soon_as_somebody_has_awaited_it() {
    for _ in 0..100 {
        let (runtime, device, stream) = one_stream(Runtime::builder());
        let earlier = device.watch_health();
        drop(refusal(crate::support::break_device(&stream)));
        for watch in [earlier, device.watch_health(), runtime.watch_health()] {
            assert!(watch.state().fault().is_some());
        }
    }
}

#[test]
fn a_device_that_was_shut_down_with_work_behind_a_gate_has_not_failed() {
    let (runtime, device, stream) = one_stream(Runtime::builder());
    let gate = stream.hold().unwrap();
    let held = stream.call(|| ());
    let mut watch = device.watch_health();
    drop(runtime);
    assert_eq!(refusal(held).kind(), ErrorKind::ShutDown);
    assert!(matches!(block_on(watch.unready()), warpline::HealthState::ShuttingDown));
    assert!(matches!(device.health(), warpline::HealthState::ShuttingDown));
    drop(gate);
}

#[test]
fn a_stream_of_a_failed_device_says_so_although_it_was_idle() {
    let (_runtime, device, stream) = one_stream(Runtime::builder());
    let (idle, x) = (device.new_stream().unwrap(), stream.alloc::<f32>(4).unwrap());
    stream.fill(&x, 1.0).blocking_wait().unwrap();
    let passed = stream.record_event();
    let failing = device.new_stream().unwrap();
    let cause = refusal(crate::support::break_device(&failing)).to_string();
    stream.call(|| ()).detach();
    for idle in [&idle, &stream] {
        for error in [
            refusal(idle.synchronize()),
            idle.query().unwrap_err(),
            refusal(idle.record_event().synchronize()),
            idle.record_event().query().unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.to_string()), (ErrorKind::Fault, cause.clone()));
        }
    }
    assert!(passed.query().unwrap(), "it was passed before");
}

#[test]
fn a_panic_counts_although_its_stream_is_gone() {
    for _ in 0..20 {
        let (runtime, device, stream) = one_stream(Runtime::builder());
        let (tell, told) = std::sync::mpsc::channel();
        let panics = |stream: Stream| {
            let tell = tell.clone();
            stream.call(|| panic!("on purpose")).detach();
            stream.call(move || tell.send(()).unwrap()).detach();
        };
        panics(stream);
        told.recv().unwrap();
        let said = ["call on stream \"work\"", "on purpose"];
        says(&refusal(device.synchronize()), ErrorKind::Panicked, &said);
        device.synchronize().blocking_wait().unwrap();
        panics(device.stream().label("work").build().unwrap());
        told.recv().unwrap();
        says(&block_on(runtime.shut_down()).unwrap_err(), ErrorKind::Panicked, &said);
    }
}

#[test]
fn a_shutdown_waits_for_every_call_that_was_accepted() {
    for _ in 0..50 {
        let (runtime, device, _stream) = one_stream(Runtime::builder());
        let ran = Arc::new(AtomicU32::new(0));
        let begin = Arc::new(std::sync::Barrier::new(3));
        let threads = [(); 2].map(|()| {
            let (ran, begin, stream) = (ran.clone(), begin.clone(), device.new_stream().unwrap());
            std::thread::spawn(move || {
                begin.wait();
                loop {
                    let (before, ran) = (stream.issued(), ran.clone());
                    let mut call = stream.call(move || ran.fetch_add(1, Ordering::Relaxed));
                    if call.query().is_err() {
                        assert_eq!(stream.issued(), before, "it is refused, so it never runs");
                        break before;
                    }
                    call.detach();
                }
            })
        });
        begin.wait();
        block_on(runtime.shut_down()).unwrap();
        let ran = ran.load(Ordering::Relaxed);
        let accepted: u64 = threads.map(|thread| thread.join().unwrap()).iter().sum();
        assert_eq!(u64::from(ran), accepted);
    }
}
