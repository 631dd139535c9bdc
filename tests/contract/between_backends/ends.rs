//! Edges between backends where something ends or fails: streams, devices, shutdowns. Also order
//! modes, leases, seeds and foreign work, which need no second order of the devices.

use super::{Diary, THREAD_0};
use crate::support::software::in_child;
use crate::support::{block_on, break_device, refusal, says, within_a_minute};
use crate::{seeds, with_outside_devices};
use warpline::prelude::*;
use warpline::{RuntimeBuilder, kernels};

#[test]
fn nothing_more_of_an_abandoned_stream_runs_and_everything_of_it_is_released() {
    for (schedule, swapped) in
        [(Schedule::Threads, false), (Schedule::Threads, true), (Schedule::Seeded(3), false)]
    {
        within_a_minute(move || {
            let (runtime, mut streams) = two_streams(Runtime::builder().schedule(schedule));
            if swapped {
                streams.reverse();
            }
            let ([a, _], diary) = (streams, Diary::default());
            let other = runtime.devices().into_iter().find(|device| *device != a.device()).unwrap();
            let pool = other.stream_pool(1).unwrap();
            let b = block_on(pool.lease()).unwrap();
            let limited = other.stream().max_in_flight(1).build().unwrap();
            let before = other.memory_stats().allocated_bytes;
            let x = b.alloc::<f32>(1000).unwrap();
            diary.note(&b, 1).detach();
            let gate = a.hold().unwrap();
            break_device(&a).detach();
            b.wait_stream(&a);
            limited.wait_stream(&a);
            let (lost, filled) = (diary.note(&b, 2), b.fill(&x, 1.0));
            let unroomy = limited.call(|| ());
            gate.open();
            let parts = [" was abandoned: wait_stream (", "use another stream"];
            let fails =
                |pending: Pending<()>| says(&block_on(pending).unwrap_err(), ErrorKind::Fault, &parts);
            fails(lost);
            fails(filled);
            fails(unroomy);
            for refused in [
                refusal(diary.note(&b, 3)),
                refusal(b.fill(&x, 2.0)),
                refusal(limited.call(|| ())),
                refusal(other.new_stream().unwrap().wait_stream(&b)),
            ] {
                says(&refused, ErrorKind::Driver, &parts);
            }
            // Its room and its lease are free again, and so is the memory.
            let permit = block_on(limited.room()).unwrap();
            drop((permit, b, x));
            let next = block_on(pool.lease()).unwrap();
            assert_eq!(other.memory_stats().allocated_bytes, before);
            let y = next.alloc::<f32>(1000).unwrap();
            block_on(next.fill(&y, 4.0)).unwrap();
            assert_eq!(block_on(next.read(&y)).unwrap(), [4.0; 1000]);
            assert_eq!(diary.entries(), [1]);
        });
    }
}

#[test]
fn an_event_of_a_stream_that_ends_meanwhile_is_waited_for() {
    within_a_minute(|| {
        let (_runtime, [a, b]) = two_streams(Runtime::builder());
        for round in 0..3000 {
            let (from, to) = if round % 2 == 0 { (a.device(), &b) } else { (b.device(), &a) };
            let ends = from.new_stream().unwrap();
            let issued = to.issued();
            ends.call(|| ()).detach();
            let event = ends.record_event();
            drop(ends);
            to.wait_event(&event);
            assert_eq!(to.issued(), issued + 1);
            block_on(to.synchronize()).unwrap();
        }
    });
}

#[test]
fn memory_of_a_failed_device_is_not_copied() {
    for schedule in [Schedule::Threads, Schedule::Seeded(4)] {
        within_a_minute(move || {
            let (runtime, [a, b]) = two_streams(Runtime::builder().schedule(schedule).cpu_devices(2));
            let (x, y) = (a.alloc::<f32>(8).unwrap(), b.alloc::<f32>(8).unwrap());
            block_on(a.fill(&x, 1.0)).unwrap();
            block_on(b.fill(&y, 2.0)).unwrap();
            // This one is accepted before the failure, and handed over after it.
            let held = runtime.device(DeviceId::Cpu(1)).unwrap().new_stream().unwrap();
            let gate = held.hold().unwrap();
            b.wait_stream(&held);
            let late = b.copy_buffer_peer(&y, &x);
            block_on(break_device(&a)).unwrap_err();
            gate.open();
            let parts = ["it needs cpu:0, which failed: ", "on purpose", "thread:0", "still usable"];
            says(&block_on(late).unwrap_err(), ErrorKind::Driver, &parts);
            let side = b.device().new_stream().unwrap();
            let z = side.alloc::<f32>(8).unwrap();
            says(&refusal(side.copy_buffer_peer(&z, &x)), ErrorKind::Driver, &parts);
            let tensor = Tensor::from_buffer(x, [8]).unwrap();
            says(
                &refusal(side.enter(|| a.enter(|| tensor.to(&b.device())))),
                ErrorKind::Driver,
                &["it needs cpu:0, which failed"],
            );
        });
    }
}

