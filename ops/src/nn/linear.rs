//! The fully connected layer, and the initial values of weights.

use super::{Module, Visitor};
use crate::{Shape, Tensor, TensorOps, TensorOptions};
use warpline_runtime::{Pending, Result};

/// A fully connected layer, x·wᵀ + bias, as `torch.nn.Linear`: \[…, inputs\] to \[…, outputs\].
///
/// Its ops take f32.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The weight, \[outputs, inputs\].
    pub weight: Tensor,
    /// The bias, \[outputs\], if there is one.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Creates a layer with numbers from the device's generator.
    ///
    /// Weight and bias are uniform in (−b, b] with b = 1/√`inputs`, as in
    /// `torch.nn.Linear.reset_parameters`. For the weight, that is the bound gain·√(3/`inputs`) of
    /// He et al., arXiv:1502.01852, with the gain √(2/(1 + a²)) for a = √5.
    ///
    /// For a layer without bias, set `bias` to `None`.
    ///
    /// # Errors
    /// The errors of the constructors of [`Tensor`]; `DTypeMismatch` if the type in the options is
    /// not a floating-point type.
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = options.into();
        let weight = uniform([outputs, inputs], inputs, &options)?;
        let bias = uniform([outputs], inputs, &options)?;
        Ok(Linear { weight, bias: Some(bias) })
    }
}

/// Creates a tensor of numbers uniform in (−b, b] with b = 1/√`fan_in`, or of zeros if `fan_in` is
/// 0.
#[track_caller]
pub(super) fn uniform(shape: impl Into<Shape>, fan_in: usize, options: &TensorOptions) -> Result<Tensor> {
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    let bound = if fan_in == 0 { 0.0 } else { (fan_in as f64).sqrt().recip() as f32 };
    Tensor::empty(shape, options.clone()).uniform_(-bound, bound).queued()
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        let (matrix, rows) = match x.shape() {
            // Inputs without rows are one row. The op refuses a scalar.
            [] | [_, _] => (Pending::ready(x.clone()), None),
            [rows @ .., inputs] => (x.reshape([rows.iter().product(), *inputs]), Some(rows)),
        };
        let y = match &self.bias {
            Some(bias) => matrix.linear(&self.weight, bias),
            None => matrix.matmul(self.weight.t()),
        };
        match rows {
            Some(rows) => y.reshape([rows, &[self.weight.shape()[0]]].concat()),
            None => y,
        }
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        visitor.parameter("weight", &mut self.weight);
        if let Some(bias) = &mut self.bias {
            visitor.parameter("bias", bias);
        }
    }
}
