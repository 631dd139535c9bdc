//! The trait `NnOps`: further ops of neural networks, on f32 tensors.

use super::Tensor;
use super::operand::TensorOperand;
use super::ops::{held, refused};
use super::unary::{self, EXP, GELU, LOG, SIGMOID, SQRT, TANH, Unary};
use super::{conv, maximum, normalize, select};
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
/// let x = Tensor::new([[1.0, 2.0], [2.0, 1.0]], &device);
/// let chance = x.mul(0.5f32.ln()).exp(); // 0.5 to the power of x
/// let total = chance.sum().item::<f32>().blocking_wait()?;
/// assert!((total - 1.5).abs() < 1e-6);
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
    /// `torch.nn.functional.gelu`. As there, the sum cancels for negative x: the absolute error is
    /// a few units in the last place of x. The result is NaN for −∞.
    #[track_caller]
    fn gelu(self) -> Pending<Tensor> {
        applied(&GELU, self)
    }

    /// Returns the softmax along dimension `dim`: exp(x) / Σ exp(x), with the sum over that
    /// dimension.
    ///
    /// The maximum is subtracted first, so large elements do not overflow. A line with NaN or +∞,
    /// or of −∞ alone, becomes NaN.
    ///
    /// # Errors
    /// The errors of every op. `Shape` if there is no dimension `dim`.
    ///
    /// # Examples
    /// ```
    /// # use warpline::prelude::*;
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[0.0, 0.0], [1e4, 0.0]], &device);
    /// assert_eq!(x.softmax(1).to_vec::<f32>().blocking_wait()?, [0.5, 0.5, 1.0, 0.0]);
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
    /// An input \[…, n\] has a weight \[n\] and a bias \[n\], as in
    /// `torch.nn.functional.layer_norm`. Each row of `n` elements has its own mean and its own
    /// variance, which is the biased one, Σ (x − mean)² / n. PyTorch's usual `eps` is 1e-5.
    ///
    /// # Errors
    /// The errors of every op. `Shape` if the weight or the bias is not of shape \[n\].
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
    /// The errors of every op. `Shape` if there are no elements.
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
    /// The errors of every op. `Shape` if there is no dimension `dim`, or if its size is 0.
    ///
    /// # Examples
    /// ```
    /// # use warpline::prelude::*;
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1.0, 5.0], [3.0, 4.0]], &device);
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

    /// Returns the slices along dimension `dim` that `indices` names, in the order of the indices.
    ///
    /// `indices` is i64, of shape \[n\]. The result has the shape of this tensor, with `n` as the
    /// size of dimension `dim`. With `dim` 0, indices choose rows, for instance those of an
    /// embedding.
    ///
    /// The host does not read the indices, so an index outside 0..size is not an error: its slice
    /// becomes NaN. Negative indices are outside, as in PyTorch.
    ///
    /// # Errors
    /// The errors of every op. `Shape` if there is no dimension `dim`, or if the indices have
    /// several dimensions.
    ///
    /// # Examples
    /// ```
    /// # use warpline::prelude::*;
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]], &device).queued()?;
    /// let rows = Tensor::new([1, 0, 1], &device);
    /// let chosen = x.index_select(0, rows).to_vec::<f32>().blocking_wait()?;
    /// assert_eq!(chosen, [3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn index_select(self, dim: usize, indices: impl TensorOperand) -> Pending<Tensor> {
        let x = held!(self);
        let indices = held!(indices, beside x);
        select::index_select(x.borrow(), dim, indices.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Convolves images with `weight` and adds `bias`, as `torch.nn.functional.conv2d` does.
    ///
    /// Images \[n, c, h, w\] and a weight \[o, c, i, j\] give images \[n, o, h', w'\]. The height
    /// h' is (h + 2·padding\[0\] − i) / stride\[0\] + 1, rounded down, and w' likewise. One image
    /// without a batch, \[c, h, w\], gives \[o, h', w'\]. The bias is of shape \[o\].
    ///
    /// The image is surrounded by zeros: `padding[0]` rows above and below, and `padding[1]`
    /// columns left and right. The weight is not mirrored, and moves by `stride[0]` rows and
    /// `stride[1]` columns. Dilation and groups have no counterpart.
    ///
    /// The convolution is a matrix product, computed like [`matmul`](super::TensorOps::matmul): by
    /// cuBLAS on a GPU if it can be loaded. The other operand of the product holds a copy of the
    /// input for each element under the weight, i·j in all. It is made for several images at a
    /// time, in 64 MiB of memory, or for one image if that takes more.
    ///
    /// # Errors
    /// The errors of every op. `Shape` if the shapes do not fit, if a stride or a size of the
    /// weight is 0, or if the weight is larger than the padded image.
    ///
    /// # Examples
    /// ```
    /// # use warpline::prelude::*;
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::best()?;
    /// let image = Tensor::ones([1, 3, 3], &device);
    /// let sum_of_neighbours = Tensor::ones([1, 1, 3, 3], &device);
    /// let y = image.conv2d(sum_of_neighbours, None, [1, 1], [1, 1]).queued()?;
    /// assert_eq!(y.shape(), [1, 3, 3]);
    /// let counts = [4.0, 6.0, 4.0, 6.0, 9.0, 6.0, 4.0, 6.0, 4.0];
    /// assert_eq!(y.to_vec::<f32>().blocking_wait()?, counts);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn conv2d(
        self,
        weight: impl TensorOperand,
        bias: Option<&Tensor>,
        stride: [usize; 2],
        padding: [usize; 2],
    ) -> Pending<Tensor> {
        let x = held!(self);
        let weight = held!(weight, beside x);
        conv::conv2d(x.borrow(), weight.borrow(), bias, stride, padding).unwrap_or_else(Refusal::pass_on)
    }
}

impl<T: TensorOperand> NnOps for T {}

#[track_caller]
fn applied(op: &'static Unary, x: impl TensorOperand) -> Pending<Tensor> {
    let x = held!(x);
    unary::unary(op, x.borrow()).unwrap_or_else(Refusal::pass_on)
}