#[test]
fn a_copy_between_backends_needs_an_order_mode_that_orders() {
    for mode in [warpline::OrderMode::Warn, warpline::OrderMode::Off] {
        let (_runtime, [a, b]) = two_streams(Runtime::builder().order(mode));
        let (x, y) = (a.alloc::<f32>(8).unwrap(), b.alloc::<f32>(8).unwrap());
        let text = format!(
            "a copy between cpu:0 and thread:0 needs the order mode deny or wait, and this runtime has {mode:?}"
        );
        says(
            &refusal(b.copy_buffer_peer(&y, &x)),
            ErrorKind::Unsupported,
            &["copy_buffer_peer on stream", &text],
        );
    }
}

#[test]
fn a_refused_copy_marks_its_tensor_for_the_stream_of_that_tensor() {
    within_a_minute(|| {
        let (runtime, [a, b]) = two_streams(Runtime::builder().cpu_devices(2));
        let third = runtime.device(DeviceId::Cpu(1)).unwrap();
        // The source's current stream is abandoned: it waits for a device that fails.
        let broken = third.new_stream().unwrap();
        let source = b.device().new_stream().unwrap();
        let gate = broken.hold().unwrap();
        break_device(&broken).detach();
        source.wait_stream(&broken);
        let lost = source.call(|| ());
        gate.open();
        block_on(lost).unwrap_err();
        let x = Tensor::ones([4], &b.device()).queued().unwrap();
        let z = Tensor::zeros([4], &a.device()).queued().unwrap();
        block_on(a.device().synchronize()).unwrap();
        source.enter(|| z.copy_(&x).detach());
        let read = refusal(z.sum());
        assert!(read.is_inherited(), "{read}");
    });
}

#[test]
fn a_refused_wait_hands_on_what_was_not_written() {
    within_a_minute(|| {
        let (_runtime, [b, a]) = two_streams(Runtime::builder());
        let (x, y) = (a.alloc_zeroed::<f32>(8).unwrap(), b.alloc_zeroed::<f32>(8).unwrap());
        block_on(a.synchronize()).unwrap();
        // `a` does not wait for the fill, so its copy is refused, and then its device fails.
        b.fill(&y, 1.0).detach();
        a.copy_buffer_peer(&y, &x).detach();
        block_on(break_device(&a)).unwrap_err();
        let waited = block_on(b.wait_stream(&a).into_future()).unwrap_err();
        says(&waited, ErrorKind::Driver, &["it needs thread:0, which failed"]);
        let read = refusal(b.read(&y));
        assert!(read.is_inherited(), "{read}");
    });
}

#[test]
fn a_refused_wait_for_an_abandoned_stream_hands_on_what_was_not_written() {
    within_a_minute(|| {
        let (_runtime, [a, b]) = two_streams(Runtime::builder());
        let x = b.alloc::<f32>(8).unwrap();
        block_on(b.fill(&x, 1.0)).unwrap();
        let gate = a.hold().unwrap();
        break_device(&a).detach();
        b.wait_stream(&a);
        let lost = b.call(|| ());
        gate.open();
        block_on(lost).unwrap_err();
        b.fill(&x, 2.0).detach();
        let [by_stream, by_memory] = [(); 2].map(|()| b.device().new_stream().unwrap());
        by_stream.wait_stream(&b);
        by_memory.wait_for(&x);
        for reader in [by_stream, by_memory] {
            let read = refusal(reader.read(&x));
            assert!(read.is_inherited(), "{read}");
        }
    });
}

