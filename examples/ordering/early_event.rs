//! Mistake 3: an event is recorded too early.
//!
//! The compute stream does wait, but for a point before the write that it needs: an event covers
//! what was enqueued before `record_event`, and nothing later.

use warpline::ops::sum;
use warpline::prelude::*;

const LEN: usize = 100;

/// Records the event between the two copies: the mistake.
pub(crate) async fn incorrect(device: &Device) -> warpline::Result<f32> {
    let copy = device.stream().label("copy").build()?;
    let compute = device.stream().label("compute").build()?;
    let x = copy.alloc::<f32>(LEN)?;
    copy.write(&x.slice(..LEN / 2)?, &[1.0; LEN / 2]).queued()?;
    let copied = copy.record_event(); // covers the first half only
    copy.write(&x.slice(LEN / 2..)?, &[2.0; LEN / 2]).queued()?;
    compute.wait_event(&copied);
    compute.enter(|| sum(&x)).await
}

/// Records the event after both copies.
pub(crate) async fn correct(device: &Device) -> warpline::Result<f32> {
    let copy = device.stream().label("copy").build()?;
    let compute = device.stream().label("compute").build()?;
    let x = copy.alloc::<f32>(LEN)?;
    copy.write(&x.slice(..LEN / 2)?, &[1.0; LEN / 2]).queued()?;
    copy.write(&x.slice(LEN / 2..)?, &[2.0; LEN / 2]).queued()?;
    let copied = copy.record_event();
    compute.wait_event(&copied);
    compute.enter(|| sum(&x)).await
}
