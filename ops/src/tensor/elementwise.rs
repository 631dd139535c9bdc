//! Elementwise ops on tensors.
//!
//! A binary op has two types. The *result* type is the promotion of its operands' types. It is
//! *computed* in a type that has kernels: `f32`, `f64` or `i64`, where `f32` stands in for the two
//! 16-bit floating-point types, and `i64` for the other integers and for `bool`. So operands are
//! converted to the result type and then to the computed one, and the result back. With the
//! operands `f32`, `f64` or `i64`, of one type and shape, the op is one launch.

use super::broadcast::{Until, common_shape, expanded, fits_into};
use super::call::{Call, Outcome};
use super::cast::{convert, converted};
use super::dtype::Kind;
use super::element::Storage;
use super::operand::Given;
use super::{DType, Scalar, Shape, Tensor, TensorElement};
use std::borrow::Cow;
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::kernel::KernelCall;
use warpline_runtime::{Buffer, Element, ErrorKind, Pending, Refusal};

type WithTensor<T> = for<'a> fn(u64, u64, &'a Buffer<T>, &'a Buffer<T>, &'a Buffer<T>) -> KernelCall<'a>;
type WithScalar<T> = for<'a> fn(u64, &'a Buffer<T>, T, &'a Buffer<T>) -> KernelCall<'a>;

/// The kernels of an op with two operands, for one element type.
struct Kernels<T: Element> {
    tensor: WithTensor<T>,
    scalar: WithScalar<T>,
}

/// An op with two operands.
pub(super) struct Binary {
    pub(super) name: &'static str,
    pub(super) name_in_place: &'static str,
    /// `true` if the operands can be exchanged.
    commutes: bool,
    f32: Kernels<f32>,
    f64: Kernels<f64>,
    /// `None` for division, whose result is never an integer.
    i64: Option<Kernels<i64>>,
}

