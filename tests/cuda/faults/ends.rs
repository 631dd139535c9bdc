//! Runtimes that are dropped, processes that fork, and processes that end.

use crate::faults::{cuda, four, stream};
use crate::support::software::in_child;
use crate::support::{block_on, refusal, says, within_a_minute};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use warpline::prelude::*;

#[test]
fn a_runtime_dropped_with_a_closed_gate_resolves_what_the_gate_held() {
    for memops in ["0", "1"] {
        in_child(&[("SOFTCUDA_NO_MEMOPS", memops)], || {
            within_a_minute(|| {
                let (runtime, device) = cuda();
                let work = stream(&device, "work");
                let x = four(&work, 1.0);
                let gate = work.hold().unwrap();
                let (held, all) = (work.fill(&x, 2.0), device.synchronize());
                drop(runtime);
                let text = "the runtime was shut down with work in flight on stream \"work\", held at a wait that nothing will release";
                says(&refusal(held), ErrorKind::ShutDown, &[text]);
                says(&refusal(all), ErrorKind::ShutDown, &[text]);
                gate.open();
                assert_eq!(refusal(work.fill(&x, 1.0)).kind(), ErrorKind::ShutDown);
            });
        });
    }
}

#[test]
fn a_runtime_dropped_with_queued_work_lets_it_run() {
    in_child(&[], || {
        let (runtime, device) = cuda();
        let work = stream(&device, "work");
        let ops: Vec<_> = (0..1000).map(|n| work.call(move || n)).collect();
        drop((runtime, device, work));
        for (n, op) in ops.into_iter().enumerate() {
            assert_eq!(op.blocking_wait().unwrap(), n);
        }
    });
}

/// Calls `f` in the child of a fork. It has to return within the time of the watchdog, without a
/// panic.
fn in_fork(f: impl FnOnce()) {
    // SAFETY: fork copies this thread alone. Warpline has to withstand what the child does, and the
    // child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `alarm` sets a timer whose signal ends the process if it hangs. The child of a
        // fork inherits no timer.
        unsafe { libc::alarm(20) };
        let code = i32::from(catch_unwind(AssertUnwindSafe(f)).is_err());
        // SAFETY: `_exit` has no preconditions; it ends the process without running exit handlers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waitpid waits for this process's child, and writes one int to a live variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "how the forked child ended");
}

#[test]
fn in_the_child_of_a_fork_every_device_says_so_and_nothing_hangs() {
    let said = in_child(&[], || {
        let (runtime, device) = cuda();
        let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
        for device in [device.clone(), cpu] {
            let (a, b) = (stream(&device, "a"), stream(&device, "b"));
            let x = four(&a, 1.0);
            let gate = a.hold().unwrap();
            let before = a.fill(&x, 2.0);
            let mut asked = a.synchronize();
            let event = a.record_event();
            in_fork(|| {
                let forked = |error: Error| assert_eq!(error.kind(), ErrorKind::Forked, "{error}");
                forked(refusal(before));
                forked(asked.query().unwrap_err());
                forked(refusal(a.fill(&x, 3.0)));
                forked(refusal(b.wait_stream(&a)));
                forked(refusal(b.wait_event(&event)));
                forked(event.query().unwrap_err());
                forked(refusal(a.read(&x)));
                forked(a.alloc::<f32>(4).unwrap_err());
                forked(device.new_stream().unwrap_err());
                forked(block_on(device.pinned::<f32>(4)).unwrap_err());
                forked(device.blocking_pinned::<f32>(4).unwrap_err());
                let not_pinned = device.pin(vec![7.0f32; 4]).unwrap_err();
                assert_eq!(not_pinned.clone().into_vec::<f32>().expect("it is handed back"), [7.0; 4]);
                forked(not_pinned);
                forked(refusal(a.record_event().synchronize()));
                forked(Runtime::new().unwrap_err());
                forked(device.health().fault().unwrap().clone());
                let mut watch = device.watch_health();
                forked(watch.state().fault().unwrap().clone());
                assert!(block_on(watch.changed()).is_none());
                let stats = device.memory_stats();
                assert!(stats.is_lost && (stats.allocated_bytes, stats.reserved_bytes) == (0, 0));
                assert_eq!(device.pinned_stats(), warpline::PinnedStats::default());
                assert!(device.memory_snapshot().segments.is_empty());
                assert!(device.memory_summary().contains("allocated"));
                device.reset_peak_memory_stats();
                drop((a, b, x, event, device.clone()));
                device.empty_cache();
            });
            gate.open();
        }
        in_fork(|| drop((runtime, device)));
    });
    assert!(!said.contains("softcuda: "), "{said}");
}

#[test]
fn in_the_child_of_a_fork_drops_take_no_lock_that_another_thread_held() {
    in_child(&[], || {
        let (runtime, device) = cuda();
        let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
        for device in [device, cpu] {
            let ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let busy = stream(&device, "busy");
                        let x = four(&busy, 1.0);
                        let lent = device.blocking_pinned::<f32>(4).unwrap();
                        drop((busy, x, lent));
                    }
                });
                for _ in 0..20 {
                    let mine = stream(&device, "mine");
                    let x = four(&mine, 1.0);
                    let pinned = device.blocking_pinned::<f32>(4).unwrap();
                    let (called, event) = (mine.call(|| 7), mine.record_event());
                    in_fork(|| drop((mine, x, pinned, called, event)));
                }
                ended.store(true, Ordering::Relaxed);
            });
        }
    });
}

