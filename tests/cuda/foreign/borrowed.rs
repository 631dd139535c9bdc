//! Streams and memory that cudarc created.

use crate::foreign::{cuda, ramp};
use crate::support::raw::{calls, calls_in, current_context};
use crate::support::says;
use crate::support::software::in_child;
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use warpline::kernels;
use warpline::prelude::*;

/// A slice of cudarc, and a flag that is set when the slice has been dropped.
struct Owner(Option<CudaSlice<f32>>, Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.0.take());
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn work_goes_onto_a_stream_that_cudarc_made_and_stays_in_order_with_its_own() {
    in_child(&[], || {
        let context = CudaContext::new(0).unwrap();
        let theirs = context.new_stream().unwrap();
        let mut slice = theirs.clone_htod(&ramp(64)).unwrap();
        let address = slice.device_ptr(&theirs).0;
        let device = cuda(0);
        // SAFETY: cudarc's stream belongs to the device's primary context, and lives until the end
        // of the test.
        let stream =
            unsafe { device.stream().label("theirs").borrow_raw(theirs.cu_stream().cast()) }.build().unwrap();
        // SAFETY: the slice lives until the end of the test, and cudarc uses it only on this same
        // stream.
        let x = unsafe { stream.borrow_memory::<f32>(address, 64, ()) }.unwrap();
        drop(stream.launch(
            kernels::axpy(64, 1.0, &x, &stream.alloc::<f32>(64).unwrap()),
            LaunchConfig::for_elements(64u32),
        ));
        let y = stream.alloc::<f32>(64).unwrap();
        drop(stream.copy_buffer(&y, &x));
        // cudarc enqueues this on the same stream by itself. It runs after the copy.
        theirs.memset_zeros(&mut slice).unwrap();
        assert_eq!(stream.read(&y).blocking_wait().unwrap(), ramp(64));
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [0.0; 64]);
        drop((x, y, stream));
        theirs.synchronize().unwrap();
        assert_eq!(calls(c"cuStreamDestroy_v2"), 0, "it is theirs");
        assert_eq!(theirs.clone_dtoh(&slice).unwrap(), [0.0; 64]);
    });
}

#[test]
fn borrowing_a_stream_again_and_again_takes_nothing() {
    in_child(&[], || {
        let context = CudaContext::new(0).unwrap();
        let theirs = context.new_stream().unwrap();
        let device = cuda(0);
        let x = device.default_stream().unwrap().alloc::<f32>(8).unwrap();
        let round = || {
            // SAFETY: cudarc's stream belongs to the device's primary context, and lives until the
            // end of the test.
            let stream = unsafe { device.stream().borrow_raw(theirs.cu_stream().cast()) }.build().unwrap();
            stream.wait_for(&x);
            drop(stream.fill(&x, 1.0));
            stream.synchronize().blocking_wait().unwrap();
            assert!(stream.issued() <= 3, "it counts from its start");
        };
        (0..40).for_each(|_| round());
        let (calls, ()) = calls_in([c"cuMemHostRegister_v2", c"cuStreamCreateWithPriority"], || {
            (0..200).for_each(|_| round())
        });
        assert_eq!(calls, [0, 0]);
    });
}

#[test]
fn a_borrowed_stream_that_is_closed_while_busy_still_finishes() {
    in_child(&[], || {
        let context = CudaContext::new(0).unwrap();
        let theirs = context.new_stream().unwrap();
        let device = cuda(0);
        // SAFETY: cudarc's stream belongs to the device's primary context, and lives until the end
        // of the test.
        let stream = unsafe { device.stream().borrow_raw(theirs.cu_stream().cast()) }.build().unwrap();
        let x = stream.alloc::<f32>(8).unwrap();
        let gate = stream.hold().unwrap();
        let filled = stream.fill(&x, 5.0);
        drop(stream);
        gate.open();
        filled.blocking_wait().unwrap();
        assert_eq!(device.new_stream().unwrap().read(&x).blocking_wait().unwrap(), [5.0; 8]);
    });
}

#[test]
fn the_cpu_device_has_no_raw_streams_to_borrow() {
    let (_runtime, device, []) = crate::support::streams([]);
    // SAFETY: the CPU device refuses any raw stream without using it.
    let error =
        unsafe { device.stream().borrow_raw(std::ptr::dangling_mut::<u8>().cast()) }.build().unwrap_err();
    says(
        &error,
        ErrorKind::Unsupported,
        &["borrow_raw: cpu:0 has no raw streams; create a stream with new_stream"],
    );
}

#[test]
fn default_streams_and_those_of_other_contexts_are_not_borrowed() {
    in_child(&[], || {
        for (stream, why) in
            [(0, "the null stream"), (1, "the null stream"), (2, "a different stream on each thread")]
        {
            let stream = std::ptr::without_provenance_mut(stream);
            // SAFETY: a default stream is refused by its number, and never used.
            let error = unsafe { cuda(0).stream().borrow_raw(stream) }.build().unwrap_err();
            says(
                &error,
                ErrorKind::InvalidArgument,
                &["borrow_raw: ", why, "pass one made with cuStreamCreate"],
            );
        }
        let elsewhere = CudaContext::new(1).unwrap().new_stream().unwrap();
        // SAFETY: the stream is live. It is refused because of its context.
        let error = unsafe { cuda(0).stream().borrow_raw(elsewhere.cu_stream().cast()) }.build().unwrap_err();
        says(
            &error,
            ErrorKind::Driver,
            &["does not belong to the primary context of cuda:0", "its own device"],
        );
    });
}