#[test]
fn a_lease_takes_the_turns_of_a_seeded_device() {
    within_a_minute(|| {
        let (runtime, [a, _]) = two_streams(Runtime::builder().schedule(Schedule::Seeded(1)));
        let thread = runtime.device(THREAD_0).unwrap();
        let pool = thread.stream_pool(1).unwrap();
        let lease = block_on(pool.lease()).unwrap();
        a.call(|| ()).detach();
        lease.wait_stream(&a);
        lease.call(|| ()).detach();
        drop(lease);
        // No other future polls anything of the seeded device.
        drop(block_on(pool.lease()).unwrap());
    });
}

#[test]
fn seeded_helpers_wait_for_other_backends() {
    let pipeline = |devices: Vec<Device>| async move {
        let [cpu, thread] = &devices[..] else { panic!("{devices:?}") };
        let (a, b) = (cpu.new_stream()?, thread.new_stream()?);
        let diary = Diary::default();
        for n in 0..10 {
            let (here, before) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
            here.wait_stream(before);
            diary.note(here, n).detach();
        }
        b.synchronize().await?;
        assert_eq!(diary.entries(), (0..10).collect::<Vec<_>>());
        Ok(())
    };
    within_a_minute(move || {
        let builder = || with_outside_devices(Runtime::builder(), 1);
        warpline::testing::for_each_seed_on(builder(), 0..seeds(), pipeline);
        warpline::testing::for_each_seed_tokio_on(builder(), 0..seeds(), pipeline);
    });
}

#[test]
fn wait_mode_adds_the_edges_between_backends() {
    for schedule in [Schedule::Threads, Schedule::Seeded(5)] {
        within_a_minute(move || {
            let builder = Runtime::builder().schedule(schedule).order(warpline::OrderMode::Wait);
            let (_runtime, [a, b]) = two_streams(builder);
            let (x, y) = (a.alloc::<f32>(100).unwrap(), b.alloc::<f32>(100).unwrap());
            let gate = a.hold().unwrap();
            a.fill(&x, 5.0).detach();
            b.copy_buffer_peer(&y, &x).detach();
            // This overwrites what the copy reads.
            a.fill(&x, 6.0).detach();
            b.copy_buffer_peer(&x, &y).detach();
            let read = a.read(&x);
            gate.open();
            assert_eq!(block_on(read).unwrap(), [5.0; 100]);
        });
    }
}

#[test]
fn a_borrowed_stream_and_foreign_work_wait_on_the_host() {
    in_child(&[], || {
        within_a_minute(|| {
            for schedule in [Schedule::Threads, Schedule::Seeded(2)] {
                let runtime = Runtime::builder().schedule(schedule).build().unwrap();
                let [cpu, cuda] = [DeviceId::Cpu(0), DeviceId::Cuda(0)].map(|id| runtime.device(id).unwrap());
                let (a, c) = (cpu.new_stream().unwrap(), cuda.new_stream().unwrap());
                let theirs = cudarc::driver::CudaContext::new(0).unwrap().new_stream().unwrap();
                // SAFETY: `theirs` lives longer than `lent`, and enqueues nothing.
                let lent = unsafe { cuda.stream().borrow_raw(theirs.cu_stream().cast()) }.build().unwrap();
                let diary = Diary::default();
                diary.note(&a, 1).detach();
                c.wait_stream(&a);
                diary.note(&c, 2).detach();
                // The first waits for the other backend, the second for an event that is yet to be
                // recorded.
                lent.wait_stream(&a);
                lent.wait_stream(&c);
                diary.note(&lent, 3).detach();
                c.wait_stream(&a);
                let enqueued = diary.clone();
                // SAFETY: the closure enqueues nothing.
                unsafe {
                    c.external(warpline::reads::<f32>([]), warpline::writes::<f32>([]), move |_| {
                        enqueued.0.lock().unwrap().push(4)
                    })
                }
                .blocking_wait()
                .unwrap();
                lent.synchronize().blocking_wait().unwrap();
                let mut entries = diary.entries();
                entries.sort_unstable();
                assert_eq!(entries, [1, 2, 3, 4]);
            }
        });
    });
}

