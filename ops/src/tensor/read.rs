//! Ops that copy tensors back to the host or into row-major order.

use super::call::{Call, Outcome};
use super::cast::{convert, converted};
use super::element::Storage;
use super::{DType, Tensor, TensorElement};
use warpline_kernels::{self as kernels, launch};
use warpline_runtime::{Element, ErrorKind, Pinned};

/// Reads the elements of `x` into a vector.
#[track_caller]
pub(super) fn to_vec<T: TensorElement>(x: &Tensor) -> Outcome<Vec<T>> {
    let call = Call::new(&"to_vec", &x.device())?;
    call.read_as::<T>(x)?;
    call.contiguous(x)?;
    let elements = T::buffer(&x.storage).expect("the type was checked above");
    Ok(call.stream().at(call.site()).read_as(elements, T::append))
}

/// Copies the elements of `x` into pinned memory.
#[track_caller]
pub(super) fn to_pinned<T: TensorElement<Stored = T> + Element>(x: &Tensor) -> Outcome<Pinned<T>> {
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
    let element = T::buffer(&x.storage).expect("the type was checked above");
    Ok(call.stream().at(call.site()).read_one(element).map(T::from_stored))
}

/// Copies `x`, a transposed view, into row-major order.
#[track_caller]
pub(super) fn contiguous(x: &Tensor) -> Outcome {
    let call = Call::new(&"contiguous", &x.device())?;
    let [rows, cols] = call.matrix(x)?;
    // In memory `x` is cols × rows.
    let (height, width) = (cols as u64, rows as u64);
    let config = launch::transpose(height, width);
    let transposed = |x: &Storage, to: &Storage| match x.dtype().size() {
        8 => call.launch(kernels::transpose_i64(height, width, &x.words(), &to.words()), config, ()),
        _ => call.launch(kernels::transpose(height, width, &x.words(), &to.words()), config, ()),
    };
    // The transpose moves words of 4 and 8 bytes. An f32 holds every value of the smaller types.
    if x.dtype().size() < 4 {
        let wide = converted(&call, x, DType::F32)?;
        let in_order = Storage::alloc(&call, DType::F32, x.len())?;
        call.through(transposed(&wide.storage, &in_order))?;
        let to = Storage::alloc(&call, x.dtype(), x.len())?;
        return Ok(convert(&call, &in_order, &to).with(Tensor::of(to, x.shape.clone())));
    }
    let to = Storage::alloc(&call, x.dtype(), x.len())?;
    Ok(transposed(&x.storage, &to).with(Tensor::of(to, x.shape.clone())))
}
