//! Mistake 1: memory is read before it is written.
//!
//! This is the incorrect example in PyTorch's note on CUDA semantics. The default stream fills a
//! matrix, another stream sums it, and no edge puts the sum second. On a GPU the result may be
//! right for months.

use warpline::ops::{fill_, normal_, sum};
use warpline::prelude::*;

/// Sums the matrix without an edge between the two streams: the mistake.
pub(crate) async fn incorrect(device: &Device) -> warpline::Result<f32> {
    let side = device.stream().label("side").build()?;
    let a = device.alloc::<f32>(100 * 100)?;
    fill_(&a, 1.0).queued()?;
    normal_(&a, 42, 0.0, 1.0).queued()?; // on the default stream
    side.enter(|| sum(&a)).await // on the side stream, perhaps first
}

/// Sums the matrix with the edge.
pub(crate) async fn correct(device: &Device) -> warpline::Result<f32> {
    let side = device.stream().label("side").build()?;
    let a = device.alloc::<f32>(100 * 100)?;
    fill_(&a, 1.0).queued()?;
    normal_(&a, 42, 0.0, 1.0).queued()?;
    side.wait_stream(&device.default_stream()?); // on the device, without blocking the host
    side.enter(|| sum(&a)).await
}
