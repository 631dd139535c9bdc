//! The number of driver calls that operations of a CUDA device make, counted by the software CUDA
//! driver. In most tests the driver runs nothing, so its calls return immediately.

use crate::support::software::in_child;
use std::ffi::{CStr, c_char};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use warpline::prelude::*;

warpline::kernel! {
    /// y[0] ← k · x[0]
    unsafe fn touch_two(k: f32, x: &[f32], y: &mut [f32])
    where !x.is_empty(), !y.is_empty()
    {
        cuda: "extern \"C\" __global__ void touch_two(float k, const float* x, float* y) {
            if (blockIdx.x + threadIdx.x == 0) y[0] = k * x[0];
        }",
        cpu: |k, x, y| y[0] = k * x[0],
    }
}

const CONFIG: LaunchConfig = LaunchConfig::linear(1, 32);
const IMMEDIATE: [(&str, &str); 1] = [("SOFTCUDA_IMMEDIATE", "1")];
/// No setting: the work runs asynchronously.
const ASYNCHRONOUS: [(&str, &str); 0] = [];

/// Returns a number that grows with this thread's calls of an entry point of the software CUDA
/// driver. Calls of the thread that checks whether the device lives do not count.
fn count(entry: &CStr) -> u64 {
    // SAFETY: with RTLD_NOLOAD, `dlopen` runs no initialisers: it only finds a library that is
    // loaded.
    let count = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!count.is_null(), "no driver library is loaded");
    // SAFETY: the library is loaded, and the name ends with a NUL.
    let count = unsafe { libc::dlsym(count, c"softcudaThreadCallCount".as_ptr()) };
    assert!(!count.is_null(), "it is not the software CUDA driver");
    // SAFETY: the software CUDA driver declares the function with this type, and no other library
    // exports this name.
    let count: unsafe extern "C" fn(*const c_char) -> u64 = unsafe { std::mem::transmute(count) };
    // SAFETY: the function reads a string that ends with a NUL.
    let calls = unsafe { count(entry.as_ptr()) };
    assert_ne!(calls, u64::MAX, "the driver has no {entry:?}");
    calls
}

/// Entry points that enqueue, query, create or allocate.
const CALLS: [&CStr; 17] = [
    c"cuLaunchKernel",
    c"cuLaunchKernelEx",
    c"cuStreamWriteValue64_v2",
    c"cuStreamWaitValue64_v2",
    c"cuEventRecord",
    c"cuStreamWaitEvent",
    c"cuEventCreate",
    c"cuEventQuery",
    c"cuEventDestroy_v2",
    c"cuStreamQuery",
    c"cuStreamSynchronize",
    c"cuLaunchHostFunc",
    c"cuMemAlloc_v2",
    c"cuMemFree_v2",
    c"cuMemsetD32Async",
    c"cuCtxSetCurrent",
    c"cuMemHostAlloc",
];

