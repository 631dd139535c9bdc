//! Matrix products on tensors.

use super::Tensor;
use super::call::{Call, Outcome};
use warpline_kernels::{self as kernels, launch::product};
use warpline_runtime::ErrorKind;

/// Computes a·b.
#[track_caller]
pub(super) fn matmul(a: &Tensor, b: &Tensor) -> Outcome {
    let call = Call::new(&"matmul", &a.device())?;
    let ([m, k], [rows, n]) = (call.matrix(a)?, call.matrix(b)?);
    if k != rows {
        let why = format!(
            "the shapes are {} and {}, with {k} columns on the left and {rows} rows on the right; \
             transpose one, or pass matrices where the two agree",
            a.shape, b.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let (left, right) = (call.either_way(a)?, call.either_way(b)?);
    let shape = [m, n].into();
    let to = call.alloc(&shape)?;
    let flags = (u32::from(a.transposed), u32::from(b.transposed));
    let kernel = kernels::matmul(m as u64, n as u64, k as u64, flags.0, flags.1, left, right, &to);
    Ok(call.launch(kernel, product(m as u64, n as u64), ()).with(Tensor::over(to, shape)))
}

/// Computes x·wᵀ + bias.
#[track_caller]
pub(super) fn linear(x: &Tensor, w: &Tensor, bias: &Tensor) -> Outcome {
    let call = Call::new(&"linear", &x.device())?;
    let ([m, k], [n, cols]) = (call.matrix(x)?, call.matrix(w)?);
    if k != cols || bias.shape[..] != [n] {
        let why = format!(
            "the input has shape {}, the weight {} and the bias {}; for inputs [m, k] pass a \
             weight [n, k] and a bias [n]",
            x.shape, w.shape, bias.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let (inputs, weight, biases) = (call.operand(x)?, call.either_way(w)?, call.operand(bias)?);
    let shape = [m, n].into();
    let to = call.alloc(&shape)?;
    let flag = u32::from(w.transposed);
    let kernel = kernels::linear(m as u64, n as u64, k as u64, flag, inputs, weight, biases, &to);
    Ok(call.launch(kernel, product(m as u64, n as u64), ()).with(Tensor::over(to, shape)))
}