pub(super) static ADD: Binary = Binary {
    name: "add",
    name_in_place: "add_",
    commutes: true,
    f32: Kernels {
        tensor: |n, period, x, y, z| kernels::add(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar(n, x, a, y),
    },
    f64: Kernels {
        tensor: |n, period, x, y, z| kernels::add_f64(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar_f64(n, x, a, y),
    },
    i64: Some(Kernels {
        tensor: |n, period, x, y, z| kernels::add_i64(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar_i64(n, x, a, y),
    }),
};

pub(super) static SUB: Binary = Binary {
    name: "sub",
    name_in_place: "sub_",
    commutes: false,
    // By IEEE 754, x − a is x + (−a), also for zeros.
    f32: Kernels {
        tensor: |n, period, x, y, z| kernels::sub(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar(n, x, -a, y),
    },
    f64: Kernels {
        tensor: |n, period, x, y, z| kernels::sub_f64(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar_f64(n, x, -a, y),
    },
    i64: Some(Kernels {
        tensor: |n, period, x, y, z| kernels::sub_i64(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::add_scalar_i64(n, x, a.wrapping_neg(), y),
    }),
};

pub(super) static MUL: Binary = multiplication("mul");
static NEG: Binary = multiplication("neg");

const fn multiplication(name: &'static str) -> Binary {
    Binary {
        name,
        name_in_place: "mul_",
        commutes: true,
        f32: Kernels {
            tensor: |n, period, x, y, z| kernels::mul(n, period, x, y, z),
            scalar: |n, x, a, y| kernels::mul_scalar(n, x, a, y),
        },
        f64: Kernels {
            tensor: |n, period, x, y, z| kernels::mul_f64(n, period, x, y, z),
            scalar: |n, x, a, y| kernels::mul_scalar_f64(n, x, a, y),
        },
        i64: Some(Kernels {
            tensor: |n, period, x, y, z| kernels::mul_i64(n, period, x, y, z),
            scalar: |n, x, a, y| kernels::mul_scalar_i64(n, x, a, y),
        }),
    }
}

pub(super) static DIV: Binary = Binary {
    name: "div",
    name_in_place: "div_",
    commutes: false,
    f32: Kernels {
        tensor: |n, period, x, y, z| kernels::divide(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::divide_scalar(n, x, a, y),
    },
    f64: Kernels {
        tensor: |n, period, x, y, z| kernels::divide_f64(n, period, x, y, z),
        scalar: |n, x, a, y| kernels::divide_scalar_f64(n, x, a, y),
    },
    i64: None,
};

impl Binary {
    /// Returns the type of the result of this op.
    fn result_type(&self, call: &Call<'_>, x: &Tensor, y: &Given<&Tensor>) -> Result<DType, Refusal> {
        let promoted = match y {
            Given::Tensor(y) => promoted(x, y),
            Given::Scalar(a) if a.kind() > x.dtype().kind() => a.dtype(),
            Given::Scalar(_) => x.dtype(),
        };
        let of_truth = |y: &Given<&Tensor>| match y {
            Given::Tensor(y) => y.dtype() == DType::Bool,
            Given::Scalar(a) => a.kind() == Kind::Bool,
        };
        if std::ptr::eq(self, &SUB) && (x.dtype() == DType::Bool || of_truth(y)) {
            let why = "a difference of bool is not defined; convert the tensor with .to(DType::I64)";
            return Err(call.refuse(ErrorKind::DTypeMismatch, why));
        }
        Ok(match self.i64.is_none() && !promoted.is_floating_point() {
            true => DType::default_float(),
            false => promoted,
        })
    }
}

/// Returns the type that two tensors promote to. One with dimensions decides before one without,
/// among types of one kind.
fn promoted(x: &Tensor, y: &Tensor) -> DType {
    let (of_x, of_y) = (x.dtype(), y.dtype());
    match (x.shape.is_empty(), y.shape.is_empty()) {
        (false, true) if of_x.kind() >= of_y.kind() => of_x,
        (true, false) if of_y.kind() >= of_x.kind() => of_y,
        _ => of_x.promote(of_y),
    }
}

/// Returns the type in which a result of type `result` is computed.
fn computed_in(result: DType) -> DType {
    match result {
        DType::F32 | DType::F64 | DType::I64 => result,
        DType::F16 | DType::BF16 => DType::F32,
        DType::I32 | DType::I16 | DType::I8 | DType::U8 | DType::Bool => DType::I64,
    }
}

/// Computes z ← x ∘ y.
#[track_caller]
pub(super) fn binary(op: &'static Binary, x: &Tensor, y: Given<&Tensor>) -> Outcome {
    let call = Call::new(&op.name, &x.device())?;
    let result = op.result_type(&call, x, &y)?;
    let shape = match &y {
        Given::Tensor(y) => common_shape(&call, x, y)?,
        Given::Scalar(_) => x.shape.clone(),
    };
    let z = Storage::alloc(&call, computed_in(result), call.elements(&shape)?)?;
    let done = compute(&call, op, result, x, y, &shape, &z)?;
    finished(&call, done, z, result, &shape)
}

/// Computes x ← x ∘ y.
#[track_caller]
pub(super) fn binary_in_place(op: &'static Binary, x: &Tensor, y: Given<&Tensor>) -> Outcome {
    let call = Call::in_place(&op.name_in_place, [x])?;
    let result = op.result_type(&call, x, &y)?;
    if result.kind() > x.dtype().kind() {
        let why = format!(
            "the result is {result}, which cannot be written into a tensor of {}; use {}, which \
             returns a new tensor, or convert the operand",
            x.dtype(),
            op.name
        );
        return Err(call.refuse(ErrorKind::DTypeMismatch, &why));
    }
    if let Given::Tensor(y) = &y {
        fits_into(&call, y, &x.shape)?;
    }
    let computed = computed_in(result);
    if computed == x.dtype() {
        return Ok(compute(&call, op, result, x, y, &x.shape, &x.storage)?.with(x.clone()));
    }
    call.contiguous(x)?;
    let mut z = Storage::alloc(&call, computed, x.len())?;
    call.through(compute(&call, op, result, x, y, &x.shape, &z)?)?;
    if ![computed, x.dtype()].contains(&result) {
        let rounded = Storage::alloc(&call, result, x.len())?;
        call.through(convert(&call, &z, &rounded))?;
        z = rounded;
    }
    Ok(convert(&call, &z, &x.storage).with(x.clone()))
}

/// Computes z ← a ∘ x, with a number as the first operand.
#[track_caller]
pub(super) fn number_first(op: &'static Binary, a: Scalar, x: &Tensor) -> Outcome {
    if op.commutes {
        return binary(op, x, Given::Scalar(a));
    }
    let call = Call::new(&op.name, &x.device())?;
    let result = op.result_type(&call, x, &Given::Scalar(a))?;
    call.contiguous(x)?;
    let z = Storage::alloc(&call, computed_in(result), x.len())?;
    let stream = call.stream().at(call.site());
    call.through(match &z {
        Storage::F32(z) => stream.fill(z, a.to_f32()),
        Storage::F64(z) => stream.fill(z, a.to_f64()),
        Storage::I64(z) => stream.fill(z, integer(a)),
        _ => unreachable!("no op is computed in {}", z.dtype()),
    })?;
    let x = prepared(&call, x, result, z.dtype())?;
    let y = Given::Tensor(Cow::Borrowed(&x.storage));
    let done = launched(&call, op, &z, y, &z);
    finished(&call, done, z, result, &x.shape)
}

/// Returns the result, converted from the type of `z` to `result`.
fn finished(call: &Call<'_>, done: Pending<()>, z: Storage, result: DType, shape: &Shape) -> Outcome {
    if z.dtype() == result {
        return Ok(done.with(Tensor::of(z, shape.clone())));
    }
    call.through(done)?;
    let to = Storage::alloc(call, result, z.len())?;
    Ok(convert(call, &z, &to).with(Tensor::of(to, shape.clone())))
}

/// Returns an operand of an op in the type in which the op is computed. It is converted to the type
/// of the result first.
fn prepared<'t>(
    call: &Call<'_>,
    operand: &'t Tensor,
    result: DType,
    computed: DType,
) -> Result<Cow<'t, Tensor>, Refusal> {
    Ok(match converted(call, operand, result)? {
        Cow::Borrowed(operand) => converted(call, operand, computed)?,
        Cow::Owned(operand) => Cow::Owned(converted(call, &operand, computed)?.into_owned()),
    })
}

/// Enqueues z ← x ∘ y in the type of `z`, of operands that are converted to `result` first. `shape`
/// is that of `z`.
fn compute(
    call: &Call<'_>,
    op: &Binary,
    result: DType,
    x: &Tensor,
    y: Given<&Tensor>,
    shape: &Shape,
    z: &Storage,
) -> Result<Pending<()>, Refusal> {
    let (mut first, mut second) = (prepared(call, x, result, z.dtype())?, None);
    if let Given::Tensor(y) = y {
        second = Some(prepared(call, y, result, z.dtype())?);
    }
    if let Some(y) = &mut second
        && op.commutes
        && first.len() < y.len()
    {
        // The smaller operand is the one that the kernel repeats.
        std::mem::swap(&mut first, y);
    }
    let x = expanded(call, &first, shape, Until::Shape)?;
    let y = match (&second, &y) {
        (Some(y), _) => Given::Tensor(expanded(call, y, shape, Until::Rows)?),
        (None, Given::Scalar(a)) => Given::Scalar(*a),
        (None, Given::Tensor(_)) => unreachable!("a tensor was prepared above"),
    };
    Ok(launched(call, op, &x, y, z))
}

/// Launches the kernel of an op on operands of the type of `z`.
fn launched(
    call: &Call<'_>,
    op: &Binary,
    x: &Storage,
    y: Given<Cow<'_, Storage>>,
    z: &Storage,
) -> Pending<()> {
    match z {
        Storage::F32(z) => launched_as(call, &op.f32, x, y, Scalar::to_f32, z),
        Storage::F64(z) => launched_as(call, &op.f64, x, y, Scalar::to_f64, z),
        Storage::I64(z) => {
            let kernels = op.i64.as_ref().expect("a result of a division is not computed in i64");
            launched_as(call, kernels, x, y, integer, z)
        }
        _ => unreachable!("no op is computed in {}", z.dtype()),
    }
}

fn integer(a: Scalar) -> i64 {
    a.to_i64().expect("a number that is no integer promotes to a float")
}

fn launched_as<T: TensorElement<Stored = T> + Element>(
    call: &Call<'_>,
    kernels: &Kernels<T>,
    x: &Storage,
    y: Given<Cow<'_, Storage>>,
    scalar: impl FnOnce(Scalar) -> T,
    z: &Buffer<T>,
) -> Pending<()> {
    let (n, x) = (z.len() as u64, T::buffer(x).expect("operands were converted"));
    match y {
        Given::Tensor(y) => {
            let y = T::buffer(&y).expect("operands were converted");
            call.launch((kernels.tensor)(n, y.len() as u64, x, y, z), elements(n), ())
        }
        Given::Scalar(a) => call.launch((kernels.scalar)(n, x, scalar(a), z), elements(n), ()),
    }
}

/// Computes y ← −x.
#[track_caller]
pub(super) fn neg(x: &Tensor) -> Outcome {
    if x.dtype() == DType::Bool {
        let call = Call::new(&NEG.name, &x.device())?;
        let why = "the sign of bool is not defined; convert the tensor with .to(DType::I64)";
        return Err(call.refuse(ErrorKind::DTypeMismatch, why));
    }
    // A product with −1 is exact, also for zeros. Integers wrap around, as a negation does.
    binary(&NEG, x, Given::Scalar(Scalar::Int(-1)))
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
