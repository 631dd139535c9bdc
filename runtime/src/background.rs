//! Calls in the background whose answers are awaited.

use std::future::Future;
use tokio::sync::oneshot;
use warpline_driver::DeviceId;
pub(crate) use warpline_driver::background::{Duty, detach, duty, pin, run_where_it_may_block};

/// Calls `f` on `warpline-host`.
pub(crate) fn run<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> impl Future<Output = R> {
    let (job, answer) = answering(f);
    detach(job);
    answer
}

/// Calls `f`, which page-locks memory, on the device's `warpline-pin`.
pub(crate) fn run_pinning<R: Send + 'static>(
    device: DeviceId,
    f: impl FnOnce() -> R + Send + 'static,
) -> impl Future<Output = R> {
    let (job, answer) = answering(f);
    pin(device, job);
    answer
}

/// The job that calls `f`, and what it answers.
fn answering<R: Send + 'static>(
    f: impl FnOnce() -> R + Send + 'static,
) -> (impl FnOnce() + Send + 'static, impl Future<Output = R>) {
    let (answer, answered) = oneshot::channel();
    let job = move || {
        // The asker may have gone away; then nobody wants the answer.
        let _ = answer.send(f());
    };
    (job, async { answered.await.expect("the job answers or panics") })
}