/// Returns the driver calls that `work` makes, by name, and how often it checks the current
/// context.
fn calls(work: impl FnOnce()) -> (Vec<(&'static str, u64)>, u64) {
    let now = || (CALLS.map(count), count(c"cuCtxGetCurrent"));
    let (before, checks_before) = now();
    work();
    let (after, checks) = now();
    let made =
        CALLS.iter().zip(after.iter().zip(before)).map(|(name, (after, before))| (*name, after - before));
    let made = made.filter(|(_, calls)| *calls > 0);
    (made.map(|(name, calls)| (name.to_str().expect("ASCII"), calls)).collect(), checks - checks_before)
}

/// Returns a `deny` runtime, two streams, and two buffers of the first stream. Everything that is
/// loaded on first use has been loaded.
fn ready() -> (Runtime, [Stream; 2], [Buffer<f32>; 2]) {
    let runtime = Runtime::builder().order(OrderMode::Deny).build().unwrap();
    let device = runtime.device(DeviceId::Cuda(0)).unwrap();
    let streams = [(); 2].map(|()| device.new_stream().unwrap());
    let buffers = [(); 2].map(|()| {
        let buffer = streams[0].alloc::<f32>(64).unwrap();
        streams[0].fill(&buffer, 1.0).blocking_wait().unwrap();
        buffer
    });
    streams[0].launch(touch_two(0.5, &buffers[0], &buffers[1]), CONFIG).blocking_wait().unwrap();
    (runtime, streams, buffers)
}

/// Polls the future until it is ready. It never sleeps, so no other thread has to make driver calls
/// for it.
fn poll_to_the_end<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

#[test]
fn a_launch_is_one_driver_call_and_one_context_check() {
    in_child(&IMMEDIATE, || {
        let (_runtime, [stream, _], [x, y]) = ready();
        let made = calls(|| drop(stream.launch(touch_two(0.5, &x, &y), CONFIG)));
        assert_eq!(made, (vec![("cuLaunchKernel", 1)], 1));
    });
}

#[test]
fn launches_that_nobody_awaits_have_a_marker_every_64() {
    in_child(&IMMEDIATE, || {
        let (_runtime, [stream, _], [x, y]) = ready();
        let made = calls(|| (0..640).for_each(|_| drop(stream.launch(touch_two(0.5, &x, &y), CONFIG))));
        assert_eq!(made.0, [("cuLaunchKernel", 640), ("cuStreamWriteValue64_v2", 10)]);
    });
}

#[test]
fn a_kernel_awaited_when_done_is_a_launch_and_a_marker() {
    in_child(&IMMEDIATE, || {
        let (_runtime, [stream, _], [x, y]) = ready();
        let made = calls(|| poll_to_the_end(stream.launch(touch_two(0.5, &x, &y), CONFIG)).unwrap());
        assert_eq!(made, (vec![("cuLaunchKernel", 1), ("cuStreamWriteValue64_v2", 1)], 2));
    });
}

#[test]
fn ten_launches_awaited_once_are_ten_launches_and_one_marker() {
    in_child(&IMMEDIATE, || {
        let (_runtime, [stream, _], [x, y]) = ready();
        let made = calls(|| {
            (0..9).for_each(|_| drop(stream.launch(touch_two(0.5, &x, &y), CONFIG)));
            poll_to_the_end(stream.launch(touch_two(0.5, &x, &y), CONFIG)).unwrap();
        });
        assert_eq!(made, (vec![("cuLaunchKernel", 10), ("cuStreamWriteValue64_v2", 1)], 11));
    });
}

#[test]
fn a_pending_that_is_held_has_its_marker_before_it_is_overtaken() {
    in_child(&IMMEDIATE, || {
        let (_runtime, [stream, _], [x, y]) = ready();
        let mut held = None;
        let made = calls(|| {
            held = Some(stream.launch(touch_two(0.5, &x, &y), CONFIG));
            drop(stream.launch(touch_two(0.5, &x, &y), CONFIG));
            drop(stream.launch(touch_two(0.5, &x, &y), CONFIG));
        });
        assert_eq!(made.0, [("cuLaunchKernel", 3), ("cuStreamWriteValue64_v2", 1)]);
        let made = calls(|| poll_to_the_end(held.take().unwrap()).unwrap());
        assert_eq!(made, (vec![], 0), "its marker is there");
    });
}

#[test]
fn a_wait_is_a_record_and_a_wait_with_no_event_created() {
    in_child(&IMMEDIATE, || {
        let (_runtime, [stream, other], [x, y]) = ready();
        let wait = || {
            drop(stream.launch(touch_two(0.5, &x, &y), CONFIG));
            other.wait_stream(&stream);
        };
        // The first wait creates an event, which then returns to its pool.
        wait();
        let made = calls(wait);
        assert_eq!(made.0, [("cuLaunchKernel", 1), ("cuEventRecord", 1), ("cuStreamWaitEvent", 1)]);
    });
}

#[test]
fn an_event_that_the_program_holds_is_not_recorded_again_for_a_later_wait() {
    in_child(&ASYNCHRONOUS, || {
        let (runtime, [a, b], [x, y]) = ready();
        let c = runtime.device(DeviceId::Cuda(0)).unwrap().new_stream().unwrap();
        let z = c.alloc::<f32>(64).unwrap();
        let earlier = a.hold().unwrap();
        a.launch(touch_two(0.5, &x, &y), CONFIG).queued().unwrap();
        let event = a.record_event();
        let later = a.hold().unwrap();
        a.launch(touch_two(0.5, &x, &y), CONFIG).queued().unwrap();
        b.wait_stream(&a).queued().unwrap();
        c.wait_event(&event).queued().unwrap();
        let filled = c.fill(&z, 1.0);
        earlier.open();
        filled.blocking_wait().unwrap();
        assert!(!a.query().unwrap(), "the later gate is closed");
        later.open();
        a.synchronize().blocking_wait().unwrap();
    });
}

#[test]
fn waits_of_many_streams_for_one_place_are_all_made_and_repeating_one_is_no_call() {
    in_child(&ASYNCHRONOUS, || {
        let (runtime, [a, _], [x, y]) = ready();
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let waiting = [(); 3].map(|()| device.new_stream().unwrap());
        let gate = a.hold().unwrap();
        a.launch(touch_two(0.5, &x, &y), CONFIG).queued().unwrap();
        let wait = || waiting.iter().for_each(|stream| stream.wait_stream(&a).queued().unwrap());
        let (first, _) = calls(wait);
        assert!(
            first.contains(&("cuEventRecord", 3)) && first.contains(&("cuStreamWaitEvent", 3)),
            "{first:?}"
        );
        assert_eq!(calls(wait), (vec![], 0));
        assert!(waiting.iter().all(|stream| !stream.query().unwrap()), "the gate is closed");
        gate.open();
        for stream in &waiting {
            stream.synchronize().blocking_wait().unwrap();
        }
    });
}

#[test]
fn a_wait_that_is_implied_is_no_call_at_all() {
    in_child(&IMMEDIATE, || {
        let (_runtime, [stream, other], [x, y]) = ready();
        drop(stream.launch(touch_two(0.5, &x, &y), CONFIG));
        other.wait_stream(&stream);
        assert_eq!(calls(|| drop(other.wait_stream(&stream))), (vec![], 0));
        assert_eq!(calls(|| drop(stream.wait_stream(&stream))), (vec![], 0));
    });
}

#[test]
fn memory_that_the_cache_has_is_allocated_and_freed_without_a_call() {
    in_child(&IMMEDIATE, || {
        let (_runtime, [stream, _], _) = ready();
        drop(stream.alloc::<u8>(4096).unwrap());
        assert_eq!(calls(|| (0..100).for_each(|_| drop(stream.alloc::<u8>(4096).unwrap()))), (vec![], 0));
    });
}

#[test]
fn a_poll_of_what_is_done_and_seen_is_no_call() {
    in_child(&ASYNCHRONOUS, || {
        let (_runtime, [stream, _], [x, y]) = ready();
        let first = stream.launch(touch_two(0.5, &x, &y), CONFIG);
        drop(stream.launch(touch_two(0.5, &x, &y), CONFIG));
        stream.synchronize().blocking_wait().unwrap();
        assert_eq!(calls(|| poll_to_the_end(first).unwrap()), (vec![], 0));
    });
}
