//! Unwind safety: handles can be used inside `catch_unwind` and after a panic in it, like tokio's.

use crate::support::streams;
use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};
use warpline::backend::Refusal;
use warpline::ops::data::Batch;
use warpline::prelude::*;
use warpline::testing::Gate;
use warpline::trace::{HostTrack, Recorder};
use warpline::{Generator, MemoryRef, Permit, RuntimeBuilder, StreamBuilder};

/// Compiles only if each of these types is unwind safe.
#[test]
fn handles_are_unwind_safe_by_value_and_by_reference() {
    fn is<T: UnwindSafe + RefUnwindSafe>() {}
    is::<Batch<(f32, i64)>>();
    is::<Buffer<f32>>();
    is::<Device>();
    is::<Error>();
    is::<Event>();
    is::<Gate>();
    is::<Generator>();
    is::<Graph>();
    is::<HostTrack>();
    is::<MemoryRef<'_>>();
    is::<Pending<Vec<f32>>>();
    is::<Permit>();
    is::<Pinned<f32>>();
    is::<Recorder>();
    is::<Refusal>();
    is::<Runtime>();
    is::<RuntimeBuilder>();
    is::<Stream>();
    is::<StreamBuilder>();
    is::<StreamLease>();
    is::<StreamPool>();
    is::<Tensor>();
}

#[test]
fn a_device_works_on_after_a_panic_among_its_calls() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let x = stream.alloc::<f32>(4).unwrap();
    let panicked = catch_unwind(|| {
        let _filled = stream.fill(&x, 1.0);
        stream.enter(|| {
            let _tensor = Tensor::ones([2, 2], &device).relu();
            panic!("on purpose");
        });
    });
    assert!(panicked.is_err());
    stream.fill(&x, 3.0).queued().unwrap();
    assert_eq!(stream.read(&x).blocking_wait().unwrap(), [3.0; 4]);
    assert_eq!(Stream::current(&device).unwrap().label(), "default", "the scope has ended");
    device.synchronize().blocking_wait().unwrap();
}
