//! Layers without parameters.

use super::{Module, Visitor};
use crate::{Tensor, TensorOps};
use warpline_runtime::{Error, ErrorKind, Pending, Site};

/// Replaces negative elements by 0, as `torch.nn.ReLU`: see [`TensorOps::relu`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Relu;

impl Module for Relu {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        x.relu()
    }

    fn visit(&mut self, _visitor: &mut Visitor<'_>) {}
}

/// Merges all dimensions but the first, as `torch.nn.Flatten`: \[n, a, b, …\] to \[n, a·b·…\].
///
/// The result is a view, unless the input is a transposed view.
///
/// # Errors
/// `Shape` if the input has fewer than two dimensions, or if it has no rows and the other sizes
/// have no product below 2^64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Module for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        let site = Site::here(&"Flatten");
        let refused = |why: &str| {
            let why = format!("{site}: the tensor has shape {:?}, {why}", x.shape());
            Pending::refused(Error::new(ErrorKind::Shape, why))
        };
        match x.shape() {
            [rows, rest @ ..] if !rest.is_empty() => {
                match rest.iter().try_fold(1_usize, |product, size| product.checked_mul(*size)) {
                    Some(columns) => x.contiguous().reshape([*rows, columns]),
                    None => refused("and its columns cannot be counted; give it smaller sizes"),
                }
            }
            _ => refused("and at least 2 dimensions are needed; reshape it to [n, …]"),
        }
    }

    fn visit(&mut self, _visitor: &mut Visitor<'_>) {}
}
