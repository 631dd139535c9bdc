//! The weights as a file of safetensors.

use super::model::Mlp;
use super::train::Training;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;
use warpline::prelude::*;

/// Writes the weights under the names that they have in PyTorch.
pub(crate) async fn save(training: &Training, path: &Path) -> anyhow::Result<()> {
    let mut weights = Vec::new();
    for (name, tensor) in Mlp::parameters(&training.model) {
        let values = training.compute.enter(|| tensor.to_vec::<f32>()).await?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        weights.push((name, tensor.shape().to_vec(), bytes));
    }
    let views = weights
        .iter()
        .map(|(name, shape, bytes)| Ok((*name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    Ok(safetensors::serialize_to_file(views, None, path)?)
}
