//! The network that `digits --save` wrote: 64 pixels, 128 hidden units, 10 digits.

use anyhow::Context;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use warpline::nn::{Linear, Module, Relu, Sequential, load_safetensors};
use warpline::prelude::*;

/// The number of pixels of an image.
pub(crate) const PIXELS: usize = 64;
/// The number of digits.
pub(crate) const DIGITS: usize = 10;
const HIDDEN: usize = 128;
/// The most bytes that are read of a file. The network has 39 KB.
const LARGEST_FILE: u64 = 1 << 20;

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
        let (file, stream) = (path.to_owned(), loader.clone());
        // The file and its check block a thread, which must not be one that answers requests.
        let begun = tokio::task::spawn_blocking(move || Network::begin(&file, &stream)).await?;
        let (network, written) = begun?;
        written.await.with_context(|| format!("cannot load {}", path.display()))?;
        Ok(network)
    }

    /// Reads the weights and enqueues their writes.
    fn begin(path: &Path, loader: &Stream) -> anyhow::Result<(Self, Pending<()>)> {
        let bytes = read(path).with_context(|| {
            format!("cannot read {}; write it by the example digits with --save", path.display())
        })?;
        let device = loader.device();
        let layer = |inputs, outputs| loader.enter(|| Linear::new(inputs, outputs, &device));
        let network = Sequential::new().add(layer(PIXELS, HIDDEN)?).add(Relu).add(layer(HIDDEN, DIGITS)?);
        let written = loader.enter(|| load_safetensors(&network, &bytes));
        Ok((Network(network), written))
    }

    /// Enqueues the network on the current stream: from scaled pixels [rows, 64] to the logits
    /// [rows, 10], and the digit of the largest one of each row.
    pub(crate) fn forward(&self, pixels: &Tensor) -> warpline::Result<(Tensor, Tensor)> {
        let logits = self.0.forward(pixels).queued()?;
        let digit = logits.argmax().queued()?;
        Ok((logits, digit))
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let (file, mut bytes) = (File::open(path)?, Vec::new());
    // The length of the file says nothing if it is a device or a pipe.
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(bytes.len() as u64 <= LARGEST_FILE, "it has more than {LARGEST_FILE} bytes");
    Ok(bytes)
}
