//! CUDA streams whose queue in the driver is full. A call that enqueues more work blocks in the
//! driver until there is room, and driver calls of other threads may block with it. No other thread
//! may need a lock that such a call holds.

#![cfg(target_os = "linux")]

use crate::support::raw::{calls, calls_of_others, waits_for_room};
use crate::support::software::in_child;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread::JoinHandle;
use warpline::prelude::*;

const DEPTH: (&str, &str) = ("SOFTCUDA_DEPTH", "100");
/// Makes calls on a device block while another call waits for room.
const TOGETHER: (&str, &str) = ("SOFTCUDA_ONE_AT_A_TIME", "1");
const APART: (&str, &str) = ("SOFTCUDA_ONE_AT_A_TIME", "0");

fn cuda() -> (Runtime, Device) {
    let runtime = Runtime::new().unwrap();
    let device = runtime.device(DeviceId::Cuda(0)).unwrap();
    (runtime, device)
}

/// Enqueues more fills on a held stream than fit, on another thread. Returns once that thread waits
/// for room.
fn overfill(stream: &Stream, x: &Buffer<f32>) -> JoinHandle<()> {
    let (stream, x) = (stream.clone(), x.clone());
    let before = waits_for_room();
    let filler = std::thread::spawn(move || {
        for _ in 0..300 {
            stream.fill(&x, 1.0).queued().unwrap();
        }
    });
    while waits_for_room() == before {
        assert!(!filler.is_finished(), "all of it fit");
        std::thread::yield_now();
    }
    filler
}

