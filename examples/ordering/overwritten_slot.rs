//! Mistake 2: a slot is overwritten while it is still read.
//!
//! A copy stream writes batch after batch into one slot, and a compute stream sums each. The sums
//! wait for the copies, but the next copy has to wait for the sum too: write after read.

use warpline::ops::sum;
use warpline::prelude::*;

const LEN: usize = 100;

/// Writes each batch without waiting for the sum of the batch before: the mistake.
pub(crate) async fn incorrect(device: &Device) -> warpline::Result<Vec<f32>> {
    let copy = device.stream().label("copy").build()?;
    let compute = device.stream().label("compute").build()?;
    let slot = copy.alloc::<f32>(LEN)?;
    let mut sums = Vec::new();
    for batch in [1.0, 2.0, 3.0] {
        copy.write(&slot, &[batch; LEN]).queued()?; // perhaps before the slot was summed
        compute.wait_stream(&copy);
        sums.push(compute.enter(|| sum(&slot)));
    }
    all(sums).await
}

/// Writes a batch after the sum of the batch before.
pub(crate) async fn correct(device: &Device) -> warpline::Result<Vec<f32>> {
    let copy = device.stream().label("copy").build()?;
    let compute = device.stream().label("compute").build()?;
    let slot = copy.alloc::<f32>(LEN)?;
    let mut sums = Vec::new();
    for batch in [1.0, 2.0, 3.0] {
        copy.wait_stream(&compute); // the slot has been read
        copy.write(&slot, &[batch; LEN]).queued()?;
        compute.wait_stream(&copy); // the slot has been written
        sums.push(compute.enter(|| sum(&slot)));
    }
    all(sums).await
}

async fn all(sums: Vec<Pending<f32>>) -> warpline::Result<Vec<f32>> {
    let mut values = Vec::new();
    for sum in sums {
        values.push(sum.await?);
    }
    Ok(values)
}
