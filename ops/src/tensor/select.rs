//! Slices of a tensor that a list of indices names.

use super::Tensor;
use super::call::{Call, Outcome};
use super::dims::{Around, replaced};
use warpline_kernels::{self as kernels, launch};
use warpline_runtime::ErrorKind;

/// Returns the slices of `x` along dimension `dim` at `indices`.
#[track_caller]
pub(super) fn index_select(x: &Tensor, dim: usize, indices: &Tensor) -> Outcome {
    let call = Call::new(&"index_select", &x.device())?;
    let Around { outer, n, inner } = Around::of(&call, x, dim)?;
    if indices.shape.len() > 1 || x.shape.is_empty() && indices.len() != 1 {
        let why = format!(
            "the input has shape {} and the indices {}; pass indices of shape [n], or [1] for a \
             scalar input",
            x.shape, indices.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let (from, chosen) = (call.operand(x)?, call.operand(indices)?);
    let count = indices.len();
    let shape = if x.shape.is_empty() { x.shape.clone() } else { replaced(&x.shape, dim, &[count]) };
    let to = call.alloc(&shape)?;
    let [outer, n, inner] = [outer, n, inner].map(|size| size as u64);
    let kernel = kernels::index_select(outer, n, inner, count as u64, from, chosen, &to);
    Ok(call.launch(kernel, launch::elements(to.len() as u64), ()).with(Tensor::over(to, shape)))
}