#[test]
fn a_held_back_gate_ends_with_the_runtime() {
    in_child(&[], || {
        within_a_minute(|| {
            let runtime = Runtime::new().unwrap();
            let [cpu, cuda] = [DeviceId::Cpu(0), DeviceId::Cuda(0)].map(|id| runtime.device(id).unwrap());
            let (a, b) = (cpu.new_stream().unwrap(), cuda.new_stream().unwrap());
            let (go, wait) = std::sync::mpsc::channel::<()>();
            a.call(move || wait.recv().unwrap()).detach();
            b.wait_stream(&a);
            let gate = b.hold().unwrap();
            let lost = b.call(|| ());
            let ended = runtime.shut_down();
            let mut ended = Box::pin(ended);
            let waker = std::task::Waker::noop();
            assert!(ended.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
            go.send(()).unwrap();
            assert_eq!(block_on(ended).unwrap_err().kind(), ErrorKind::ShutDown);
            assert_eq!(block_on(lost).unwrap_err().kind(), ErrorKind::ShutDown);
            drop(gate);
        });
    });
}

/// Builds a runtime with `cpu:0` and `thread:0`, and returns a stream of each.
fn two_streams(builder: RuntimeBuilder) -> (Runtime, [Stream; 2]) {
    let runtime = with_outside_devices(builder, 1).build().unwrap();
    let streams = [DeviceId::Cpu(0), THREAD_0].map(|id| {
        let device = runtime.device(id).unwrap();
        device.stream().label(format!("of {device}")).build().unwrap()
    });
    (runtime, streams)
}

#[test]
fn a_shutdown_finishes_the_work_that_is_held_back() {
    for schedule in [Schedule::Threads, Schedule::Seeded(3)] {
        within_a_minute(move || {
            let (runtime, [a, b]) = two_streams(Runtime::builder().schedule(schedule));
            let diary = Diary::default();
            let gate = a.hold().unwrap();
            diary.note(&a, 1).detach();
            b.wait_stream(&a);
            diary.note(&b, 2).detach();
            a.wait_stream(&b);
            diary.note(&a, 3).detach();
            gate.open();
            block_on(runtime.shut_down()).unwrap();
            assert_eq!(diary.entries(), [1, 2, 3]);
            assert_eq!(refusal(b.call(|| ())).kind(), ErrorKind::ShutDown);
        });
    }
}

#[test]
fn work_behind_a_gate_that_is_never_opened_ends_with_the_runtime() {
    for schedule in [Schedule::Threads, Schedule::Seeded(3)] {
        within_a_minute(move || {
            let (runtime, [a, b]) = two_streams(Runtime::builder().schedule(schedule));
            let gate = a.hold().unwrap();
            b.wait_stream(&a);
            let lost = b.call(|| ());
            let error = block_on(runtime.shut_down()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
            let error = block_on(lost).unwrap_err();
            says(
                &error,
                ErrorKind::ShutDown,
                &[
                    "stream \"of thread:0\" of thread:0 was abandoned: wait_stream (",
                    "it waits for work of cpu:0 that will not run",
                ],
            );
            drop(gate);
        });
    }
}

#[test]
fn an_op_that_fails_takes_along_what_is_held_back_behind_it() {
    for schedule in [Schedule::Threads, Schedule::Seeded(3)] {
        within_a_minute(move || {
            let (_runtime, [a, b]) = two_streams(Runtime::builder().schedule(schedule).fail_op(2));
            let diary = Diary::default();
            let x = b.alloc::<f32>(8).unwrap();
            let gate = a.hold().unwrap();
            a.call(|| ()).detach();
            let fails = a.call(|| ());
            b.wait_stream(&a);
            let written = b.fill(&x, 1.0);
            let noted = diary.note(&b, 1);
            let c = b.device().new_stream().unwrap();
            c.wait_stream(&b);
            let behind = diary.note(&c, 2);
            gate.open();
            assert_eq!(block_on(fails).unwrap_err().kind(), ErrorKind::Fault);
            let parts = [
                "stream \"of thread:0\" of thread:0 was abandoned: wait_stream (tests/contract/between_backends/ends.rs:",
                "it waits for work of cpu:0 that will not run: ",
                "the fault plan asked for it",
                "use another stream",
            ];
            says(&block_on(noted).unwrap_err(), ErrorKind::Fault, &parts);
            says(&block_on(written).unwrap_err(), ErrorKind::Fault, &parts);
            let kind = block_on(behind).unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::Fault | ErrorKind::Driver), "{kind:?}");
            assert!(diary.entries().is_empty());
            // The other device is still usable, but what was not written cannot be read.
            let fresh = b.device().new_stream().unwrap();
            assert_eq!(block_on(fresh.call(|| 5)).unwrap(), 5);
            let unwritten = block_on(fresh.read(&x)).unwrap_err();
            assert!(unwritten.is_inherited(), "{unwritten}");
            // A wait for the failed device is refused, and names the failure.
            says(
                &block_on(fresh.wait_stream(&a).into_future()).unwrap_err(),
                ErrorKind::Driver,
                &["it needs cpu:0, which failed"],
            );
        });
    }
}

