//! Work that cudarc enqueues on one of Warpline's streams.

use crate::foreign::{cu_stream, cuda, nothing, ramp};
use crate::support::raw::{calls, calls_in};
use crate::support::software::in_child;
use crate::support::{says, within_a_minute};
use cudarc::driver::{CudaContext, result};
use std::ffi::{CString, c_void};
use std::sync::mpsc::channel;
use warpline::kernel::Source;
use warpline::prelude::*;
use warpline::{kernels, reads, writes};

#[test]
fn driver_calls_on_the_raw_stream_are_one_op_in_stream_order() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let (x, y) = (stream.alloc::<f32>(64).unwrap(), stream.alloc::<f32>(64).unwrap());
        let gate = stream.hold().unwrap();
        drop(stream.write(&x, &ramp(64)));
        let before = stream.issued();
        // SAFETY: the copy and the fill are enqueued on this stream. They read `x` and write `y`,
        // and both live.
        let mut done = unsafe {
            stream.external(reads([&x]), writes([&y]), |raw| {
                result::memcpy_dtod_async(y.device_ptr().0, x.device_ptr().0, 256, cu_stream(raw)).unwrap();
                result::memset_d8_async(y.device_ptr().0, 0, 128, cu_stream(raw)).unwrap();
            })
        };
        assert_eq!(stream.issued(), before + 1);
        assert!(!done.query().unwrap());
        let read = stream.read(&y);
        gate.open();
        done.blocking_wait().unwrap();
        let expected: Vec<f32> = (0..64).map(|i| if i < 32 { 0.0 } else { i as f32 }).collect();
        assert_eq!(read.blocking_wait().unwrap(), expected);
    });
}

#[test]
fn a_kernel_that_cudarc_loads_runs_on_the_raw_stream() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(64).unwrap();
        drop(stream.fill(&x, -1.0));
        // This launch registers the kernel's CPU form with the software CUDA driver.
        let other = stream.alloc::<f32>(8).unwrap();
        drop(stream.fill(&other, 1.0));
        stream.launch(kernels::relu(8, &other, &other), LaunchConfig::linear(1, 32)).blocking_wait().unwrap();
        let Source::Ptx { texts: [ptx], .. } = kernels::RELU.source else { panic!("it comes as PTX") };
        // SAFETY: the kernel gets its own parameters, followed by the length of each slice for the
        // software CUDA driver. It reads and writes `x`, which lives.
        let done = unsafe {
            stream.external(nothing(), writes([&x]), |raw| {
                let text = CString::new(*ptx).unwrap();
                let module = result::module::load_data(text.as_ptr().cast()).unwrap();
                let function = result::module::get_function(module, c"relu".to_owned()).unwrap();
                let (mut n, mut from, mut to) = (64u64, x.device_ptr().0, x.device_ptr().0);
                let mut lens = [64u64; 2];
                let mut params: [*mut c_void; 5] = [
                    (&raw mut n).cast(),
                    (&raw mut from).cast(),
                    (&raw mut to).cast(),
                    (&raw mut lens[0]).cast(),
                    (&raw mut lens[1]).cast(),
                ];
                result::launch_kernel(function, (1, 1, 1), (64, 1, 1), 0, cu_stream(raw), &mut params)
                    .unwrap();
            })
        };
        done.blocking_wait().unwrap();
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [0.0; 64]);
    });
}

/// Checks cudarc's safe API on Warpline's stream and memory. [`CudaContext::wrap_borrowed_stream`]
/// takes the stream, and `upgrade_device_ptr` takes memory. The slices must be leaked again,
/// because dropping one frees its memory.
#[test]
fn cudarcs_safe_level_works_on_our_stream_and_memory() {
    in_child(&[], || {
        let (device, context) = (cuda(0), CudaContext::new(0).unwrap());
        // SAFETY: cudarc's work is on one stream, so its order needs no event tracking.
        unsafe { context.disable_event_tracking() };
        let stream = device.new_stream().unwrap();
        let (x, y) = (stream.alloc::<f32>(64).unwrap(), stream.alloc::<f32>(64).unwrap());
        drop(stream.fill(&y, 7.0));
        let ([freed], done) = calls_in([c"cuMemFreeAsync"], || {
            // SAFETY: the wrapper and the slices end with the closure. Their work writes only
            // declared buffers.
            unsafe {
                stream.external(nothing(), writes([&x, &y]), |raw| {
                    let theirs = context.wrap_borrowed_stream(cu_stream(raw));
                    let mut a = theirs.upgrade_device_ptr::<f32>(x.device_ptr().0, 64);
                    let mut b = theirs.upgrade_device_ptr::<f32>(y.device_ptr().0, 64);
                    theirs.memcpy_htod(&ramp(64), &mut a).unwrap();
                    theirs.memcpy_dtod(&a.slice(..32), &mut b.slice_mut(32..)).unwrap();
                    theirs.memset_zeros(&mut b.slice_mut(..8)).unwrap();
                    a.leak();
                    b.leak();
                })
            }
        });
        assert_eq!(freed, 0);
        done.blocking_wait().unwrap();
        let expected: Vec<f32> =
            [0.0; 8].into_iter().chain([7.0; 24]).chain((0..32).map(|i| i as f32)).collect();
        assert_eq!(stream.read(&y).blocking_wait().unwrap(), expected);
        assert_eq!(calls(c"cuStreamDestroy_v2"), 0);
    });
}

