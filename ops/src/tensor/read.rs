//! Back to the host, and into row-major order.

use super::call::{Call, Outcome};
use super::{Storage, Tensor, TensorElement};
use warpline_kernels::{self as kernels, launch};
use warpline_runtime::{ErrorKind, Pinned};

/// The elements of `x`.
#[track_caller]
pub(super) fn to_vec<T: TensorElement>(x: &Tensor) -> Outcome<Vec<T>> {
    let call = Call::new(&"to_vec", &x.device())?;
    call.read_as::<T>(x)?;
    Ok(call.stream().read_at(call.site(), call.operand::<T>(x)?))
}

/// The elements of `x`, in pinned memory.
#[track_caller]
pub(super) fn to_pinned<T: TensorElement>(x: &Tensor) -> Outcome<Pinned<T>> {
    let call = Call::new(&"to_pinned", &x.device())?;
    Ok(call.stream().copy_to_host_at(call.site(), call.operand::<T>(x)?))
}

/// The only element of `x`.
#[track_caller]
pub(super) fn item<T: TensorElement>(x: &Tensor) -> Outcome<T> {
    let call = Call::new(&"item", &x.device())?;
    call.read_as::<T>(x)?;
    if x.len() != 1 {
        let why =
            format!("the tensor has {} elements, shape {}, and item takes 1; use to_vec", x.len(), x.shape);
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    // One element lies the same way in every view.
    Ok(call.stream().read_one_at(call.site(), call.either_way::<T>(x)?))
}

/// A copy in row-major order of `x`, a transposed view.
#[track_caller]
pub(super) fn contiguous(x: &Tensor) -> Outcome {
    let call = Call::new(&"contiguous", &x.device())?;
    let [rows, cols] = call.matrix(x)?;
    // In memory it is cols × rows.
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
