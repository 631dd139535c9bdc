//! One dimension of a tensor, and the sizes around it.

use super::call::Call;
use super::{Shape, Tensor};
use warpline_runtime::{ErrorKind, Refusal};

/// The sizes of a tensor as seen from one of its dimensions: row-major `outer` × `n` × `inner`.
pub(super) struct Around {
    /// The product of the sizes before the dimension.
    pub(super) outer: usize,
    /// The size of the dimension.
    pub(super) n: usize,
    /// The product of the sizes after the dimension.
    pub(super) inner: usize,
}

impl Around {
    /// Returns the sizes around dimension `dim` of `x`. A scalar has one dimension, of size 1, as
    /// in PyTorch.
    pub(super) fn of(call: &Call<'_>, x: &Tensor, dim: usize) -> Result<Self, Refusal> {
        let sizes = if x.shape.is_empty() { &[1][..] } else { &x.shape[..] };
        let Some(&n) = sizes.get(dim) else {
            return Err(out_of_range(call, x, dim, sizes.len()));
        };
        Ok(Around { outer: product(&sizes[..dim]), n, inner: product(&sizes[dim + 1..]) })
    }
}

/// Returns the refusal of dimension `dim` of `x`, which has to be below `dims`.
#[cold]
pub(super) fn out_of_range(call: &Call<'_>, x: &Tensor, dim: usize, dims: usize) -> Refusal {
    let why = format!(
        "dimension {dim} does not exist in shape {}; pass a dimension from 0 to {}",
        x.shape,
        dims - 1
    );
    call.refuse(ErrorKind::Shape, &why)
}

/// Returns the product of the sizes, or `usize::MAX` if it is larger. If it is larger, the tensor
/// has no elements, since another of its sizes is 0.
pub(super) fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

/// Returns `shape` with dimension `dim` replaced by `sizes`.
pub(super) fn replaced(shape: &[usize], dim: usize, sizes: &[usize]) -> Shape {
    let after = shape.get(dim + 1..).unwrap_or_default();
    Shape::from([&shape[..dim], sizes, after].concat())
}
