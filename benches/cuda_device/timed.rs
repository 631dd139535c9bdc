//! How long work takes the device, apart from who enqueues it.

use crate::support::ONE;
use crate::support::gpu_kernels::busy;
use warpline::Result;
use warpline::prelude::*;

/// What the device is busy with while the work is put behind it.
const HEAD_START_NS: u64 = 2_000_000;

/// Nanoseconds, by the device's clock, from the begin to the end of what `enqueue` puts on `stream`: all of it is in the queue before
/// it begins, unless enqueuing takes longer than two milliseconds.
pub(crate) fn device_ns(stream: &Stream, enqueue: impl FnOnce() -> Result<()>) -> f64 {
    let timed = || {
        stream.launch(busy(HEAD_START_NS), ONE).queued()?;
        let began = stream.record_timed_event()?;
        enqueue()?;
        let ended = stream.record_timed_event()?;
        stream.synchronize().blocking_wait()?;
        ended.elapsed_since(&began)
    };
    // The software driver's clock may stand still meanwhile.
    timed().expect("it runs").as_nanos().max(1) as f64
}
