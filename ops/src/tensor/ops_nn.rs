//! The trait with the ops of neural networks as methods, beside `TensorOps`.

use super::Tensor;
use super::operand::TensorOperand;
use super::ops::{held, refused};
use super::unary::{self, EXP, GELU, LOG, SIGMOID, SQRT, TANH, Unary};
use super::{maximum, normalize};
use std::borrow::Borrow;
use warpline_runtime::{Pending, Refusal};

/// The ops of neural networks on f32 tensors, as methods of `&Tensor`, `&Pending<Tensor>` and
/// `Pending<Tensor>`. The last is consumed.
///
/// Names and formulas are PyTorch's. Dimensions are counted from 0; negative ones have no
/// counterpart. Ordering and errors are those of [`TensorOps`](super::TensorOps).
///
/// ```
/// use warpline::prelude::*;
///
/// # fn main() -> warpline::Result<()> {
/// # let device = Device::best()?;
/// let x = Tensor::from_host(&[1.0, 2.0, 2.0, 1.0], [2, 2], &device);
/// let chance = x.mul(0.5f32.ln()).exp(); // 0.5 to the power of x
/// assert_eq!(chance.sum().item::<f32>().blocking_wait()?, 1.5);
/// # Ok(())
/// # }
/// ```
///
/// # Accuracy
/// Each device has its own exp, log, tanh and erf, so devices differ in the last bits. The number
/// of threads has no influence on the result.
pub trait NnOps: TensorOperand {
    /// Returns e to the power of each element, within 2 units in the last place.
    #[track_caller]
    fn exp(self) -> Pending<Tensor> {
        applied(&EXP, self)
    }

    /// Returns the natural logarithm of each element, within 2 units in the last place; −∞ for 0,
    /// NaN for negative elements.
    #[track_caller]
    fn log(self) -> Pending<Tensor> {
        applied(&LOG, self)
    }

    /// Returns the square root of each element, correctly rounded; NaN for negative elements.
    #[track_caller]
    fn sqrt(self) -> Pending<Tensor> {
        applied(&SQRT, self)
    }

    /// Returns the hyperbolic tangent of each element, within 2 units in the last place.
    #[track_caller]
    fn tanh(self) -> Pending<Tensor> {
        applied(&TANH, self)
    }

    /// Returns the logistic function of each element, 1 / (1 + exp(−x)), within 4 units in the last
    /// place. Below −88.7, where exp(−x) overflows, it is 0.
    #[track_caller]
    fn sigmoid(self) -> Pending<Tensor> {
        applied(&SIGMOID, self)
    }

    /// Returns x/2 · (1 + erf(x/√2)) for each element x, which is x·Φ(x) with the distribution
    /// function Φ of the standard normal distribution.
    ///
    /// This is the exact form of Hendrycks and Gimpel, arXiv:1606.08415, and the default of
    /// `torch.nn.functional.gelu`. As there, the sum cancels for negative x: the absolute error is a
    /// few units in the last place of x. The result is NaN for −∞.
    #[track_caller]
    fn gelu(self) -> Pending<Tensor> {
        applied(&GELU, self)
    }

    /// Returns the softmax along dimension `dim`: exp(x) / Σ exp(x), with the sum over that dimension.
    ///
    /// The maximum is subtracted first, so large elements do not overflow. A line with NaN or +∞, or
    /// of −∞ alone, becomes NaN.
    ///
    /// # Errors
    /// Also `Shape` if there is no dimension `dim`.
    ///
    /// # Examples
    /// ```
    /// # use warpline::prelude::*;
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::best()?;
    /// let x = Tensor::from_host(&[0.0, 0.0, 100.0, 0.0], [2, 2], &device);
    /// assert_eq!(x.softmax(1).to_vec::<f32>().blocking_wait()?, [0.5, 0.5, 1.0, 3.783_506e-44]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn softmax(self, dim: usize) -> Pending<Tensor> {
        let x = held!(self);
        normalize::softmax(x.borrow(), dim).unwrap_or_else(Refusal::pass_on)
    }

    /// Normalizes along the last dimension: (x − mean) / √(variance + eps) · weight + bias.
    ///
    /// As in `torch.nn.functional.layer_norm`, an input \[…, n\] has a weight \[n\] and a bias \[n\].
    /// Each row of `n` elements has its own mean and its own variance, which is the biased one, Σ (x
    /// − mean)² / n. PyTorch's usual `eps` is 1e-5.
    ///
    /// # Errors
    /// Also `Shape` if the weight or the bias is not of shape \[n\].
    #[track_caller]
    fn layer_norm(self, weight: impl TensorOperand, bias: impl TensorOperand, eps: f32) -> Pending<Tensor> {
        let x = held!(self);
        let (weight, bias) = (held!(weight, beside x), held!(bias, beside x));
        normalize::layer_norm(x.borrow(), weight.borrow(), bias.borrow(), eps)
            .unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the largest of all elements, a scalar; NaN if one of them is NaN.
    ///
    /// # Errors
    /// Also `Shape` if there are no elements.
    #[track_caller]
    fn max(self) -> Pending<Tensor> {
        let x = held!(self);
        maximum::max(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the largest elements along dimension `dim`, and their indices as i64, like PyTorch's
    /// `max(dim)`. The results lack that dimension.
    ///
    /// If several elements are the largest, the index is that of the first one. If there are NaNs,
    /// the first NaN counts as the largest.
    ///
    /// # Errors
    /// Also `Shape` if there is no dimension `dim`, or if its size is 0.
    ///
    /// # Examples
    /// ```
    /// # use warpline::prelude::*;
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::best()?;
    /// let x = Tensor::from_host(&[1.0, 5.0, 3.0, 4.0], [2, 2], &device);
    /// let (values, indices) = x.max_dim(0).queued()?; // of each column
    /// assert_eq!(values.to_vec::<f32>().blocking_wait()?, [3.0, 5.0]);
    /// assert_eq!(indices.to_vec::<i64>().blocking_wait()?, [1, 0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn max_dim(self, dim: usize) -> Pending<(Tensor, Tensor)> {
        let x = held!(self);
        maximum::max_dim(x.borrow(), dim).unwrap_or_else(Refusal::pass_on)
    }
}

impl<T: TensorOperand> NnOps for T {}

#[track_caller]
fn applied(op: &'static Unary, x: impl TensorOperand) -> Pending<Tensor> {
    let x = held!(x);
    unary::unary(op, x.borrow()).unwrap_or_else(Refusal::pass_on)
}
