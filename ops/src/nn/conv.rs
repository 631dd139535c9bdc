//! The convolution of images.

use super::linear::uniform;
use super::{Module, Visitor};
use crate::{NnOps, Tensor, TensorOptions};
use warpline_runtime::{Pending, Result};

/// A convolution of images, as `torch.nn.Conv2d`: \[n, inputs, h, w\] to \[n, outputs, h', w'\], or
/// the same without n. [`NnOps::conv2d`](crate::NnOps::conv2d) has the formula.
///
/// ```
/// use warpline::nn::Conv2d;
/// use warpline::prelude::*;
///
/// # fn main() -> warpline::Result<()> {
/// let device = Device::best()?;
/// let conv = Conv2d { stride: [2, 2], padding: [1, 1], ..Conv2d::new(3, 8, [3, 3], &device)? };
/// let y = Tensor::rand([4, 3, 32, 32], &device).apply(&conv).queued()?;
/// assert_eq!(y.shape(), [4, 8, 16, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// The weight, \[outputs, inputs, height, width\].
    pub weight: Tensor,
    /// The bias, \[outputs\], if there is one.
    pub bias: Option<Tensor>,
    /// The rows and columns by which the weight moves.
    pub stride: [usize; 2],
    /// The rows above and below, and the columns left and right, of zeros around the image.
    pub padding: [usize; 2],
}

impl Conv2d {
    /// Creates a layer of stride 1 without padding, with numbers from the device's generator.
    ///
    /// `kernel` is the height and width of the weight. Weight and bias are uniform in (−b, b] with
    /// b = 1/√(`inputs`·height·width), as in `torch.nn.Conv2d.reset_parameters`. The bound of the
    /// weight has the source given at [`Linear::new`](super::Linear::new).
    ///
    /// # Errors
    /// The errors of [`Linear::new`](super::Linear::new).
    #[track_caller]
    pub fn new(
        inputs: usize,
        outputs: usize,
        kernel: [usize; 2],
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let (options, [height, width]) = (options.into(), kernel);
        let fan_in = inputs.saturating_mul(height).saturating_mul(width);
        let weight = uniform([outputs, inputs, height, width], fan_in, &options)?;
        let bias = uniform([outputs], fan_in, &options)?;
        Ok(Conv2d { weight, bias: Some(bias), stride: [1, 1], padding: [0, 0] })
    }
}

impl Module for Conv2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        x.conv2d(&self.weight, self.bias.as_ref(), self.stride, self.padding)
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        visitor.parameter("weight", &mut self.weight);
        if let Some(bias) = &mut self.bias {
            visitor.parameter("bias", bias);
        }
    }
}
