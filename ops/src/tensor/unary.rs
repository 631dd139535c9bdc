//! Elementwise functions of one tensor.

use super::Tensor;
use super::call::{Call, Outcome};
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::Buffer;
use warpline_runtime::kernel::KernelCall;

/// A function of one f32 operand.
pub(super) struct Unary {
    name: &'static str,
    kernel: for<'a> fn(u64, &'a Buffer<f32>, &'a Buffer<f32>) -> KernelCall<'a>,
}

pub(super) static EXP: Unary = Unary { name: "exp", kernel: |n, x, y| kernels::exp_f32(n, x, y) };
pub(super) static LOG: Unary = Unary { name: "log", kernel: |n, x, y| kernels::log_f32(n, x, y) };
pub(super) static SQRT: Unary = Unary { name: "sqrt", kernel: |n, x, y| kernels::sqrt_f32(n, x, y) };
pub(super) static TANH: Unary = Unary { name: "tanh", kernel: |n, x, y| kernels::tanh_f32(n, x, y) };
pub(super) static SIGMOID: Unary = Unary { name: "sigmoid", kernel: |n, x, y| kernels::sigmoid_f32(n, x, y) };
pub(super) static GELU: Unary = Unary { name: "gelu", kernel: |n, x, y| kernels::gelu_f32(n, x, y) };

/// Computes y ← f(x).
#[track_caller]
pub(super) fn unary(op: &'static Unary, x: &Tensor) -> Outcome {
    let call = Call::new(&op.name, &x.device())?;
    let (from, n) = (call.operand(x)?, x.len() as u64);
    let to = call.alloc_like(x)?;
    let done = call.launch((op.kernel)(n, from, &to), elements(n), ());
    Ok(done.with(Tensor::over(to, x.shape.clone())))
}