#[test]
fn the_owner_of_lent_memory_is_dropped_when_the_device_has_done_with_it() {
    in_child(&[], || {
        let context = CudaContext::new(0).unwrap();
        let theirs = context.new_stream().unwrap();
        let slice = theirs.clone_htod(&ramp(64)).unwrap();
        theirs.synchronize().unwrap();
        let address = slice.device_ptr(&theirs).0;
        let device = cuda(0);
        let (stream, side) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let dropped = Arc::new(AtomicBool::new(false));
        let is_dropped = || dropped.load(Ordering::SeqCst);
        let owner = Owner(Some(slice), dropped.clone());
        // SAFETY: the slice lives as long as its owner, and cudarc has finished with it.
        let x = unsafe { stream.borrow_memory::<f32>(address, 64, owner) }.unwrap();
        let view = x.slice(8..16).unwrap();
        let y = stream.alloc::<f32>(64).unwrap();
        drop(stream.copy_buffer(&y, &x));
        side.wait_stream(&stream);
        let z = side.alloc::<f32>(8).unwrap();
        let gate = side.hold().unwrap();
        drop(side.copy_buffer(&z, &view));
        drop(x);
        stream.synchronize().blocking_wait().unwrap();
        assert!(!is_dropped(), "a view of it is held");
        drop(view);
        stream.call(|| ()).blocking_wait().unwrap();
        assert!(!is_dropped(), "the copy on the side has not run");
        let ([freed], ()) = calls_in([c"cuMemFreeAsync"], || {
            gate.open();
            while !is_dropped() {
                std::thread::yield_now();
            }
        });
        assert_eq!(freed, 1, "cudarc has given its memory back");
        let _context = current_context();
        assert_eq!(stream.read(&y).blocking_wait().unwrap(), ramp(64));
        assert_eq!(side.read(&z).blocking_wait().unwrap(), ramp(16)[8..]);
    });
}

#[test]
fn the_owner_of_memory_that_nothing_uses_is_dropped_at_once() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let memory = stream.alloc::<f32>(64).unwrap();
        let dropped = Arc::new(AtomicBool::new(false));
        // SAFETY: the memory belongs to the buffer `memory`, which outlives `x`.
        let x =
            unsafe { stream.borrow_memory::<f32>(memory.device_ptr().0, 64, Owner(None, dropped.clone())) }
                .unwrap();
        let held = device_bytes(&stream);
        drop(x);
        assert!(dropped.load(Ordering::SeqCst));
        assert_eq!(device_bytes(&stream), held, "it was never ours");
    });
}

fn device_bytes(stream: &Stream) -> usize {
    stream.device().memory_stats().allocated_bytes
}

#[test]
fn the_owner_of_lent_memory_goes_also_when_its_stream_is_closed() {
    in_child(&[], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let memory = stream.alloc::<f32>(64).unwrap();
        let dropped = Arc::new(AtomicBool::new(false));
        // SAFETY: the memory belongs to the buffer `memory`, which outlives `x` and its use.
        let x =
            unsafe { stream.borrow_memory::<f32>(memory.device_ptr().0, 64, Owner(None, dropped.clone())) }
                .unwrap();
        let gate = stream.hold().unwrap();
        drop(stream.fill(&x, 1.0));
        drop(stream);
        drop(x);
        assert!(!dropped.load(Ordering::SeqCst));
        gate.open();
        while !dropped.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(device.new_stream().unwrap().read(&memory).blocking_wait().unwrap().len(), 64);
    });
}

#[test]
fn lent_memory_needs_edges_like_any_other() {
    in_child(&[], || {
        let device = cuda(0);
        let [stream, other] = ["stream", "other"].map(|label| device.stream().label(label).build().unwrap());
        let memory = stream.alloc::<f32>(64).unwrap();
        // SAFETY: the memory belongs to the buffer `memory`, which outlives the work on `x`.
        let x = unsafe { stream.borrow_memory::<f32>(memory.device_ptr().0, 64, ()) }.unwrap();
        says(
            &other.fill(&x, 1.0).blocking_wait().unwrap_err(),
            ErrorKind::Unordered,
            &["memory that borrow_memory on stream \"stream\"", "call other.wait_stream(&stream) before it"],
        );
        other.wait_stream(&stream);
        assert!(other.fill(&x, 2.0).blocking_wait().is_ok());
        assert_eq!(other.read(&x).blocking_wait().unwrap(), [2.0; 64]);
    });
}

#[test]
fn an_address_that_holds_no_elements_is_refused() {
    in_child(&[], || {
        let stream = cuda(0).stream().label("lent").build().unwrap();
        // SAFETY: both addresses are refused, and never accessed.
        let [null, odd] = unsafe { [0, 0x1001].map(|address| stream.borrow_memory::<f64>(address, 4, ())) };
        let text = "address 0x0 cannot hold 4 elements of f64, which need an alignment of 8 \
            bytes; pass the address of device memory";
        says(
            &null.unwrap_err(),
            ErrorKind::InvalidArgument,
            &["borrow_memory on stream \"lent\" (tests/cuda/foreign/", text],
        );
        says(
            &odd.unwrap_err(),
            ErrorKind::InvalidArgument,
            &["address 0x1001 cannot hold 4 elements of f64"],
        );
        // SAFETY: without elements, no memory is accessed.
        let empty = unsafe { stream.borrow_memory::<f64>(0, 0, ()) }.unwrap();
        assert_eq!(stream.read(&empty).blocking_wait().unwrap(), [0.0; 0]);
        // SAFETY: the length is refused, and the memory is never accessed.
        let error = unsafe { stream.borrow_memory::<f64>(0x1000, usize::MAX / 4, ()) }.unwrap_err();
        says(&error, ErrorKind::InvalidArgument, &["elements of f64", "more than can be addressed"]);
    });
}
