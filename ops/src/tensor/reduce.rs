//! Reductions of tensors, in a fixed order that gives the same bits at every run.

use super::call::{Call, Outcome};
use super::{Shape, Tensor};
use crate::sum::{Over, enqueue_sum};
use warpline_kernels::{self as kernels, launch};
use warpline_runtime::ErrorKind;

/// Computes the sum of all elements.
#[track_caller]
pub(super) fn sum(x: &Tensor) -> Outcome {
    summed(&Call::new(&"sum", &x.device())?, x, Over::One)
}

/// Computes the mean of all elements.
#[track_caller]
pub(super) fn mean(x: &Tensor) -> Outcome {
    summed(&Call::new(&"mean", &x.device())?, x, Over::All)
}

fn summed(call: &Call<'_>, x: &Tensor, over: Over) -> Outcome {
    let from = call.operand(x)?;
    let shape = [].into();
    let to = call.alloc(&shape)?;
    let done = enqueue_sum(call.stream(), call.site(), from, over, &to)?;
    Ok(done.with(Tensor::over(to, shape)))
}

/// Computes the sum of all rows of a matrix.
#[track_caller]
pub(super) fn sum_rows(x: &Tensor) -> Outcome {
    let call = Call::new(&"sum_rows", &x.device())?;
    let [rows, cols] = call.matrix(x)?;
    let from = call.operand(x)?;
    let shape = [cols].into();
    let to = call.alloc(&shape)?;
    let (rows, cols) = (rows as u64, cols as u64);
    let done = call.launch(kernels::column_sums(rows, cols, from, &to), launch::columns(cols), ());
    Ok(done.with(Tensor::over(to, shape)))
}

/// Finds the index of the largest element of each row.
#[track_caller]
pub(super) fn argmax(x: &Tensor) -> Outcome {
    let call = Call::new(&"argmax", &x.device())?;
    let (cols, outer) = match x.shape.split_last() {
        Some((&cols, outer)) => (cols, outer),
        None => (1, &[][..]),
    };
    if cols == 0 {
        let why = format!(
            "the last dimension of shape {} is 0, so there is no largest element; pass at least 1",
            x.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let from = call.operand(x)?;
    let shape = Shape::from(outer);
    let to = call.alloc(&shape)?;
    let rows = to.len() as u64;
    let kernel = kernels::argmax(rows, cols as u64, from, &to);
    Ok(call.launch(kernel, launch::rows(rows), ()).with(Tensor::over(to, shape)))
}

/// Counts the elements that are equal.
#[track_caller]
pub(super) fn count_equal(x: &Tensor, y: &Tensor) -> Outcome {
    let call = Call::new(&"count_equal", &x.device())?;
    call.same_shape(x, y)?;
    let (one, other) = (call.operand(x)?, call.operand(y)?);
    let shape = [].into();
    let to = call.alloc(&shape)?;
    let kernel = kernels::count_equal(x.len() as u64, one, other, &to);
    Ok(call.launch(kernel, launch::one_block(), ()).with(Tensor::over(to, shape)))
}
