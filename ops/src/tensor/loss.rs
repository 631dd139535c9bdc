//! Loss functions on tensors.

use super::Tensor;
use super::call::{Call, Outcome};
use warpline_kernels::{self as kernels, launch};
use warpline_runtime::ErrorKind;

/// Computes the mean cross entropy of softmax(logits) with `labels`, and its gradient.
#[track_caller]
pub(super) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Outcome<(Tensor, Tensor)> {
    let call = Call::new(&"cross_entropy", &logits.device())?;
    let [rows, cols] = call.matrix(logits)?;
    if labels.shape[..] != [rows] {
        let why = format!(
            "the logits have shape {} and the labels {}; for {rows} rows of logits pass labels of \
             shape [{rows}]",
            logits.shape, labels.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let (from, classes) = (call.operand(logits)?, call.operand(labels)?);
    let shape = [].into();
    let (loss, grad) = (call.alloc(&shape)?, call.alloc_like(logits)?);
    let (height, width) = (rows as u64, cols as u64);
    let done = if logits.len() as u64 <= launch::ONE_BLOCK {
        let kernel = kernels::cross_entropy(height, width, from, classes, &loss, &grad);
        call.launch(kernel, launch::one_block(), ())
    } else {
        let losses = call.scratch::<f64>(rows)?;
        let kernel = kernels::cross_entropy_rows(height, width, from, classes, &losses, &grad);
        call.launch(kernel, launch::rows(height), ()).into_operand()?;
        call.launch(kernels::cross_entropy_mean(height, &losses, &loss), launch::one_block(), ())
    };
    Ok(done.with((Tensor::over(loss, shape), Tensor::over(grad, logits.shape.clone()))))
}
