//! Elementwise ops on tensors.

use super::call::{Call, Outcome};
use super::operand::Given;
use super::{DType, Scalar, Storage, Tensor, TensorElement};
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::kernel::KernelCall;
use warpline_runtime::{Buffer, ErrorKind, Refusal};

type WithTensor<T> = for<'a> fn(u64, u64, &'a Buffer<T>, &'a Buffer<T>, &'a Buffer<T>) -> KernelCall<'a>;
type WithScalar<T> = for<'a> fn(u64, &'a Buffer<T>, T, &'a Buffer<T>) -> KernelCall<'a>;

/// The kernels of an op with two operands, for one element type.
struct Kernels<T: TensorElement> {
    tensor: WithTensor<T>,
    scalar: WithScalar<T>,
}

/// An op with two operands.
pub(super) struct Binary {
    pub(super) name: &'static str,
    pub(super) name_in_place: &'static str,
    f32: Kernels<f32>,
    i64: Kernels<i64>,
}

pub(super) static ADD: Binary = Binary {
    name: "add",
    name_in_place: "add_",
    f32: Kernels {
        tensor: |n, period, x, y, z| kernels::add(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar(n, x, a, y),
    },
    i64: Kernels {
        tensor: |n, period, x, y, z| kernels::add_i64(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar_i64(n, x, a, y),
    },
};

pub(super) static SUB: Binary = Binary {
    name: "sub",
    name_in_place: "sub_",
    // By IEEE 754, x − a is x + (−a), also for zeros.
    f32: Kernels {
        tensor: |n, period, x, y, z| kernels::sub(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar(n, x, -a, y),
    },
    i64: Kernels {
        tensor: |n, period, x, y, z| kernels::sub_i64(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar_i64(n, x, a.wrapping_neg(), y),
    },
};

pub(super) static MUL: Binary = Binary {
    name: "mul",
    name_in_place: "mul_",
    f32: Kernels {
        tensor: |n, period, x, y, z| kernels::mul(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::mul_scalar(n, x, a, y),
    },
    i64: Kernels {
        tensor: |n, period, x, y, z| kernels::mul_i64(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::mul_scalar_i64(n, x, a, y),
    },
};

/// Computes z ← x ∘ y.
#[track_caller]
pub(super) fn binary(op: &'static Binary, x: &Tensor, y: Given<&Tensor>) -> Outcome {
    let call = Call::new(&op.name, &x.device())?;
    match x.dtype() {
        DType::F32 => combined(&call, &op.f32, x, y, call.alloc_like(x)?),
        DType::I64 => combined(&call, &op.i64, x, y, call.alloc_like(x)?),
    }
}

/// Computes y ← −x.
#[track_caller]
pub(super) fn neg(x: &Tensor) -> Outcome {
    let call = Call::new(&"neg", &x.device())?;
    // A product with −1 is exact, also for zeros. For i64 it wraps around, as a negation does.
    match x.dtype() {
        DType::F32 => combined(&call, &MUL.f32, x, Given::Scalar(Scalar::F32(-1.0)), call.alloc_like(x)?),
        DType::I64 => combined(&call, &MUL.i64, x, Given::Scalar(Scalar::I64(-1)), call.alloc_like(x)?),
    }
}

/// Computes x ← x ∘ y.
#[track_caller]
pub(super) fn binary_in_place(op: &'static Binary, x: &Tensor, y: Given<&Tensor>) -> Outcome {
    let call = Call::in_place(&op.name_in_place, [x])?;
    match &x.storage {
        Storage::F32(to) => combined(&call, &op.f32, x, y, to.clone()),
        Storage::I64(to) => combined(&call, &op.i64, x, y, to.clone()),
    }
}

fn combined<T: TensorElement>(
    call: &Call<'_>,
    kernels: &Kernels<T>,
    x: &Tensor,
    y: Given<&Tensor>,
    z: Buffer<T>,
) -> Outcome {
    let (from, n) = (call.operand::<T>(x)?, x.len() as u64);
    let done = match y {
        Given::Tensor(y) => {
            let (operand, period) = (call.operand::<T>(y)?, y.len() as u64);
            repeats(call, x, y)?;
            call.launch((kernels.tensor)(n, period, from, operand, &z), elements(n), ())
        }
        Given::Scalar(a) => {
            let a = T::scalar(a).ok_or_else(|| {
                let (tensor, other) = (x.dtype(), a.dtype());
                let why = format!(
                    "the tensor is {tensor} and the scalar is {other}; pass a scalar of type \
                     {tensor}"
                );
                call.refuse(ErrorKind::DTypeMismatch, &why)
            })?;
            call.launch((kernels.scalar)(n, from, a, &z), elements(n), ())
        }
    };
    Ok(done.with(Tensor::over(z, x.shape.clone())))
}

/// Refuses the op unless `y` has the shape of `x` or of its last dimensions, with or without ones
/// before them.
#[inline]
fn repeats(call: &Call<'_>, x: &Tensor, y: &Tensor) -> Result<(), Refusal> {
    let ones = y.shape.iter().take_while(|&&size| size == 1).count();
    if x.shape == y.shape || (y.shape.len() <= x.shape.len() && x.shape.ends_with(&y.shape[ones..])) {
        return Ok(());
    }
    let why = format!(
        "the shapes are {} and {}; the second must equal the first or its last dimensions, like a \
         row [n] for [m, n]",
        x.shape, y.shape
    );
    Err(call.refuse(ErrorKind::Shape, &why))
}

/// Computes y ← max(x, 0).
#[track_caller]
pub(super) fn relu(x: &Tensor) -> Outcome {
    let call = Call::new(&"relu", &x.device())?;
    let (from, n) = (call.operand(x)?, x.len() as u64);
    let to = call.alloc_like(x)?;
    let done = call.launch(kernels::relu(n, from, &to), elements(n), ());
    Ok(done.with(Tensor::over(to, x.shape.clone())))
}

/// Computes dx ← grad where y > 0.
#[track_caller]
pub(super) fn relu_backward(grad: &Tensor, y: &Tensor) -> Outcome {
    let call = Call::new(&"relu_backward", &grad.device())?;
    call.same_shape(grad, y)?;
    let (grads, outputs, n) = (call.operand(grad)?, call.operand(y)?, grad.len() as u64);
    let to = call.alloc_like(grad)?;
    let done = call.launch(kernels::relu_backward(n, grads, outputs, &to), elements(n), ());
    Ok(done.with(Tensor::over(to, grad.shape.clone())))
}
