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
/// `Shape` if the input has fewer than two dimensions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Module for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        match x.shape() {
            [rows, rest @ ..] if !rest.is_empty() => x.contiguous().reshape([*rows, rest.iter().product()]),
            shape => {
                let why = format!(
                    "{}: the tensor has {} dimensions (shape {shape:?}), and at least 2 are needed; \
                     reshape it to [n, …]",
                    Site::here(&"Flatten"),
                    shape.len()
                );
                Pending::refused(Error::new(ErrorKind::Shape, why))
            }
        }
    }

    fn visit(&mut self, _visitor: &mut Visitor<'_>) {}
}
