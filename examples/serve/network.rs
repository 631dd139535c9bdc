//! The network that `digits --save` wrote: 64 pixels, 128 hidden units, 10 digits.

use anyhow::Context;
use std::path::Path;
use warpline::nn::{Linear, Module, Relu, Sequential, load_safetensors};
use warpline::prelude::*;

/// The number of pixels of an image.
pub(crate) const PIXELS: usize = 64;
/// The number of digits.
pub(crate) const DIGITS: usize = 10;
const HIDDEN: usize = 128;

/// A perceptron with one hidden layer. Its parameters have the names that they have in the file:
/// `0.weight`, `0.bias`, `2.weight` and `2.bias`.
pub(crate) struct Network(Sequential);

impl Network {
    /// Reads the weights from a file of safetensors, writes them to the device, and waits for the
    /// writes. Requests then need no edge for them.
    ///
    /// # Errors
    /// If the file cannot be read, or does not have exactly the parameters of the network, in f32;
    /// the errors of the writes.
    pub(crate) async fn load(path: &Path, loader: &Stream) -> anyhow::Result<Self> {
        let bytes = tokio::fs::read(path).await.with_context(|| {
            format!("cannot read {}; write it by the example digits with --save", path.display())
        })?;
        let device = loader.device();
        let layer = |inputs, outputs| loader.enter(|| Linear::new(inputs, outputs, &device));
        let network = Sequential::new().add(layer(PIXELS, HIDDEN)?).add(Relu).add(layer(HIDDEN, DIGITS)?);
        let written = loader.enter(|| load_safetensors(&network, &bytes)).await;
        written.with_context(|| format!("cannot load {}", path.display()))?;
        Ok(Network(network))
    }

    /// Enqueues the network on the current stream: from scaled pixels [rows, 64] to the logits
    /// [rows, 10], and the digit of the largest one of each row.
    pub(crate) fn forward(&self, pixels: &Tensor) -> warpline::Result<(Tensor, Tensor)> {
        let logits = self.0.forward(pixels).queued()?;
        let digit = logits.argmax().queued()?;
        Ok((logits, digit))
    }
}