#[test]
fn the_marker_is_written_when_the_turn_ends() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(64).unwrap();
        let written = || calls(c"cuStreamWriteValue64_v2");
        let earlier = stream.fill(&x, 1.0);
        let before = written();
        let mut during = 0;
        // SAFETY: the closure enqueues nothing.
        let done = unsafe {
            stream.external(nothing(), writes([&x]), |_| {
                during = written() - before;
                // This many ops would not pass without a marker.
                for _ in 0..200 {
                    let _ = stream.query().unwrap();
                }
                assert_eq!(written() - before, during, "asking does not write one either");
            })
        };
        assert_eq!(during, 1, "that of the op before");
        assert_eq!(written() - before, during + 1);
        earlier.blocking_wait().unwrap();
        done.blocking_wait().unwrap();
        assert_eq!(written() - before, during + 1, "and it is the only one");
    });
}

#[test]
fn polls_of_other_threads_during_the_turn_neither_wait_for_it_nor_see_it_done() {
    in_child(&[], || {
        within_a_minute(|| {
            let stream = cuda(0).new_stream().unwrap();
            let x = stream.alloc::<f32>(64).unwrap();
            let earlier = stream.fill(&x, 1.0);
            let (enter, entered) = channel();
            let (leave, left) = channel::<()>();
            let polls = std::thread::spawn({
                let stream = stream.clone();
                move || {
                    entered.recv().unwrap();
                    // This covers all work so far, including the foreign work in progress.
                    let everything = stream.synchronize();
                    for _ in 0..1000 {
                        assert!(!stream.query().unwrap(), "the turn has not ended");
                    }
                    earlier.blocking_wait().unwrap();
                    // An event that is recorded during the turn covers only the work before the
                    // turn.
                    let event = stream.record_event();
                    let other = stream.device().new_stream().unwrap();
                    other.wait_event(&event);
                    other.synchronize().blocking_wait().unwrap();
                    event.synchronize().blocking_wait().unwrap();
                    leave.send(()).unwrap();
                    everything.blocking_wait().unwrap();
                }
            });
            let mut raw_is_done = false;
            // SAFETY: the fill is enqueued on this stream and writes `x`, which lives.
            let done = unsafe {
                stream.external(nothing(), writes([&x]), |raw| {
                    result::memset_d8_async(x.device_ptr().0, 0, 256, cu_stream(raw)).unwrap();
                    result::stream::synchronize(cu_stream(raw)).unwrap();
                    raw_is_done = true;
                    enter.send(()).unwrap();
                    left.recv().unwrap();
                })
            };
            assert!(raw_is_done);
            done.blocking_wait().unwrap();
            polls.join().unwrap();
            assert_eq!(stream.read(&x).blocking_wait().unwrap(), [0.0; 64]);
        });
    });
}

#[test]
fn a_panic_in_the_closure_leaves_a_stream_that_works_and_what_was_enqueued_runs() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(64).unwrap();
        drop(stream.fill(&x, 1.0));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: the fill is enqueued on this stream and writes `x`, which lives.
            drop(unsafe {
                stream.external(nothing(), writes([&x]), |raw| {
                    result::memset_d8_async(x.device_ptr().0, 0, 256, cu_stream(raw)).unwrap();
                    panic!("on purpose")
                })
            });
        }));
        assert!(panicked.is_err());
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [0.0; 64]);
        stream.synchronize().blocking_wait().unwrap();
    });
}

#[test]
fn what_the_driver_answers_can_be_handed_on() {
    in_child(&[], || {
        let stream = cuda(0).stream().label("foreign").build().unwrap();
        let x = stream.alloc::<f32>(64).unwrap();
        // SAFETY: the driver refuses the fill, because 1 is no device address.
        let done = unsafe {
            stream.external(nothing(), writes([&x]), |raw| {
                if let Err(error) = result::memset_d8_async(1, 0, 256, cu_stream(raw)) {
                    raw.fail(format!("memset: {error:?}"));
                }
            })
        };
        let parts = [
            "external on stream \"foreign\"",
            "memset: ",
            "CUDA_ERROR_INVALID_VALUE",
            "the device is still usable",
        ];
        says(&done.blocking_wait().unwrap_err(), ErrorKind::Driver, &parts);
        says(&stream.read(&x).blocking_wait().unwrap_err(), ErrorKind::Driver, &parts[1..]);
    });
}

#[test]
fn foreign_work_is_checked_against_other_streams() {
    in_child(&[], || {
        let device = cuda(0);
        let [ours, other] = ["ours", "other"].map(|label| device.stream().label(label).build().unwrap());
        let x = ours.alloc::<f32>(64).unwrap();
        drop(ours.fill(&x, 1.0));
        let fill = |stream: &Stream| {
            // SAFETY: the fill is enqueued on that stream and writes `x`, which lives.
            unsafe {
                stream.external(nothing(), writes([&x]), |raw| {
                    result::memset_d8_async(x.device_ptr().0, 0, 256, cu_stream(raw)).unwrap();
                })
            }
        };
        let ([fills], refused) = calls_in([c"cuMemsetD8Async"], || fill(&other));
        says(
            &refused.blocking_wait().unwrap_err(),
            ErrorKind::Unordered,
            &["call other.wait_stream(&ours) before it"],
        );
        assert_eq!(fills, 0, "the closure was not called");
        x.accept_contents();
        other.wait_stream(&ours);
        drop(fill(&other));
        says(
            &ours.read(&x).blocking_wait().unwrap_err(),
            ErrorKind::Unordered,
            &["reads memory that external on stream \"other\""],
        );
        ours.wait_stream(&other);
        assert_eq!(ours.read(&x).blocking_wait().unwrap(), [0.0; 64]);
    });
}
