//! The time that work takes on the device, without the time to enqueue it.

use crate::support::ONE;
use crate::support::gpu_kernels::busy;
use warpline::Result;
use warpline::prelude::*;

/// The time for which the device is kept busy while the host enqueues the work.
const HEAD_START_NS: u64 = 2_000_000;

/// Returns the nanoseconds, by the clock of the device, from the start to the end of the work that
/// `enqueue` puts on `stream`. All of it is in the queue before it starts, unless enqueuing takes
/// longer than `HEAD_START_NS`.
pub(crate) fn device_ns(stream: &Stream, enqueue: impl FnOnce() -> Result<()>) -> f64 {
    let timed = || {
        stream.launch(busy(HEAD_START_NS), ONE).queued()?;
        let began = stream.record_timed_event()?;
        enqueue()?;
        let ended = stream.record_timed_event()?;
        stream.synchronize().blocking_wait()?;
        ended.elapsed_since(&began)
    };
    // On the software driver both times may be equal.
    timed().expect("it runs").as_nanos().max(1) as f64
}
