//! Jobs on background threads whose results are awaited.

use std::future::Future;
use tokio::sync::oneshot;
use warpline_driver::DeviceId;
pub(crate) use warpline_driver::background::{Duty, detach, duty, pin, run_where_it_may_block, submit};

/// Runs `f` on the thread `warpline-host`.
pub(crate) fn run<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> impl Future<Output = R> {
    let (job, answer) = answering(f);
    detach(job);
    answer
}

/// Runs `f`, which page-locks memory, on the device's thread `warpline-pin`.
pub(crate) fn run_pinning<R: Send + 'static>(
    device: DeviceId,
    f: impl FnOnce() -> R + Send + 'static,
) -> impl Future<Output = R> {
    let (job, answer) = answering(f);
    pin(device, job);
    answer
}

/// Returns the job that calls `f`, and a future of its result.
fn answering<R: Send + 'static>(
    f: impl FnOnce() -> R + Send + 'static,
) -> (impl FnOnce() + Send + 'static, impl Future<Output = R>) {
    let (answer, answered) = oneshot::channel();
    let job = move || {
        // The receiver may have been dropped; then the result is too.
        let _ = answer.send(f());
    };
    (job, async { answered.await.expect("the job answers or panics") })
}
