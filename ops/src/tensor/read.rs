//! Ops that copy tensors back to the host or into row-major order.

use super::call::{Call, Outcome};
use super::{Storage, Tensor, TensorElement};
use warpline_kernels::{self as kernels, launch};
use warpline_runtime::{ErrorKind, Pinned};

/// Reads the elements of `x` into a vector.
#[track_caller]
pub(super) fn to_vec<T: TensorElement>(x: &Tensor) -> Outcome<Vec<T>> {
    let call = Call::new(&"to_vec", &x.device())?;
    call.read_as::<T>(x)?;
    Ok(call.stream().at(call.site()).read(call.operand::<T>(x)?))
}

/// Copies the elements of `x` into pinned memory.
#[track_caller]
pub(super) fn to_pinned<T: TensorElement>(x: &Tensor) -> Outcome<Pinned<T>> {
    let call = Call::new(&"to_pinned", &x.device())?;
    Ok(call.stream().at(call.site()).copy_to_host(call.operand::<T>(x)?))
}

/// Reads the only element of `x`.
#[track_caller]
pub(super) fn item<T: TensorElement>(x: &Tensor) -> Outcome<T> {
    let call = Call::new(&"item", &x.device())?;
    call.read_as::<T>(x)?;
    if x.len() != 1 {
        let why = format!(
            "the tensor has {} elements (shape {}), and item reads exactly 1; use to_vec",
            x.len(),
            x.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    // The layout of a single element is the same in every view.
    Ok(call.stream().at(call.site()).read_one(call.either_way::<T>(x)?))
}

/// Copies `x`, a transposed view, into row-major order.
#[track_caller]
pub(super) fn contiguous(x: &Tensor) -> Outcome {
    let call = Call::new(&"contiguous", &x.device())?;
    let [rows, cols] = call.matrix(x)?;
    // In memory `x` is cols × rows.
    let (height, width) = (cols as u64, rows as u64);
    let config = launch::transpose(height, width);
    Ok(match &x.storage {
        Storage::F32(from) => {
            let to = call.alloc(&x.shape)?;
            let kernel = kernels::transpose(height, width, from, &to);
            call.launch(kernel, config, ()).with(Tensor::over(to, x.shape.clone()))
        }
        Storage::I64(from) => {
            let to = call.alloc(&x.shape)?;
            let kernel = kernels::transpose_i64(height, width, from, &to);
            call.launch(kernel, config, ()).with(Tensor::over(to, x.shape.clone()))
        }
    })
}
