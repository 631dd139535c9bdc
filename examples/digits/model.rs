//! A perceptron with one hidden layer, and a training step written out.

use warpline::prelude::*;
use warpline::{Generator, Result};

/// The numbers of pixels, hidden units and digits.
pub(crate) const SIZES: [usize; 3] = [64, 128, 10];

/// Stochastic gradient descent with momentum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sgd {
    pub(crate) lr: f32,
    pub(crate) momentum: f32,
}

pub(crate) struct Mlp {
    hidden: Layer,
    output: Layer,
}

struct Layer {
    /// The weights as [outputs, inputs], as in PyTorch.
    weight: Param,
    bias: Param,
}

/// A parameter and its velocity.
struct Param {
    value: Tensor,
    velocity: Tensor,
}

impl Mlp {
    /// Makes a model on the current stream of `device`. The weights are uniform within ±1/√inputs,
    /// as in a new `torch.nn.Linear`, and drawn from `seed`.
    pub(crate) fn new(seed: u64, device: &Device) -> Result<Self> {
        let generator = Generator::new(seed);
        let [pixels, hidden, digits] = SIZES;
        Ok(Mlp {
            hidden: Layer::new(pixels, hidden, &generator, device)?,
            output: Layer::new(hidden, digits, &generator, device)?,
        })
    }

    /// Returns the logits of each row: [rows, 64] to [rows, 10].
    pub(crate) fn logits(&self, x: &Tensor) -> Pending<Tensor> {
        self.output.forward(self.hidden.forward(x).relu())
    }

    /// Enqueues one step on a batch without waiting. Returns the mean loss before it.
    pub(crate) fn step(&self, x: &Tensor, labels: &Tensor, sgd: Sgd) -> Result<Tensor> {
        let h = self.hidden.forward(x).relu().queued()?;
        let (loss, d_logits) = self.output.forward(&h).cross_entropy(labels).queued()?;
        let d_h = d_logits.matmul(&self.output.weight.value).relu_backward(&h).queued()?;
        self.output.descend(&d_logits, &h, sgd)?;
        self.hidden.descend(&d_h, x, sgd)?;
        Ok(loss)
    }

    /// Returns the parameters under the names that they have in `torch.nn.Sequential(Linear, ReLU,
    /// Linear)`.
    #[allow(dead_code, reason = "`--save` uses it, and the tests")]
    pub(crate) fn parameters(&self) -> [(&'static str, &Tensor); 4] {
        let Mlp { hidden, output } = self;
        [
            ("0.weight", &hidden.weight.value),
            ("0.bias", &hidden.bias.value),
            ("2.weight", &output.weight.value),
            ("2.bias", &output.bias.value),
        ]
    }
}

impl Layer {
    fn new(inputs: usize, outputs: usize, generator: &Generator, device: &Device) -> Result<Self> {
        let bound = 1.0 / (inputs as f32).sqrt();
        Ok(Layer {
            weight: Param::uniform(&[outputs, inputs], bound, generator, device)?,
            bias: Param::uniform(&[outputs], bound, generator, device)?,
        })
    }

    fn forward(&self, x: impl TensorOps) -> Pending<Tensor> {
        x.linear(&self.weight.value, &self.bias.value)
    }

    /// Enqueues the update of this layer. `d_y` is the gradient of the loss at its output, and `x`
    /// was its input.
    fn descend(&self, d_y: &Tensor, x: &Tensor, sgd: Sgd) -> Result<()> {
        self.weight.descend(d_y.t().matmul(x), sgd)?;
        self.bias.descend(d_y.sum_rows(), sgd)
    }
}

impl Param {
    fn uniform(shape: &[usize], bound: f32, generator: &Generator, device: &Device) -> Result<Self> {
        Ok(Param {
            value: Tensor::empty(shape, device).uniform_from_(generator, -bound, bound).queued()?,
            velocity: Tensor::zeros(shape, device).queued()?,
        })
    }

    fn descend(&self, gradient: Pending<Tensor>, sgd: Sgd) -> Result<()> {
        self.value.sgd_(gradient, &self.velocity, sgd.lr, sgd.momentum).queued().map(drop)
    }
}
