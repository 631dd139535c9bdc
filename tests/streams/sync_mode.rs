//! `SyncMode`: blocking calls on a thread that polls a task.

use crate::support::software::in_child;
use crate::support::{block_on, says};
use std::cell::Cell;
use warpline::prelude::*;
use warpline::testing::for_each_seed_on;
use warpline::{Result, SyncMode};

fn with(mode: SyncMode) -> (Runtime, Device, Stream) {
    let runtime = Runtime::builder().sync(mode).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let stream = device.new_stream().unwrap();
    (runtime, device, stream)
}

/// Waits for a host function on the calling thread.
#[track_caller]
fn waits(stream: &Stream) -> Result<i32> {
    stream.call(|| 7).blocking_wait()
}

/// Checks that the call is refused because a task made it, at a line of this file.
#[track_caller]
fn refused(result: Result<i32>) {
    let parts = [
        "blocking_wait (tests/streams/sync_mode.rs:",
        "): it blocks a thread that is polling a task",
        "; await the Pending instead, or call it in spawn_blocking",
    ];
    says(&result.unwrap_err(), ErrorKind::Reentrant, &parts);
}

fn tokio_runtimes() -> [tokio::runtime::Runtime; 2] {
    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    [tokio::runtime::Builder::new_current_thread().build().unwrap(), multi]
}

#[test]
fn every_blocking_call_in_a_task_is_refused_with_its_name_and_line() {
    let (_runtime, device, stream) = with(SyncMode::Error);
    for tokio in tokio_runtimes() {
        let (device, stream) = (device.clone(), stream.clone());
        let task = async move {
            let line = line!() + 1;
            let error = stream.call(|| 7).blocking_wait().unwrap_err();
            let at = format!("blocking_wait (tests/streams/sync_mode.rs:{line})");
            says(&error, ErrorKind::Reentrant, &[&at]);
            let line = line!() + 1;
            let error = device.blocking_pinned::<f32>(4).unwrap_err();
            let at = format!("blocking_pinned (tests/streams/sync_mode.rs:{line})");
            says(&error, ErrorKind::Reentrant, &[&at, "await device.pinned(len) instead"]);
            let x = Tensor::ones([4], &device).queued().unwrap();
            let line = line!() + 1;
            let error = x.pin_memory().await.unwrap_err();
            let at = format!("pin_memory (tests/streams/sync_mode.rs:{line})");
            says(&error, ErrorKind::Reentrant, &[&at, "call Tensor::from_pinned instead, or"]);
            let edges = device.new_stream().unwrap();
            let line = line!() + 1;
            let error = edges.wait_stream(&stream).blocking_wait().unwrap_err();
            says(&error, ErrorKind::Reentrant, &[&format!("sync_mode.rs:{line})")]);
            let line = line!() + 1;
            let error = device.synchronize().blocking_wait().unwrap_err();
            says(&error, ErrorKind::Reentrant, &[&format!("sync_mode.rs:{line})")]);
            // Awaiting is what a task does.
            assert_eq!(stream.call(|| 8).await.unwrap(), 8);
            device.synchronize().await.unwrap();
        };
        tokio.block_on(tokio.spawn(task)).unwrap();
    }
}

#[test]
fn the_future_of_tokios_block_on_counts_as_a_task() {
    let (_runtime, _, stream) = with(SyncMode::Error);
    for tokio in tokio_runtimes() {
        tokio.block_on(async { refused(waits(&stream)) });
        let local = tokio::task::LocalSet::new();
        let mine = stream.clone();
        let task = local.spawn_local(async move { refused(waits(&mine)) });
        tokio.block_on(local.run_until(task)).unwrap();
    }
}

#[test]
fn asking_leaves_the_tasks_budget_as_it_was() {
    let (_runtime, _, stream) = with(SyncMode::Error);
    for tokio in tokio_runtimes() {
        tokio.block_on(async {
            for _ in 0..1000 {
                refused(waits(&stream));
                assert!(tokio::task::coop::has_budget_remaining());
            }
            // Without any budget left it is still a task.
            while tokio::task::coop::has_budget_remaining() {
                let mut spent = std::pin::pin!(tokio::task::coop::consume_budget());
                assert!(futures::poll!(&mut spent).is_ready());
            }
            refused(waits(&stream));
            assert!(!tokio::task::coop::has_budget_remaining());
        });
    }
}

