//! Optimizer steps on tensors, in place.

use super::Tensor;
use super::call::{Call, Outcome, refused_operand};
use std::borrow::Borrow;
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::{Pending, Refusal};

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

/// Returns a step that was refused because of its parameter, its gradient or its velocity.
///
/// Of the tensors that it would have written, those that exist are marked.
#[cold]
pub(super) fn refused_step(
    param: Result<impl Borrow<Tensor>, Refusal>,
    grad: Option<Refusal>,
    velocity: Result<impl Borrow<Tensor>, Refusal>,
) -> Pending<Tensor> {
    fn apart<H>(held: Result<H, Refusal>) -> (Option<H>, Option<Refusal>) {
        match held {
            Ok(held) => (Some(held), None),
            Err(refusal) => (None, Some(refusal)),
        }
    }
    let ((param, first), (velocity, last)) = (apart(param), apart(velocity));
    let mut refusals = [first, grad, last].into_iter().flatten();
    let refusal = refusals.next().expect("one of the three was refused");
    // The first error is passed on. The others are dropped like `Pending`s, so that their streams
    // report them.
    refusals.for_each(|other| drop(other.pass_on::<()>()));
    let param = param.as_ref().map(Borrow::borrow);
    let velocity = velocity.as_ref().map(Borrow::borrow);
    let written: Vec<&Tensor> = param.into_iter().chain(velocity).collect();
    match written.first() {
        Some(first) => refused_operand(refusal, &first.device(), &written).pass_on(),
        None => refusal.pass_on(),
    }
}