/// Polls `pending` once, with a no-op waker. Returns true if it is ready.
fn poll_once<T>(pending: &mut Pending<T>) -> bool {
    Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_launch_that_waits_for_room_keeps_nobody_from_waking() {
    for (calls_come, completion) in [(APART, "word"), (APART, "event"), (TOGETHER, "word")] {
        in_child(&[DEPTH, calls_come, ("WARPLINE_COMPLETION", completion)], || {
            let (_runtime, device) = cuda();
            let (full, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let x = full.alloc::<f32>(4).unwrap();
            let (gate, theirs) = (full.hold().unwrap(), other.hold().unwrap());
            let mut op = other.call(|| 3);
            let asked = || calls_of_others(c"cuThreadExchangeStreamCaptureMode");
            let before = asked();
            assert!(!poll_once(&mut op));
            let filler = overfill(&full, &x);
            let waiter = std::thread::spawn(move || op.blocking_wait().unwrap());
            // Waits until another thread asks the driver whether the device lives. That query may
            // block.
            while asked() == before {
                std::thread::yield_now();
            }
            theirs.open();
            assert_eq!(waiter.join().unwrap(), 3);
            assert!(!filler.is_finished());
            gate.open();
            filler.join().unwrap();
            full.synchronize().blocking_wait().unwrap();
        });
    }
}

#[test]
fn a_host_function_may_let_go_of_anything_while_launches_behind_it_wait_for_room() {
    for calls_come in [APART, TOGETHER] {
        in_child(&[DEPTH, calls_come], || {
            let (_runtime, device) = cuda();
            let (full, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let x = full.alloc::<f32>(4).unwrap();
            let (y, z) = (full.alloc::<f32>(4).unwrap(), other.alloc::<f32>(4).unwrap());
            full.fill(&y, 1.0).queued().unwrap();
            other.wait_stream(&full).queued().unwrap();
            other.fill(&y, 2.0).queued().unwrap();
            full.wait_stream(&other).queued().unwrap();
            let pinned = (device.blocking_pinned::<f32>(4).unwrap(), device.pin(vec![1.0f32; 9]).unwrap());
            let sent = other.copy_into(&z, device.blocking_pinned::<f32>(4).unwrap());
            let closing = device.new_stream().unwrap();
            let held = closing.hold().unwrap();
            drop(closing.fill(&closing.alloc::<f32>(4).unwrap(), 1.0));
            let (go, goes) = std::sync::mpsc::channel();
            let mine = full.clone();
            let mut polled = full.fill(&y, 3.0);
            let called = full.call(move || {
                goes.recv().unwrap();
                let _ = poll_once(&mut polled);
                let _ = polled.query();
                drop((y, z, pinned, sent, closing, mine, polled));
            });
            let filler = overfill(&full, &x);
            go.send(()).unwrap();
            called.blocking_wait().unwrap();
            filler.join().unwrap();
            held.open();
            device.synchronize().blocking_wait().unwrap();
        });
    }
}

#[test]
fn polls_and_drops_of_what_waits_for_room_do_not_block() {
    for calls_come in [APART, TOGETHER] {
        in_child(&[DEPTH, calls_come], || {
            let (_runtime, device) = cuda();
            let full = device.new_stream().unwrap();
            let (x, y) = (full.alloc::<f32>(4).unwrap(), full.alloc::<f32>(4).unwrap());
            let gate = full.hold().unwrap();
            let sent = full.copy_into(&y, device.blocking_pinned::<f32>(4).unwrap());
            let mut pendings = [full.fill(&y, 1.0), full.fill(&y, 2.0)];
            let filler = overfill(&full, &x);
            assert!(!pendings.iter_mut().any(poll_once));
            drop((sent, pendings, y, full));
            assert_eq!(device.pinned_stats().allocated_bytes, 4096);
            assert!(!filler.is_finished());
            gate.open();
            filler.join().unwrap();
            drop(x);
            device.synchronize().blocking_wait().unwrap();
        });
    }
}

#[test]
fn what_a_host_function_enqueues_is_refused_while_launches_behind_it_wait_for_room() {
    for calls_come in [APART, TOGETHER] {
        in_child(&[DEPTH, calls_come], || {
            let (_runtime, device) = cuda();
            let full = device.new_stream().unwrap();
            let x = full.alloc::<f32>(4).unwrap();
            let (go, goes) = std::sync::mpsc::channel();
            let (mine, other) = (full.clone(), device.new_stream().unwrap());
            let y = full.alloc::<f32>(4).unwrap();
            let called = full.call(move || {
                goes.recv().unwrap();
                [
                    mine.fill(&y, 1.0).queued().unwrap_err(),
                    other.wait_stream(&mine).queued().unwrap_err(),
                    other.wait_for(&y).queued().unwrap_err(),
                    other.wait_event(&mine.record_event()).queued().unwrap_err(),
                    mine.synchronize().blocking_wait().unwrap_err(),
                    mine.query().unwrap_err(),
                ]
            });
            let filler = overfill(&full, &x);
            go.send(()).unwrap();
            for refused in called.blocking_wait().unwrap() {
                assert_eq!(refused.kind(), ErrorKind::Reentrant, "{refused}");
                assert!(refused.to_string().contains("a host function called it"), "{refused}");
            }
            filler.join().unwrap();
            full.synchronize().blocking_wait().unwrap();
        });
    }
}

#[test]
fn a_host_function_is_refused_while_a_launch_behind_it_is_waited_for() {
    in_child(&[("CUDA_LAUNCH_BLOCKING", "1")], || {
        let (_runtime, device) = cuda();
        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<f32>(4).unwrap();
        let (go, goes) = std::sync::mpsc::channel();
        let mine = stream.clone();
        let called = stream.call(move || {
            goes.recv().unwrap();
            [
                mine.call(|| ()).queued().unwrap_err(),
                mine.query().unwrap_err(),
                mine.record_event().query().unwrap_err(),
            ]
        });
        let (behind, waits) = (stream.clone(), calls(c"cuStreamSynchronize"));
        let filled = std::thread::spawn(move || behind.fill(&x, 1.0).blocking_wait());
        // The other thread waits for the host function, and holds the stream's lock meanwhile.
        while calls(c"cuStreamSynchronize") == waits {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        for refused in called.blocking_wait().unwrap() {
            assert_eq!(refused.kind(), ErrorKind::Reentrant, "{refused}");
        }
        filled.join().unwrap().unwrap();
    });
}

#[test]
fn a_stream_that_waits_for_a_device_that_died_fails_although_launches_behind_the_wait_have_no_room() {
    for calls_come in [APART, TOGETHER] {
        in_child(&[DEPTH, calls_come, ("SOFTCUDA_POISON_LAUNCH", "2")], || {
            let (runtime, device) = cuda();
            let next = runtime.device(DeviceId::Cuda(1)).unwrap();
            let (a, b) = (device.new_stream().unwrap(), next.new_stream().unwrap());
            let (x, y) = (a.alloc::<f32>(4).unwrap(), a.alloc::<f32>(4).unwrap());
            let z = b.alloc::<f32>(4).unwrap();
            let launch = || {
                a.launch(warpline::kernels::relu(4, &x, &y), LaunchConfig::for_elements(4u32))
                    .queued()
                    .unwrap();
            };
            a.fill(&x, 1.0).queued().unwrap();
            launch();
            let gate = a.hold().unwrap();
            launch();
            b.wait_stream(&a).queued().unwrap();
            let read = b.fill(&z, 1.0);
            let waiter = std::thread::spawn(move || read.blocking_wait());
            let _stuck = overfill(&b, &z);
            gate.open();
            let error = waiter.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("it waits for work that will not run"), "{error}");
            // The filling thread stays blocked in the driver.
            // SAFETY: `_exit` has no preconditions; it ends the process without running exit
            // handlers.
            unsafe { libc::_exit(0) }
        });
    }
}
