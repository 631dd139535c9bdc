//! Making tensors.

use super::call::{Call, Outcome};
use super::{DType, Shape, Storage, Tensor, TensorElement, TensorOps};
use warpline_runtime::{Buffer, Device, Error, ErrorKind, Pending, Refusal, Result};

/// Each allocates on the current stream of `device`.
///
/// # Errors
/// In the `Pending`: `OutOfMemory`; `Fault` or `ShutDown` if the device takes no more work.
impl Tensor {
    /// f32, with unspecified contents.
    #[track_caller]
    pub fn empty(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        Self::empty_of(DType::F32, shape, device)
    }

    /// As [`empty`](Self::empty), of another type.
    #[track_caller]
    pub fn empty_of(dtype: DType, shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        let shape = shape.into();
        match dtype {
            DType::F32 => empty::<f32>(shape, device),
            DType::I64 => empty::<i64>(shape, device),
        }
        .map_or_else(Refusal::pass_on, Pending::ready)
    }

    /// f32, all 0.
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        Self::full(shape, 0.0, device)
    }

    /// f32, all 1.
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        Self::full(shape, 1.0, device)
    }

    /// All `value`, of its type: f32 for `0.0`, i64 for `0`.
    #[track_caller]
    pub fn full<T: TensorElement>(shape: impl Into<Shape>, value: T, device: &Device) -> Pending<Tensor> {
        match empty::<T>(shape.into(), device) {
            Ok(tensor) => fill_with(&tensor, value).unwrap_or_else(Refusal::pass_on),
            Err(refusal) => refusal.pass_on(),
        }
    }

    /// The elements of `host` in row-major order. They are copied to pinned memory before this returns.
    ///
    /// # Errors
    /// Also `Shape` if `shape` has not as many elements; `OutOfMemory` if the pinned pool is at its cap.
    #[track_caller]
    pub fn from_host<T: TensorElement>(
        host: &[T],
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Pending<Tensor> {
        from_host(host, shape.into(), device).unwrap_or_else(Refusal::pass_on)
    }

    /// The elements of `buffer`, whose memory it shares.
    ///
    /// # Errors
    /// `Shape` if `shape` has not as many elements, or if the buffer is not contiguous.
    pub fn from_buffer<T: TensorElement>(buffer: Buffer<T>, shape: impl Into<Shape>) -> Result<Tensor> {
        let (shape, len) = (shape.into(), buffer.len());
        if shape.elements() != Some(len) {
            let why =
                format!("from_buffer: {len} elements do not make the shape {shape}; pass one with as many");
            return Err(Error::new(ErrorKind::Shape, why));
        }
        if !buffer.is_contiguous() {
            let (rows, width, pitch) = buffer.shape();
            let why = format!(
                "from_buffer: the buffer is a strided view of {rows} rows of {width} elements, {pitch} apart; copy it first"
            );
            return Err(Error::new(ErrorKind::Shape, why));
        }
        Ok(Tensor::over(buffer, shape))
    }

    /// f32, standard normal numbers from the device's generator. See [`normal_`](TensorOps::normal_).
    #[track_caller]
    pub fn randn(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        Self::empty(shape, device).normal_(0.0, 1.0)
    }

    /// f32, numbers from the device's generator, uniform in (0, 1]. See [`uniform_`](TensorOps::uniform_).
    #[track_caller]
    pub fn rand(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        Self::empty(shape, device).uniform_(0.0, 1.0)
    }
}

#[track_caller]
fn empty<T: TensorElement>(shape: Shape, device: &Device) -> Result<Tensor, Refusal> {
    let buffer = Call::new(&"empty", device)?.alloc::<T>(&shape)?;
    Ok(Tensor::over(buffer, shape))
}

#[track_caller]
fn from_host<T: TensorElement>(host: &[T], shape: Shape, device: &Device) -> Outcome {
    let call = Call::new(&"from_host", device)?;
    if shape.elements() != Some(host.len()) {
        let why = format!("{} elements do not make the shape {shape}; pass one with as many", host.len());
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let buffer = call.alloc::<T>(&shape)?;
    let written = call.stream().write(&buffer, host);
    Ok(written.with(Tensor::over(buffer, shape)))
}

/// x ← value.
#[track_caller]
pub(super) fn fill_with<T: TensorElement>(x: &Tensor, value: T) -> Outcome {
    let call = Call::in_place(&"fill_", [x])?;
    let filled = call.stream().fill(call.operand::<T>(x)?, value);
    Ok(filled.with(x.clone()))
}

/// x ← 0.
#[track_caller]
pub(super) fn zero(x: &Tensor) -> Outcome {
    match x.dtype() {
        DType::F32 => fill_with(x, 0.0f32),
        DType::I64 => fill_with(x, 0i64),
    }
}

/// y ← x.
#[track_caller]
pub(super) fn copy(y: &Tensor, x: &Tensor) -> Outcome {
    let call = Call::in_place(&"copy_", [y])?;
    call.same_shape(y, x)?;
    let copied = match &y.storage {
        Storage::F32(_) => call.stream().copy::<f32>(call.operand(x)?, call.operand(y)?),
        Storage::I64(_) => call.stream().copy::<i64>(call.operand(x)?, call.operand(y)?),
    };
    Ok(copied.with(y.clone()))
}
