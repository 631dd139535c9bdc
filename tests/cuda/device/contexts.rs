//! Calls leave the current context of the calling thread as it was. A thread without one may be
//! left with that of device 0.

use crate::device::{cuda, ramp};
use crate::support::raw::{current_context, primary_context, set_current_context};
use crate::support::software::in_child;
use warpline::prelude::*;
use warpline::{kernels, reads, writes};

#[test]
fn every_call_puts_the_callers_context_back() {
    in_child(&[], || {
        let (device, other) = (cuda(0), primary_context(1));
        set_current_context(other);
        macro_rules! keeps {
            ($what:expr) => {{
                let value = $what;
                assert_eq!(current_context(), other, "{}", stringify!($what));
                value
            }};
        }
        let stream = keeps!(device.new_stream().unwrap());
        let side = keeps!(device.stream().priority(warpline::Priority::High).build().unwrap());
        let x = keeps!(stream.alloc::<f32>(1 << 20).unwrap());
        let small = keeps!(stream.alloc::<f32>(100).unwrap());
        let mut host = keeps!(device.blocking_pinned::<f32>(1 << 20).unwrap());
        let more = keeps!(device.pinned::<f32>(2 << 20));
        let more = keeps!(crate::support::block_on(more).unwrap());
        host.fill(1.0);
        let host = keeps!(stream.copy_into(&x, host).blocking_wait().unwrap());
        let back = keeps!(stream.copy_to_host(&x).blocking_wait().unwrap());
        let registered = keeps!(device.pin(ramp(10_000)).unwrap());
        keeps!(drop(registered));
        keeps!(drop(more));
        keeps!(stream.write(&small, &ramp(100)).blocking_wait().unwrap());
        keeps!(stream.read(&small).blocking_wait().unwrap());
        keeps!(stream.fill(&x, 2.0).blocking_wait().unwrap());
        let columns = x.as_matrix(1024).unwrap().columns(3..9).unwrap();
        keeps!(stream.fill(&columns, 3.0).blocking_wait().unwrap());
        keeps!(
            stream
                .launch(kernels::relu(100, &small, &small), LaunchConfig::for_elements(100u32))
                .blocking_wait()
                .unwrap()
        );
        let config = keeps!(device.suggest_config(&kernels::RELU, 1 << 20, 0).unwrap());
        keeps!(
            stream
                .launch(kernels::relu(100, &small, &small), config.cooperatively())
                .blocking_wait()
                .unwrap()
        );
        let event = keeps!(stream.record_event());
        keeps!(event.query().unwrap());
        keeps!(side.wait_event(&event).blocking_wait().unwrap());
        keeps!(side.wait_stream(&stream).blocking_wait().unwrap());
        keeps!(side.wait_for(&x).blocking_wait().unwrap());
        let timed = keeps!([stream.record_timed_event().unwrap(), stream.record_timed_event().unwrap()]);
        keeps!(timed[1].synchronize().blocking_wait().unwrap());
        keeps!(timed[1].elapsed_since(&timed[0]).unwrap());
        keeps!(stream.call(|| 1).blocking_wait().unwrap());
        let gate = keeps!(stream.hold().unwrap());
        drop(keeps!(stream.fill(&x, 4.0)));
        keeps!(stream.query().unwrap());
        keeps!(gate.open());
        // SAFETY: the work is a host function, which touches no device memory.
        let done = keeps!(unsafe {
            stream.external(reads([&x]), writes([&small]), |raw| {
                assert_ne!(current_context(), other, "inside, the device's own context is current");
                raw.call(|| ());
            })
        });
        keeps!(done.blocking_wait().unwrap());
        keeps!(stream.synchronize().blocking_wait().unwrap());
        keeps!(device.synchronize().blocking_wait().unwrap());
        keeps!(device.properties());
        keeps!(device.free_bytes());
        keeps!(device.memory_stats());

        let peer = keeps!(cuda(1));
        let there = keeps!(peer.new_stream().unwrap());
        let y = keeps!(there.alloc::<f32>(1 << 20).unwrap());
        drop(keeps!(stream.wait_stream(&there)));
        keeps!(stream.copy_buffer_peer(&y, &x).blocking_wait().unwrap());

        let held = keeps!(side.hold().unwrap());
        keeps!(drop(side));
        keeps!(drop(held));
        keeps!(drop(x));
        keeps!(drop(columns));
        keeps!(drop((small, y, host, back, there, event, timed)));
        keeps!(stream.synchronize().blocking_wait().unwrap());
        keeps!(drop(stream));
        keeps!(device.empty_cache());
        let runtime = keeps!(Runtime::new().unwrap());
        let stream = keeps!(runtime.device(DeviceId::Cuda(0)).unwrap().new_stream().unwrap());
        drop(keeps!(stream.alloc::<f32>(8).unwrap()));
        keeps!(drop(stream));
        keeps!(drop(runtime));
    });
}

#[test]
fn threads_that_have_no_context_may_do_everything() {
    in_child(&[], || {
        let device = cuda(0);
        let (stream, closed) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let x = stream.alloc::<f32>(1 << 20).unwrap();
        let host = device.blocking_pinned::<f32>(1 << 20).unwrap();
        let registered = device.pin(ramp(1 << 16)).unwrap();
        let gate = closed.hold().unwrap();
        let sent = stream.copy_into(&x, host);
        let event = stream.record_event();
        std::thread::spawn(move || {
            assert!(current_context().is_null());
            drop((sent, x, registered, event, closed, gate));
            let y = stream.alloc::<f32>(3).unwrap();
            stream.write(&y, &[1.0, 2.0, 3.0]).blocking_wait().unwrap();
            assert_eq!(stream.read(&y).blocking_wait().unwrap(), [1.0, 2.0, 3.0]);
        })
        .join()
        .unwrap();
        std::thread::spawn(move || assert!(device.empty_cache() > 0)).join().unwrap();
    });
}

#[test]
fn a_closure_that_changes_the_current_context_does_not_change_the_callers() {
    in_child(&[], || {
        let (stream, other) = (cuda(0).new_stream().unwrap(), primary_context(1));
        let nothing = || reads::<f32>([]);
        set_current_context(other);
        // SAFETY: the closure enqueues nothing.
        let done = unsafe {
            stream.external(nothing(), writes::<f32>([]), |_| set_current_context(std::ptr::null_mut()))
        };
        assert_eq!(current_context(), other);
        done.blocking_wait().unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: the closure enqueues nothing.
            drop(unsafe { stream.external(nothing(), writes::<f32>([]), |_| panic!("on purpose")) });
        }));
        assert!(panicked.is_err());
        assert_eq!(current_context(), other);
    });
}

#[test]
fn a_thread_without_a_context_is_left_without_one_unless_the_device_is_the_first() {
    in_child(&[], || {
        let use_device = |ordinal| {
            std::thread::spawn(move || {
                let stream = cuda(ordinal).new_stream().unwrap();
                let x = stream.alloc::<f32>(8).unwrap();
                stream.fill(&x, 1.0).blocking_wait().unwrap();
                assert_eq!(stream.read(&x).blocking_wait().unwrap(), [1.0; 8]);
                current_context() as usize
            })
            .join()
            .unwrap()
        };
        // The CUDA runtime would take the context of another device as the thread's choice of a
        // device.
        assert_eq!(use_device(1), 0);
        // The context of device 0 is the one that the CUDA runtime would choose itself.
        assert_eq!(use_device(0), primary_context(0) as usize);
    });
}
