//! Losses.

use super::Tensor;
use super::call::{Call, Outcome};
use warpline_kernels as kernels;
use warpline_runtime::ErrorKind;

/// The mean cross entropy of softmax(logits) with `labels`, and its gradient.
#[track_caller]
pub(super) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Outcome<(Tensor, Tensor)> {
    let call = Call::new(&"cross_entropy", &logits.device())?;
    let [rows, cols] = call.matrix(logits)?;
    if labels.shape[..] != [rows] {
        let why = format!(
            "the shapes are {} of the logits and {} of the labels; for {rows} rows pass labels of shape [{rows}]",
            logits.shape, labels.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let (from, classes) = (call.operand(logits)?, call.operand(labels)?);
    let shape = [].into();
    let (loss, grad) = (call.alloc(&shape)?, call.alloc_like(logits)?);
    let kernel = kernels::cross_entropy(rows as u64, cols as u64, from, classes, &loss, &grad);
    let done = call.launch(kernel, rows, ());
    Ok(done.with((Tensor::over(loss, shape), Tensor::over(grad, logits.shape.clone()))))
}
