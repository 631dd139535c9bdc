//! Ops that fill tensors with random numbers, from Philox4x32-10 as cuRAND documents it.

use super::Tensor;
use super::call::{Call, Outcome};
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::Generator;

/// Computes x ← mean + deviation·z, from the next part of a generator's sequence.
///
/// The generator is `generator` if given, else the device's.
#[track_caller]
pub(super) fn normal(x: &Tensor, generator: Option<&Generator>, mean: f32, deviation: f32) -> Outcome {
    let call = Call::in_place(&"normal_", [x])?;
    let (y, n) = (call.operand(x)?, x.len() as u64);
    let draw = generator.unwrap_or(x.device().generator()).take(n);
    let kernel = kernels::philox_normal(n, draw.seed, 0, draw.offset, mean, deviation, y);
    Ok(call.launch(kernel, elements(n), x.clone()))
}

/// Computes x ← uniform in (low, high], from the same generator as [`normal`].
#[track_caller]
pub(super) fn uniform(x: &Tensor, generator: Option<&Generator>, low: f32, high: f32) -> Outcome {
    let call = Call::in_place(&"uniform_", [x])?;
    let (y, n) = (call.operand(x)?, x.len() as u64);
    let draw = generator.unwrap_or(x.device().generator()).take(n);
    let kernel = kernels::philox_uniform(n, draw.seed, 0, draw.offset, low, high, y);
    Ok(call.launch(kernel, elements(n), x.clone()))
}