#[test]
fn a_process_may_end_while_work_is_in_flight_and_buffers_are_held() {
    for held in ["0", "1"] {
        let said = in_child(
            &[("SOFTCUDA_COPY_DELAY_US", "20000"), ("SOFTCUDA_COUNTS", "1"), ("WARPLINE_TEST_HELD", held)],
            || {
                static RUNTIME: OnceLock<Runtime> = OnceLock::new();
                type Held =
                    (Buffer<f32>, Stream, Vec<Pending<()>>, Option<warpline::testing::Gate>, Pinned<f32>);
                thread_local! {
                    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
                }
                let runtime = RUNTIME.get_or_init(|| Runtime::new().unwrap());
                let device = runtime.device(DeviceId::Cuda(0)).unwrap();
                let work = stream(&device, "work");
                let x = four(&work, 1.0);
                let gate =
                    (std::env::var("WARPLINE_TEST_HELD").unwrap() == "1").then(|| work.hold().unwrap());
                let pendings = (0..20).map(|_| work.write(&x, &[2.0; 4])).collect();
                drop(work.copy_into(&x, device.blocking_pinned(4).unwrap()));
                let host = device.blocking_pinned::<f32>(4).unwrap();
                std::thread::spawn({
                    let work = work.clone();
                    move || while work.call(|| ()).blocking_wait().is_ok() {}
                });
                HELD.set(Some((x, work, pendings, gate, host)));
            },
        );
        assert!(!said.contains("softcuda: "), "{said}");
        assert!(said.contains("cuMemCreate "), "{said}");
        assert!(
            !said.contains("cuMemUnmap")
                && !said.contains("cuMemFree")
                && !said.contains("cuMemHostUnregister"),
            "{said}"
        );
    }
}

#[test]
fn nobody_calls_the_driver_after_its_exit_handler_has_begun() {
    for completion in ["word", "event"] {
        for _ in 0..10 {
            in_child(&[("WARPLINE_COMPLETION", completion), ("SOFTCUDA_LATE_CALLS", "abort")], || {
                static KEPT: OnceLock<(Runtime, warpline::testing::Gate, Buffer<f32>)> = OnceLock::new();
                let (runtime, device) = cuda();
                let [held, busy] = ["held", "busy"].map(|label| stream(&device, label));
                let x = four(&held, 1.0);
                let gate = held.hold().unwrap();
                // While these are awaited, the device is checked again and again. They are polled
                // here, because a thread of the program may be in a call when the process ends.
                for stream in [held, busy] {
                    let mut done = Box::pin(stream.call(|| ()));
                    let _ = done.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    std::mem::forget(done);
                }
                assert!(KEPT.set((runtime, gate, x)).is_ok());
            });
        }
    }
}

#[test]
fn a_child_forked_after_the_driver_was_asked_is_told_so() {
    in_child(&[], || {
        assert!(warpline::cuda::is_available());
        in_fork(|| {
            assert!(!warpline::cuda::is_available());
            let runtime = Runtime::new().unwrap();
            let text = "was forked from one in which Warpline had initialised the NVIDIA driver";
            for error in [
                warpline::cuda::device_count().unwrap_err(),
                runtime.device(DeviceId::Cuda(0)).unwrap_err(),
                runtime.best_device().unwrap_err(),
                runtime.cuda_devices().unwrap_err(),
            ] {
                says(&error, ErrorKind::Forked, &[text, "cuda::likely_device_count"]);
            }
            // The parent had no CPU device, so the child can have one.
            let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
            assert_eq!(stream.call(|| 7).blocking_wait().unwrap(), 7);
        });
    });
}

#[test]
fn a_child_forked_after_the_likely_count_can_use_cuda() {
    in_child(&[("SOFTCUDA_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,0,7")], || {
        assert_eq!(warpline::cuda::likely_device_count(), 2);
        in_fork(|| {
            assert_eq!(warpline::cuda::likely_device_count(), 2);
            assert_eq!(warpline::cuda::device_count().unwrap(), 2);
            let (_runtime, device) = cuda();
            let work = stream(&device, "work");
            assert_eq!(work.read(&four(&work, 1.0)).blocking_wait().unwrap(), [1.0; 4]);
        });
    });
}

#[test]
fn a_child_forked_after_other_code_used_the_driver_is_told_so() {
    in_child(&[], || {
        // SAFETY: `dlopen` runs the initialisers of the library, here those of a CUDA driver.
        let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        // SAFETY: the handle is that of a live library.
        let init = unsafe { libc::dlsym(driver, c"cuInit".as_ptr()) };
        assert!(!init.is_null());
        // SAFETY: the type of cuInit by the driver's header.
        let init: extern "C" fn(u32) -> u32 = unsafe { std::mem::transmute(init) };
        assert_eq!(init(0), 0);
        in_fork(|| {
            let error = Runtime::new().unwrap().best_device().unwrap_err();
            says(
                &error,
                ErrorKind::Forked,
                &["was forked from one in which other code had initialised CUDA"],
            );
        });
    });
}

#[test]
fn a_child_forked_where_there_is_no_gpu_gets_the_cpu() {
    in_child(&[("CUDA_VISIBLE_DEVICES", "")], || {
        assert!(!warpline::cuda::is_available());
        in_fork(|| assert_eq!(Runtime::new().unwrap().best_device().unwrap().id(), DeviceId::Cpu(0)));
    });
}
