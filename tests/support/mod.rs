//! What several test binaries share.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

pub mod recording;

use warpline::prelude::*;

/// A runtime with the default order mode and `devices` CPU devices.
pub fn runtime(devices: u32) -> Runtime {
    Runtime::builder().cpu_devices(devices).build().expect("a CPU runtime")
}

/// A runtime, its `cpu:0`, and as many streams as `labels`.
pub fn streams<const N: usize>(labels: [&str; N]) -> (Runtime, Device, [Stream; N]) {
    let runtime = runtime(1);
    let device = runtime.best_device().expect("cpu:0");
    let streams = labels.map(|label| device.stream().label(label).build().expect("a stream"));
    (runtime, device, streams)
}

/// Waits until everything on `stream` is done without observing it.
pub fn finish_unobserved(stream: &Stream) {
    while stream.completed() < stream.issued() {
        std::thread::yield_now();
    }
}

/// The refusal of `pending`, which has to be one.
#[track_caller]
pub fn refusal<T: std::fmt::Debug>(pending: Pending<T>) -> Error {
    match pending.wait() {
        Ok(value) => panic!("accepted, with {value:?}"),
        Err(error) => error,
    }
}

/// Checks that `pending` was refused for want of an edge.
#[track_caller]
pub fn unordered<T: std::fmt::Debug>(pending: Pending<T>) -> Error {
    let error = refusal(pending);
    assert_eq!(error.kind(), ErrorKind::Unordered, "{error}");
    error
}
