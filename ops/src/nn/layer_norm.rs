//! The normalization of the last dimension.

use super::{Module, Visitor};
use crate::{NnOps, Tensor, TensorOptions};
use warpline_runtime::{Pending, Result};

/// Normalizes along the last dimension, as `torch.nn.LayerNorm` of one size: \[…, n\] to \[…, n\].
/// [`NnOps::layer_norm`](crate::NnOps::layer_norm) has the formula.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// The weight, \[n\].
    pub weight: Tensor,
    /// The bias, \[n\].
    pub bias: Tensor,
    /// The number that is added to the variance.
    pub eps: f32,
}

impl LayerNorm {
    /// Creates a layer for `size` elements, with a weight of ones, a bias of zeros, and PyTorch's
    /// `eps` of 1e-5.
    ///
    /// # Errors
    /// The errors of the constructors of [`Tensor`].
    #[track_caller]
    pub fn new(size: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = options.into();
        let weight = Tensor::ones([size], options.clone()).queued()?;
        let bias = Tensor::zeros([size], options).queued()?;
        Ok(LayerNorm { weight, bias, eps: 1e-5 })
    }
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        x.layer_norm(&self.weight, &self.bias, self.eps)
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        visitor.parameter("weight", &mut self.weight);
        visitor.parameter("bias", &mut self.bias);
    }
}
