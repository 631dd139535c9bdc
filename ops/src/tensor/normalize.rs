//! Softmax and layer norm.

use super::Tensor;
use super::call::{Call, Outcome};
use super::dims::Around;
use warpline_kernels::{self as kernels, launch};
use warpline_runtime::ErrorKind;

/// Computes the softmax along dimension `dim`.
#[track_caller]
pub(super) fn softmax(x: &Tensor, dim: usize) -> Outcome {
    let call = Call::new(&"softmax", &x.device())?;
    let Around { outer, n, inner } = Around::of(&call, x, dim)?;
    let from = call.operand(x)?;
    let to = call.alloc_like(x)?;
    let [outer, n, inner] = [outer, n, inner].map(|size| size as u64);
    let kernel = kernels::softmax(outer, n, inner, from, &to);
    Ok(call.launch(kernel, launch::lines(outer, inner), ()).with(Tensor::over(to, x.shape.clone())))
}

/// Normalizes each row, and scales the columns.
#[track_caller]
pub(super) fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Outcome {
    let call = Call::new(&"layer_norm", &x.device())?;
    let Some((&cols, outer)) = x.shape.split_last() else {
        let why = "the input is a scalar, of shape [], and the op takes rows; reshape it to [1]";
        return Err(call.refuse(ErrorKind::Shape, why));
    };
    if weight.shape[..] != [cols] || bias.shape[..] != [cols] {
        let why = format!(
            "the input has shape {}, the weight {} and the bias {}; for rows of {cols} elements \
             pass a weight and a bias of shape [{cols}]",
            x.shape, weight.shape, bias.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let (from, weights, biases) = (call.operand(x)?, call.operand(weight)?, call.operand(bias)?);
    let to = call.alloc_like(x)?;
    let rows = super::dims::product(outer) as u64;
    let kernel = kernels::layer_norm(rows, cols as u64, eps, from, weights, biases, &to);
    Ok(call.launch(kernel, launch::rows(rows), ()).with(Tensor::over(to, x.shape.clone())))
}