/// One connection, on which allocations wait for the device, and calls of the driver for each
/// other.
const SETTINGS: [(&str, &str); 3] =
    [("SOFTCUDA_CONNECTIONS", "1"), ("SOFTCUDA_ALLOC_WAITS", "1"), ("SOFTCUDA_ONE_AT_A_TIME", "1")];

#[test]
fn the_edges_hold_on_one_connection_where_allocations_wait() {
    for more in [&SETTINGS[..1], &SETTINGS[..2], &SETTINGS] {
        in_child(more, || within_a_minute(take_turns_and_allocate));
    }
}

/// Two streams of `cuda:0` and two of `cpu:0` alternate, and each step allocates memory.
fn take_turns_and_allocate() {
    let runtime = Runtime::new().unwrap();
    let [cpu, cuda] = [DeviceId::Cpu(0), DeviceId::Cuda(0)].map(|id| runtime.device(id).unwrap());
    let streams = [&cpu, &cuda, &cpu, &cuda].map(|device| device.new_stream().unwrap());
    let diary = Diary::default();
    for n in 0..200 {
        let (here, before) = (&streams[n % 4], &streams[(n + 3) % 4]);
        here.wait_stream(before);
        // More each time, so that the pool has to ask the driver.
        let x = here.alloc::<f32>(1000 * (n + 1)).unwrap();
        here.fill(&x, n as f32).detach();
        diary.note(here, n as u32).detach();
    }
    streams[199 % 4].synchronize().blocking_wait().unwrap();
    assert_eq!(diary.entries(), (0..200).collect::<Vec<_>>());
}

#[test]
fn a_cpu_op_that_panics_among_them_ends_what_comes_after_it() {
    for more in [&SETTINGS[..1], &SETTINGS[..2], &SETTINGS] {
        in_child(more, || within_a_minute(take_turns_until_one_panics));
    }
}

/// Two streams of `cuda:0` and two of `cpu:0` alternate, and each step allocates memory. The
/// kernel of step `PANICS`, which is of `cpu:0`, panics while all later steps are enqueued behind
/// it.
fn take_turns_until_one_panics() {
    const PANICS: usize = 10;
    // One kernel a step, and every other step is of `cpu:0`.
    let runtime = Runtime::builder().panic_in_twin(PANICS as u64 / 2 + 1).build().unwrap();
    let [cpu, cuda] = [DeviceId::Cpu(0), DeviceId::Cuda(0)].map(|id| runtime.device(id).unwrap());
    let streams = [&cpu, &cuda, &cpu, &cuda].map(|device| device.new_stream().unwrap());
    let diary = Diary::default();
    let gate = streams[0].hold().unwrap();
    let steps: Vec<_> = (0..100)
        .map(|n| {
            let (here, before) = (&streams[n % 4], &streams[(n + 3) % 4]);
            here.wait_stream(before);
            // More each time, so that the pool has to ask the driver.
            let x = here.alloc::<f32>(1000 * (n + 1)).unwrap();
            here.fill(&x, n as f32).detach();
            let added = here.launch(kernels::add_(x.len() as u64, &x, &x), LaunchConfig::for_elements(8u32));
            (added, diary.note(here, n as u32))
        })
        .collect();
    gate.open();
    let (added, noted): (Vec<_>, Vec<_>) =
        steps.into_iter().map(|(added, noted)| (added.blocking_wait(), noted.blocking_wait())).unzip();
    assert_eq!(diary.entries(), (0..PANICS as u32).collect::<Vec<_>>());
    let failed: Vec<_> =
        added[..PANICS].iter().chain(&noted[..PANICS]).filter_map(|end| end.as_ref().err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let panicked = added[PANICS].as_ref().unwrap_err();
    says(panicked, ErrorKind::Fault, &["add_ failed on stream", "panicked: the fault plan asked for it"]);
    for end in added[PANICS + 1..].iter().chain(&noted[PANICS..]) {
        let error = end.as_ref().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Fault | ErrorKind::Driver), "{error}");
    }
    // The CUDA device has not failed.
    assert_eq!(cuda.new_stream().unwrap().call(|| 7).blocking_wait().unwrap(), 7);
}