#[test]
fn where_tokio_allows_blocking_it_is_allowed() {
    let (_runtime, device, stream) = with(SyncMode::Error);
    assert_eq!(waits(&stream).unwrap(), 7, "no task is polled here");
    assert_eq!(stream.enter(|| waits(&stream)).unwrap(), 7);
    device.blocking_pinned::<f32>(4).unwrap();
    for tokio in tokio_runtimes() {
        let _entered = tokio.enter();
        assert_eq!(waits(&stream).unwrap(), 7, "entered, but nothing is polled");
        let mine = stream.clone();
        assert_eq!(tokio.block_on(tokio.spawn_blocking(move || waits(&mine))).unwrap().unwrap(), 7);
    }
    let [_, multi] = tokio_runtimes();
    let mine = stream.clone();
    let task = async move { tokio::task::block_in_place(|| waits(&mine)) };
    assert_eq!(multi.block_on(multi.spawn(task)).unwrap().unwrap(), 7);
    assert_eq!(multi.block_on(async { tokio::task::block_in_place(|| waits(&stream)) }).unwrap(), 7);
}

#[test]
fn a_refused_wait_detaches_the_work() {
    let (_runtime, _, stream) = with(SyncMode::Error);
    let [tokio, _] = tokio_runtimes();
    tokio.block_on(async {
        let x = stream.alloc::<f32>(4).unwrap();
        refused(stream.fill(&x, 2.5).blocking_wait().map(|()| 0));
        assert_eq!(stream.read(&x).await.unwrap(), [2.5; 4]);
    });
}

#[test]
fn without_tokio_a_poll_of_a_scope_is_recognized() {
    let (_runtime, device, stream) = with(SyncMode::Error);
    block_on(stream.scope(|| async { refused(waits(&stream)) }));
    block_on(device.scope(|| async { refused(waits(&stream)) }));
    block_on(async {
        // Another executor's poll is not recognized outside of a scope.
        assert_eq!(waits(&stream).unwrap(), 7);
    });
}

#[test]
fn a_seeded_pipeline_is_a_task() {
    let refusals = Cell::new(0);
    for_each_seed_on(Runtime::builder().sync(SyncMode::Error), 0..5, |devices| {
        let refusals = &refusals;
        async move {
            let stream = devices[0].new_stream()?;
            refused(waits(&stream));
            refusals.set(refusals.get() + 1);
            assert_eq!(stream.call(|| 7).await?, 7);
            Ok(())
        }
    });
    assert_eq!(refusals.get(), 5);
}

#[test]
fn off_is_the_default_and_blocks() {
    let runtime = Runtime::builder().build().unwrap();
    assert_eq!(runtime.sync(), SyncMode::Off);
    let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
    for tokio in tokio_runtimes() {
        tokio.block_on(async { assert_eq!(waits(&stream).unwrap(), 7) });
    }
}

#[test]
fn a_warning_comes_once_for_each_line_and_the_call_blocks() {
    let said = in_child(&[("WARPLINE_SYNC", "warn")], || {
        let runtime = Runtime::new().unwrap();
        assert_eq!(runtime.sync(), SyncMode::Warn);
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let [tokio, _] = tokio_runtimes();
        tokio.block_on(async {
            for _ in 0..3 {
                assert_eq!(stream.call(|| 7).blocking_wait().unwrap(), 7);
            }
            assert_eq!(stream.call(|| 7).blocking_wait().unwrap(), 7);
        });
        assert_eq!(stream.call(|| 7).blocking_wait().unwrap(), 7);
    });
    let lines = said.split("warpline: blocking_wait (tests/streams/sync_mode.rs:").skip(1);
    let lines: Vec<u32> = lines.map(|rest| rest[..rest.find(')').unwrap()].parse().unwrap()).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert_ne!(lines[0], lines[1]);
}

#[test]
fn the_variable_refuses_the_calls_of_the_default_runtime() {
    in_child(&[("WARPLINE_SYNC", "error")], || {
        let stream = Device::open("cpu").unwrap().new_stream().unwrap();
        let [tokio, _] = tokio_runtimes();
        tokio.block_on(async { refused(waits(&stream)) });
        assert_eq!(waits(&stream).unwrap(), 7);
    });
}
