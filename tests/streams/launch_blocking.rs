//! `CUDA_LAUNCH_BLOCKING=1` on CPU devices: each op is waited for, and nothing hangs.

use crate::support::software::in_child;
use crate::support::{block_on, fails, refusal, says};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use warpline::kernels;
use warpline::prelude::*;
use warpline::testing::for_each_seed;
use warpline::{reads, writes};

const BLOCKING: [(&str, &str); 1] = [("CUDA_LAUNCH_BLOCKING", "1")];
const LEN: usize = 1000;

/// Returns runtimes with threads, with one thread, and with two seeds.
fn runtimes() -> Vec<Runtime> {
    let builders = [
        Runtime::builder(),
        Runtime::builder().workers(1),
        Runtime::builder().schedule(Schedule::Seeded(1)),
        Runtime::builder().schedule(Schedule::Seeded(2)),
    ];
    builders.into_iter().map(|builder| builder.build().unwrap()).collect()
}

fn cpu(runtime: &Runtime) -> Device {
    runtime.device(DeviceId::Cpu(0)).unwrap()
}

/// Checks that everything on the stream has run, although nothing was awaited.
#[track_caller]
fn has_run(stream: &Stream) {
    assert_eq!(stream.completed(), stream.issued());
}

#[test]
fn each_op_has_run_when_its_call_returns() {
    in_child(&BLOCKING, || {
        for runtime in runtimes() {
            let device = cpu(&runtime);
            let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            for _ in 0..100 {
                let (x, y) = (stream.alloc::<f32>(LEN).unwrap(), stream.alloc::<f32>(LEN).unwrap());
                stream.fill(&x, -1.0).detach();
                has_run(&stream);
                let relu = kernels::relu(LEN as u64, &x, &x);
                stream.launch(relu, LaunchConfig::for_elements(LEN as u64)).detach();
                has_run(&stream);
                stream.write(&y, &[2.0; LEN]).detach();
                has_run(&stream);
                stream.copy_buffer(&x, &y).detach();
                has_run(&stream);
                other.wait_stream(&stream);
                let read = other.read(&x);
                has_run(&other);
                assert_eq!(read.blocking_wait().unwrap(), [2.0; LEN]);
            }
        }
    });
}

/// Without the variable an op of a seeded schedule runs only in a poll. So what the other tests see
/// is the effect of the variable.
#[test]
fn without_the_variable_no_op_is_waited_for() {
    in_child(&[], || {
        let runtime = Runtime::builder().schedule(Schedule::Seeded(1)).build().unwrap();
        let stream = cpu(&runtime).new_stream().unwrap();
        let x = stream.alloc::<f32>(LEN).unwrap();
        stream.fill(&x, 1.0).detach();
        assert_eq!((stream.completed(), stream.issued()), (0, 1));
    });
}

#[test]
fn a_kernel_that_fails_is_the_error_of_its_own_call() {
    in_child(&BLOCKING, || {
        for runtime in runtimes() {
            let stream = cpu(&runtime).stream().label("compute").build().unwrap();
            let y = stream.alloc::<u8>(1).unwrap();
            stream.fill(&y, 1).queued().unwrap();
            let line = line!() + 1;
            let failed = stream.launch(fails(&y), LaunchConfig::linear(1, 1)).queued().unwrap_err();
            let at = format!(
                "fails failed on stream \"compute\" at ticket 2 (tests/streams/launch_blocking.rs:{line}): "
            );
            says(&failed, ErrorKind::Fault, &[&at, "on purpose"]);
        }
    });
}

#[test]
fn a_host_function_that_panics_is_named_by_the_ops_behind_it() {
    in_child(&BLOCKING, || {
        for runtime in runtimes() {
            let stream = cpu(&runtime).stream().label("compute").build().unwrap();
            let x = stream.alloc::<f32>(LEN).unwrap();
            let line = line!() + 1;
            let called = stream.call(|| panic!("on purpose"));
            let behind = stream.fill(&x, 1.0);
            has_run(&stream);
            let at = format!("call on stream \"compute\" (tests/streams/launch_blocking.rs:{line})");
            for error in [refusal(behind), refusal::<()>(called)] {
                assert!(error.to_string().contains(&at), "{error}");
            }
            stream.fill(&x, 2.0).blocking_wait().unwrap();
        }
    });
}

#[test]
fn the_order_check_gives_the_same_verdicts() {
    in_child(&BLOCKING, || {
        for runtime in runtimes() {
            let device = cpu(&runtime);
            let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let x = stream.alloc::<f32>(LEN).unwrap();
            stream.fill(&x, 1.0).queued().unwrap();
            has_run(&stream);
            // It has run, but no edge says so, and the host has not observed it.
            assert_eq!(refusal(other.read(&x)).kind(), ErrorKind::Unordered);
            other.wait_stream(&stream);
            assert_eq!(other.read(&x).blocking_wait().unwrap(), [1.0; LEN]);
        }
    });
}

