//! The network that `digits --save` wrote: 64 pixels, 128 hidden units, 10 digits.

use anyhow::{Context, bail, ensure};
use safetensors::{Dtype, SafeTensors};
use std::path::Path;
use warpline::prelude::*;

/// The number of pixels of an image.
pub(crate) const PIXELS: usize = 64;
/// The number of digits.
pub(crate) const DIGITS: usize = 10;
const HIDDEN: usize = 128;

/// The parameters, with the names that they have in PyTorch's
/// `Sequential(Linear(64, 128), ReLU(), Linear(128, 10))`, and their shapes.
pub(crate) const PARAMETERS: [(&str, &[usize]); 4] = [
    ("0.weight", &[HIDDEN, PIXELS]),
    ("0.bias", &[HIDDEN]),
    ("2.weight", &[DIGITS, HIDDEN]),
    ("2.bias", &[DIGITS]),
];

/// The values of the parameters, in the order of [`PARAMETERS`].
#[derive(Debug)]
pub(crate) struct Weights([Vec<f32>; 4]);

/// A perceptron with one hidden layer, on a device.
#[derive(Debug)]
pub(crate) struct Network {
    hidden: (Tensor, Tensor),
    output: (Tensor, Tensor),
}

impl Weights {
    /// Reads a file of safetensors.
    ///
    /// # Errors
    /// If the file cannot be read, or does not have exactly the [`PARAMETERS`], in f32 and with
    /// finite values.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| {
            format!("cannot read {}; write it by the example digits with --save", path.display())
        })?;
        Weights::parse(&bytes).with_context(|| format!("cannot use {}", path.display()))
    }

    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let file = SafeTensors::deserialize(bytes).context("it is not a file of safetensors")?;
        let is_known = |name: &str| PARAMETERS.iter().any(|(known, _)| *known == name);
        if let Some(unknown) = file.names().into_iter().find(|name| !is_known(name)) {
            bail!("it has a tensor \"{unknown}\"; expected {} alone", names());
        }
        let mut values = [(); 4].map(|()| Vec::new());
        for ((name, shape), values) in PARAMETERS.iter().zip(&mut values) {
            *values = parameter(&file, name, shape)?;
        }
        Ok(Weights(values))
    }
}

/// Returns the values of a parameter.
fn parameter(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> anyhow::Result<Vec<f32>> {
    let Ok(tensor) = file.tensor(name) else {
        bail!("it has no tensor \"{name}\"; expected {}", names());
    };
    ensure!(
        tensor.dtype() == Dtype::F32,
        "\"{name}\" is of type {:?}, and F32 is expected; convert it",
        tensor.dtype()
    );
    ensure!(
        tensor.shape() == shape,
        "\"{name}\" has the shape {:?}, and {shape:?} is expected; save a network of {PIXELS}, {HIDDEN} and \
         {DIGITS} units",
        tensor.shape()
    );
    let values: Vec<f32> = f32s(tensor.data()).collect();
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        bail!("\"{name}\" has the value {} at element {at}; expected finite numbers", values[at]);
    }
    Ok(values)
}

/// Returns the numbers that little-endian bytes hold.
pub(crate) fn f32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

fn names() -> String {
    PARAMETERS.map(|(name, _)| name).join(", ")
}

impl Network {
    /// Writes the weights to the device, and waits for the writes. Requests then need no edge for
    /// them.
    pub(crate) async fn load(weights: &Weights, loader: &Stream) -> warpline::Result<Self> {
        let device = loader.device();
        let tensor = async |at: usize| {
            let (_, shape) = PARAMETERS[at];
            loader.enter(|| Tensor::from_host(&weights.0[at], shape, &device)).await
        };
        let hidden = (tensor(0).await?, tensor(1).await?);
        let output = (tensor(2).await?, tensor(3).await?);
        Ok(Network { hidden, output })
    }

    /// Enqueues the network on the current stream: from scaled pixels [rows, 64] to the logits
    /// [rows, 10], and the digit of the largest one of each row.
    pub(crate) fn forward(&self, pixels: &Tensor) -> warpline::Result<(Tensor, Tensor)> {
        let hidden = pixels.linear(&self.hidden.0, &self.hidden.1).relu();
        let logits = hidden.linear(&self.output.0, &self.output.1).queued()?;
        let digit = logits.argmax().queued()?;
        Ok((logits, digit))
    }
}
