//! Optimizer steps on tensors, in place.

use super::Tensor;
use super::call::{Call, Outcome};
use warpline_kernels::{self as kernels, launch::elements};

/// Computes velocity ← momentum·velocity + grad; param ← param − lr·velocity.
#[track_caller]
pub(super) fn sgd(param: &Tensor, grad: &Tensor, velocity: &Tensor, lr: f32, momentum: f32) -> Outcome {
    let call = Call::in_place(&"sgd_", [param, velocity])?;
    call.same_shape(param, grad)?;
    call.same_shape(param, velocity)?;
    let (p, g, v) = (call.operand(param)?, call.operand(grad)?, call.operand(velocity)?);
    let n = param.len() as u64;
    Ok(call.launch(kernels::sgd(n, lr, momentum, g, v, p), elements(n), param.clone()))
}
