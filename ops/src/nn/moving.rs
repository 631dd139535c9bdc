//! Moves and conversions of all tensors of a module together.

use super::module::{Module, Visitor};
use crate::{Tensor, TensorOps, TensorOptions};
use warpline_runtime::{Error, ErrorKind, Pending, Result, Site};

/// The place that a module moves to.
pub(super) enum Target {
    Options(TensorOptions),
    Cuda,
    Cpu,
}

/// Replaces all tensors of `module` by copies that meet `target`, or none if a copy is refused.
#[track_caller]
pub(super) fn replaced(module: &mut dyn Module, target: Target) -> Pending<()> {
    if let Target::Options(TensorOptions { dtype: Some(dtype), .. }) = target
        && !dtype.is_floating_point()
    {
        let why = format!(
            "the type is {dtype}, and modules are converted to floating-point types only; pass one, \
             or convert a single tensor with its own .to"
        );
        let why = format!("{}: {why}", Site::here(&"to"));
        return Pending::refused(Error::new(ErrorKind::DTypeMismatch, why));
    }
    let tensors: Vec<Tensor> = module.state_dict().into_iter().map(|(_, tensor)| tensor).collect();
    let mut copies: Vec<Pending<Tensor>> = Vec::with_capacity(tensors.len());
    // Each tensor's copy. One tensor under several names is copied once.
    let mut copy_of: Vec<usize> = Vec::with_capacity(tensors.len());
    // A loop: errors then name the caller's line, which closures do not know.
    for (i, tensor) in tensors.iter().enumerate() {
        if let Some(earlier) = tensors[..i].iter().position(|earlier| earlier.is_same(tensor)) {
            copy_of.push(copy_of[earlier]);
            continue;
        }
        copy_of.push(copies.len());
        copies.push(match &target {
            Target::Options(options) => tensor.to(for_type(options, tensor)),
            Target::Cuda => tensor.cuda(),
            Target::Cpu => tensor.cpu(),
        });
    }
    let made: Result<Vec<Tensor>, _> = copies.iter().map(|copy| copy.as_operand().cloned()).collect();
    // The refusal itself is in the `Pending`.
    if let Ok(made) = made {
        let mut copy_of = copy_of.into_iter();
        module.visit(&mut Visitor::new(&mut |_, _, tensor| {
            *tensor = made[copy_of.next().expect("a module shows the same tensors each time")].clone();
        }));
    }
    Pending::join_all(copies)
}

/// Returns the options without their type, for a tensor that is not floating-point.
fn for_type(options: &TensorOptions, tensor: &Tensor) -> TensorOptions {
    let dtype = options.dtype.filter(|_| tensor.dtype().is_floating_point());
    TensorOptions { dtype, device: options.device.clone() }
}
