//! What several test binaries share.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

pub(crate) mod programs;
pub(crate) mod raw;
pub(crate) mod recording;
pub(crate) mod software;

use std::future::{Future, IntoFuture};
use std::io::Write;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use warpline::prelude::*;

/// A runtime with the default order mode and `devices` CPU devices.
pub(crate) fn runtime(devices: u32) -> Runtime {
    Runtime::builder().cpu_devices(devices).build().expect("a CPU runtime")
}

/// A runtime, its `cpu:0`, and as many streams as `labels`.
pub(crate) fn streams<const N: usize>(labels: [&str; N]) -> (Runtime, Device, [Stream; N]) {
    let runtime = runtime(1);
    let device = runtime.device(DeviceId::Cpu(0)).expect("cpu:0");
    let streams = labels.map(|label| device.stream().label(label).build().expect("a stream"));
    (runtime, device, streams)
}

/// `cuda:n` of the default runtime.
pub(crate) fn cuda(ordinal: u32) -> Device {
    Device::open(&format!("cuda:{ordinal}")).expect("a CUDA device")
}

/// Has `device` keep page-locked memory for eight short copies at once, so that none of them is
/// held back.
pub(crate) fn cache_pinned(device: &Device) {
    drop([(); 8].map(|()| device.blocking_pinned::<u8>(4096).expect("pinned memory")));
}

/// Waits until everything on `stream` is done without observing it.
pub(crate) fn finish_unobserved(stream: &Stream) {
    while stream.completed() < stream.issued() {
        std::thread::yield_now();
    }
}

/// The refusal of `pending`, which has to be one.
#[track_caller]
pub(crate) fn refusal<T: std::fmt::Debug>(pending: impl IntoFuture<IntoFuture = Pending<T>>) -> Error {
    match pending.into_future().blocking_wait() {
        Ok(value) => panic!("accepted, with {value:?}"),
        Err(error) => error,
    }
}

warpline::kernel! {
    unsafe fn fails(y: &mut [u8]) {
        cuda: "extern \"C\" __global__ void fails(unsigned char* y) {}",
        cpu: |_y| panic!("on purpose"),
    }
}

/// Enqueues a kernel that takes its device along.
pub(crate) fn break_device(stream: &Stream) -> Pending<()> {
    let y = stream.alloc::<u8>(1).expect("memory");
    stream.launch(fails(&y), LaunchConfig::linear(1, 1))
}

/// Checks that `pending` was refused for want of an edge.
#[track_caller]
pub(crate) fn unordered<T: std::fmt::Debug>(pending: Pending<T>) -> Error {
    let error = refusal(pending);
    assert_eq!(error.kind(), ErrorKind::Unordered, "{error}");
    error
}

/// Checks that every one of `parts` is in the text of `error`, which is of this kind.
#[track_caller]
pub(crate) fn says(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// Calls `f` on a thread of its own and ends the process if that takes more than a minute: for what
/// must not hang. Other tests of the process use the same devices, and would wait a minute each.
#[track_caller]
pub(crate) fn within_a_minute<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, outcome) = channel();
    let thread = std::thread::spawn(move || drop(done.send(f())));
    match outcome.recv_timeout(Duration::from_secs(60)) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => {
            let name = std::thread::current().name().unwrap_or("a test").to_owned();
            // Not by a macro, whose output is the test's and ends with it.
            let _ = writeln!(std::io::stderr(), "{name} hangs");
            std::process::abort()
        }
        Err(RecvTimeoutError::Disconnected) => resume_unwind(thread.join().expect_err("it sent nothing")),
    }
}

/// Runs `future` on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    futures::executor::block_on(future)
}
