//! Helpers that several test binaries share.
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
use warpline::{KernelForm, RuntimeBuilder};

/// Returns a builder with the form and the checks of kernels from the environment, so that a run of
/// these tests can cover another form.
pub(crate) fn builder() -> RuntimeBuilder {
    let text = |name| std::env::var(name).unwrap_or_default();
    let (form, checks) = (text("WARPLINE_KERNELS"), text("WARPLINE_CHECK_KERNELS"));
    let form = if form.is_empty() { Ok(KernelForm::Twin) } else { form.parse() };
    Runtime::builder().kernel_form(form.expect("a form")).kernel_checks(checks.parse().expect("checks"))
}

/// Returns a runtime with the default order mode and `devices` CPU devices.
pub(crate) fn runtime(devices: u32) -> Runtime {
    builder().cpu_devices(devices).build().expect("a CPU runtime")
}

/// Returns a runtime, its `cpu:0`, and one stream for each of `labels`.
pub(crate) fn streams<const N: usize>(labels: [&str; N]) -> (Runtime, Device, [Stream; N]) {
    let runtime = runtime(1);
    let device = runtime.device(DeviceId::Cpu(0)).expect("cpu:0");
    let streams = labels.map(|label| device.stream().label(label).build().expect("a stream"));
    (runtime, device, streams)
}

/// Returns `cuda:n` of the default runtime.
pub(crate) fn cuda(ordinal: u32) -> Device {
    Device::open(&format!("cuda:{ordinal}")).expect("a CUDA device")
}

/// Fills the pool of `device` with page-locked memory for eight short copies, so that none of them
/// is held back.
pub(crate) fn cache_pinned(device: &Device) {
    drop([(); 8].map(|()| device.blocking_pinned::<u8>(4096).expect("pinned memory")));
}

/// Waits until everything on `stream` has finished, without observing it.
pub(crate) fn finish_unobserved(stream: &Stream) {
    while stream.completed() < stream.issued() {
        std::thread::yield_now();
    }
}

/// Returns the error that `pending` fails with. Panics if it succeeds.
#[track_caller]
pub(crate) fn refusal<T: std::fmt::Debug>(pending: impl IntoFuture<IntoFuture = Pending<T>>) -> Error {
    match pending.into_future().blocking_wait() {
        Ok(value) => panic!("accepted, with {value:?}"),
        Err(error) => error,
    }
}

warpline::kernel! {
    pub(crate) unsafe fn fails(y: &mut [u8]) {
        cuda: "extern \"C\" __global__ void fails(unsigned char* y) {}",
        cpu: |_y| panic!("on purpose"),
    }
}

/// Enqueues a kernel whose panic fails the device.
pub(crate) fn break_device(stream: &Stream) -> Pending<()> {
    let y = stream.alloc::<u8>(1).expect("memory");
    stream.launch(fails(&y), LaunchConfig::linear(1, 1))
}

/// Checks that `pending` was refused because an edge is missing, and returns the error.
#[track_caller]
pub(crate) fn unordered<T: std::fmt::Debug>(pending: Pending<T>) -> Error {
    let error = refusal(pending);
    assert_eq!(error.kind(), ErrorKind::Unordered, "{error}");
    error
}

/// Checks that `error` is of this kind and that its text contains each of `parts`.
#[track_caller]
pub(crate) fn says(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// Calls `f` on a thread of its own and aborts the process if that takes more than a minute.
///
/// It is for code that must not hang. Other tests of the process use the same devices and would
/// wait a minute each.
#[track_caller]
pub(crate) fn within_a_minute<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, outcome) = channel();
    let thread = std::thread::spawn(move || drop(done.send(f())));
    match outcome.recv_timeout(Duration::from_secs(60)) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => {
            let name = std::thread::current().name().unwrap_or("a test").to_owned();
            // Not with `eprintln!`: the test harness captures its output, which is lost in an
            // abort.
            let _ = writeln!(std::io::stderr(), "{name} hangs");
            std::process::abort()
        }
        Err(RecvTimeoutError::Disconnected) => resume_unwind(thread.join().expect_err("it sent nothing")),
    }
}

/// Runs `future` on this thread until it is ready.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    futures::executor::block_on(future)
}