#[test]
fn behind_a_closed_gate_no_op_is_waited_for() {
    in_child(&BLOCKING, || {
        for runtime in runtimes() {
            let device = cpu(&runtime);
            let (stream, behind) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let x = stream.alloc::<f32>(LEN).unwrap();
            let gate = stream.hold().unwrap();
            let filled = stream.fill(&x, 1.0);
            behind.wait_stream(&stream);
            let read = behind.read(&x);
            assert_eq!((stream.completed(), behind.completed()), (0, 0));
            gate.open();
            assert_eq!(read.blocking_wait().unwrap(), [1.0; LEN]);
            filled.blocking_wait().unwrap();
            stream.wait_stream(&behind);
            stream.fill(&x, 2.0).detach();
            has_run(&stream);
        }
    });
}

#[test]
fn host_functions_are_not_waited_for_and_may_wait_for_the_thread_that_enqueued_them() {
    in_child(&BLOCKING, || {
        let runtime = Runtime::builder().build().unwrap();
        let stream = cpu(&runtime).new_stream().unwrap();
        let (send, receive) = mpsc::channel();
        let called = stream.call(move || receive.recv().unwrap());
        send.send(7).unwrap();
        assert_eq!(called.blocking_wait().unwrap(), 7);
    });
}

#[test]
fn foreign_work_is_not_waited_for_and_ops_that_its_closure_enqueues_elsewhere_are() {
    in_child(&BLOCKING, || {
        for runtime in runtimes() {
            let device = cpu(&runtime);
            let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let (x, y) = (stream.alloc::<f32>(LEN).unwrap(), other.alloc::<f32>(LEN).unwrap());
            let nothing: [&Buffer<f32>; 0] = [];
            // SAFETY: the closure enqueues nothing on the raw stream.
            let done = unsafe {
                stream.external(reads(nothing), writes([&x]), |_| {
                    // This edge comes before the foreign work, which waits for this closure.
                    other.wait_stream(&stream);
                    other.fill(&y, 1.0).queued().unwrap();
                    has_run(&other);
                })
            };
            done.blocking_wait().unwrap();
            stream.fill(&x, 2.0).queued().unwrap();
            has_run(&stream);
        }
    });
}

/// A waker that enqueues an op on its stream.
struct Enqueues(Stream, Buffer<f32>, AtomicBool);

impl Wake for Enqueues {
    fn wake(self: Arc<Self>) {
        self.0.fill(&self.1, 3.0).detach();
        self.2.store(true, Ordering::Release);
    }
}

#[test]
fn a_waker_on_the_only_worker_enqueues_without_waiting() {
    in_child(&BLOCKING, || {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let device = cpu(&runtime);
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let x = other.alloc::<f32>(LEN).unwrap();
        let enqueues = Arc::new(Enqueues(other.clone(), x.clone(), AtomicBool::new(false)));
        let gate = stream.hold().unwrap();
        let mut called = pin!(stream.call(|| ()));
        let waker = Waker::from(enqueues.clone());
        assert!(called.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        gate.open();
        while !enqueues.2.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        block_on(called).unwrap();
        assert_eq!(other.read(&x).blocking_wait().unwrap(), [3.0; LEN]);
    });
}

#[test]
fn a_capture_runs_nothing_and_each_launch_of_its_graph_is_waited_for() {
    in_child(&BLOCKING, || {
        for runtime in runtimes() {
            let stream = cpu(&runtime).new_stream().unwrap();
            let x = stream.alloc::<f32>(LEN).unwrap();
            stream.fill(&x, 1.0).detach();
            let relu = || kernels::relu(LEN as u64, &x, &x);
            let captured = stream.capture(|stream| {
                stream.fill(&x, -2.0).queued().unwrap();
                stream.launch(relu(), LaunchConfig::for_elements(LEN as u64))
            });
            let (graph, _) = captured.unwrap();
            assert_eq!(stream.read(&x).blocking_wait().unwrap(), [1.0; LEN]);
            graph.launch(&stream).detach();
            has_run(&stream);
            assert_eq!(stream.read(&x).blocking_wait().unwrap(), [0.0; LEN]);
        }
    });
}

#[test]
fn seeded_pipelines_give_the_same_results() {
    in_child(&BLOCKING, || {
        for_each_seed(0..50, |device| async move {
            let (copy, compute) = (device.new_stream()?, device.new_stream()?);
            let x = copy.alloc::<f32>(LEN)?;
            let gate = copy.hold()?;
            copy.write(&x, &[1.5; LEN]).queued()?;
            compute.wait_stream(&copy);
            let sum = compute.enter(|| warpline::ops::sum(&x));
            gate.open();
            assert_eq!(sum.await?, 1500.0);
            Ok(())
        });
    });
}
