//! The trait with the ops of neural networks as methods, beside `TensorOps`.

use super::Tensor;
use super::operand::TensorOperand;
use super::ops::held;
use super::unary::{self, EXP, GELU, LOG, SIGMOID, SQRT, TANH, Unary};
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
}

impl<T: TensorOperand> NnOps for T {}

#[track_caller]
fn applied(op: &'static Unary, x: impl TensorOperand) -> Pending<Tensor> {
    let x = held!(x);
    unary::unary(op, x.borrow()).unwrap_or_else(Refusal::pass_on)
}
