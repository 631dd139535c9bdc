//! Random numbers from Philox4x32-10, as cuRAND documents it.
//!
//! A seed gives the same numbers for any number of threads and on every device. Normal numbers
//! differ between devices in the last bits, since each device has its own logarithm, sine and
//! cosine.

use crate::launch;
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::{Buffer, Pending};

/// Fills `x` with normal numbers: x ← mean + deviation·z, with z standard normal, from the start of
/// the sequence of `seed`.
///
/// # Errors
/// In the `Pending`: `Unordered` if an earlier use is not ordered before this op; `Fault` or
/// `ShutDown` if the device accepts no more work.
#[track_caller]
pub fn normal_(x: &Buffer<f32>, seed: u64, mean: f32, deviation: f32) -> Pending<()> {
    let n = x.len() as u64;
    launch(x, kernels::philox_normal(n, seed, 0, 0, mean, deviation, x), elements(n))
}

/// Fills `x` with numbers uniform in (low, high], up to rounding, from the start of the sequence of
/// `seed`.
///
/// # Errors
/// The errors of [`normal_`].
#[track_caller]
pub fn uniform_(x: &Buffer<f32>, seed: u64, low: f32, high: f32) -> Pending<()> {
    let n = x.len() as u64;
    launch(x, kernels::philox_uniform(n, seed, 0, 0, low, high, x), elements(n))
}
