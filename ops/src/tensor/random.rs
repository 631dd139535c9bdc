//! Ops that fill tensors with random numbers, from Philox4x32-10 as cuRAND documents it.

use super::call::{Call, Outcome};
use super::cast::convert;
use super::element::Storage;
use super::{DType, Tensor};
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::kernel::KernelCall;
use warpline_runtime::{Buffer, Draw, ErrorKind, Generator};

/// Computes x ← mean + deviation·z, from the next part of a generator's sequence.
///
/// The generator is `generator` if given, else the device's.
#[track_caller]
pub(super) fn normal(x: &Tensor, generator: Option<&Generator>, mean: f32, deviation: f32) -> Outcome {
    let call = Call::in_place(&"normal_", [x])?;
    drawn(&call, x, generator, |draw, y| {
        kernels::philox_normal(y.len() as u64, draw.seed, 0, draw.offset, mean, deviation, y)
    })
}

/// Computes x ← uniform in (low, high], from the same generator as [`normal`].
#[track_caller]
pub(super) fn uniform(x: &Tensor, generator: Option<&Generator>, low: f32, high: f32) -> Outcome {
    let call = Call::in_place(&"uniform_", [x])?;
    drawn(&call, x, generator, |draw, y| {
        kernels::philox_uniform(y.len() as u64, draw.seed, 0, draw.offset, low, high, y)
    })
}

/// Fills `x` by the kernel that `kernel` returns, which writes f32, and converts what it wrote.
fn drawn(
    call: &Call<'_>,
    x: &Tensor,
    generator: Option<&Generator>,
    kernel: impl for<'a> FnOnce(Draw, &'a Buffer<f32>) -> KernelCall<'a>,
) -> Outcome {
    call.contiguous(x)?;
    if !x.dtype().is_floating_point() {
        let why = format!(
            "the tensor is {}, and random numbers are floating-point; draw them into an f32 tensor \
             and convert it with .to(DType::{:?})",
            x.dtype(),
            x.dtype()
        );
        return Err(call.refuse(ErrorKind::DTypeMismatch, &why));
    }
    let n = x.len() as u64;
    let numbers = match &x.storage {
        Storage::F32(numbers) => numbers.clone(),
        _ => call.scratch(x.len())?,
    };
    let draw = generator.unwrap_or(x.device().generator()).take(n);
    call.draws_random_numbers();
    let done = call.launch(kernel(draw, &numbers), elements(n), ());
    if x.dtype() == DType::F32 {
        return Ok(done.with(x.clone()));
    }
    call.through(done)?;
    Ok(convert(call, &Storage::F32(numbers), &x.storage).with(x.clone()))
}
