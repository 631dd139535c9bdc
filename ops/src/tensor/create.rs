//! The functions that create tensors.

use super::call::{Call, Outcome};
use super::transfer::{self, Crossing};
use super::{DType, Shape, Storage, Tensor, TensorElement, TensorOps};
use warpline_runtime::{Buffer, Device, Error, ErrorKind, Pending, Pinned, Refusal, Result, Site, Stream};

/// Constructors. Those that take a `device` allocate on its current stream.
///
/// # Errors
/// In the `Pending`: `OutOfMemory`, or `Fault` or `ShutDown` if the device accepts no more work.
impl Tensor {
    /// Creates an f32 tensor with unspecified contents.
    #[track_caller]
    pub fn empty(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        Self::empty_of(DType::F32, shape, device)
    }

    /// Creates a tensor of type `dtype` with unspecified contents, like [`empty`](Self::empty).
    #[track_caller]
    pub fn empty_of(dtype: DType, shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        let shape = shape.into();
        match dtype {
            DType::F32 => empty::<f32>(&"empty", shape, device),
            DType::I64 => empty::<i64>(&"empty", shape, device),
        }
        .map_or_else(Refusal::pass_on, Pending::ready)
    }

    /// Creates an f32 tensor of zeros.
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        full(&"zeros", shape.into(), 0.0, device)
    }

    /// Creates an f32 tensor of ones.
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        full(&"ones", shape.into(), 1.0, device)
    }

    /// Creates a tensor whose elements are all `value`. The element type is that of `value`: f32
    /// for `0.0`, i64 for `0`.
    #[track_caller]
    pub fn full<T: TensorElement>(shape: impl Into<Shape>, value: T, device: &Device) -> Pending<Tensor> {
        full(&"full", shape.into(), value, device)
    }

    /// Creates a tensor from the elements of `host`, in row-major order.
    ///
    /// `host` is copied before the call returns, as by
    /// [`Stream::write`](warpline_runtime::Stream::write).
    ///
    /// # Errors
    /// In the `Pending`: `Shape` if `shape` does not have as many elements; `OutOfMemory` if the
    /// device has no memory or the pinned pool is at its cap.
    #[track_caller]
    pub fn from_host<T: TensorElement>(
        host: &[T],
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Pending<Tensor> {
        from_host(host, shape.into(), device).unwrap_or_else(Refusal::pass_on)
    }

    /// Allocates a tensor on `stream` and enqueues the copy of `host` into it.
    ///
    /// `host` holds the tensor's elements in row-major order. The `Pending` returns the pinned
    /// buffer when the copy has finished, as from [`Stream::copy_to_device`].
    ///
    /// # Ordering
    /// `stream` writes the tensor: another stream that uses it needs an edge from this one.
    ///
    /// # Cancel safety
    /// If the `Pending` is dropped, the buffer returns to its pool when the copy has finished.
    ///
    /// # Errors
    /// `Shape` if `shape` does not have as many elements. `OutOfMemory` and the other errors of
    /// [`Stream::copy_to_device`]. [`Pinned::from_error`] recovers the buffer from the error.
    ///
    /// # Examples
    /// ```
    /// # use warpline::{Tensor, TensorOps};
    /// # use warpline::Device;
    /// # fn main() -> warpline::Result<()> {
    /// # futures::executor::block_on(async {
    /// let device = Device::best()?;
    /// let (copy, compute) = (device.new_stream()?, device.new_stream()?);
    /// let mut host = device.pinned::<f32>(4).await?;
    /// host.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
    ///
    /// let (x, sent) = Tensor::from_pinned(host, [2, 2], &copy)?;
    /// compute.wait_stream(&copy);
    /// let doubled = compute.enter(|| x.mul(2.0).to_pinned::<f32>()).await?;
    /// assert_eq!(*doubled, [2.0, 4.0, 6.0, 8.0]);
    /// let host = sent.await?; // for the next batch
    /// # drop(host);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[track_caller]
    pub fn from_pinned<T: TensorElement>(
        host: Pinned<T>,
        shape: impl Into<Shape>,
        stream: &Stream,
    ) -> Result<(Tensor, Pending<Pinned<T>>)> {
        let (shape, site) = (shape.into(), Site::here(&"from_pinned"));
        if shape.elements() != Some(host.len()) {
            let (op, location, label) = (site.op(), site.location, stream.label());
            let why = format!(
                "{op} on stream \"{label}\" ({}:{}): {} elements do not fill the shape {shape}; \
                 pass a shape with that many elements",
                location.file(),
                location.line(),
                host.len()
            );
            return Err(host.into_error(Error::new(ErrorKind::Shape, why)));
        }
        let (buffer, sent) = stream.at(site).copy_to_device(host)?;
        Ok((Tensor::over(buffer, shape), sent))
    }

    /// Creates a tensor from the elements of `buffer`. It shares the memory of `buffer`.
    ///
    /// # Errors
    /// `Shape` if `shape` does not have as many elements, or if the buffer is not contiguous.
    pub fn from_buffer<T: TensorElement>(buffer: Buffer<T>, shape: impl Into<Shape>) -> Result<Tensor> {
        let (shape, len) = (shape.into(), buffer.len());
        if shape.elements() != Some(len) {
            let why = format!(
                "from_buffer: {len} elements do not fill the shape {shape}; pass one with \
                    as many"
            );
            return Err(Error::new(ErrorKind::Shape, why));
        }
        if !buffer.is_contiguous() {
            let (rows, width, pitch) = buffer.shape();
            let why = format!(
                "from_buffer: the buffer is a strided view of {rows} rows of {width} elements, \
                 {pitch} apart; copy it to contiguous memory first"
            );
            return Err(Error::new(ErrorKind::Shape, why));
        }
        Ok(Tensor::over(buffer, shape))
    }

    /// Creates an f32 tensor of standard normal numbers from the device's generator. See
    /// [`normal_`](TensorOps::normal_).
    #[track_caller]
    pub fn randn(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        Self::empty(shape, device).normal_(0.0, 1.0)
    }

    /// Creates an f32 tensor of numbers from the device's generator, uniform in (0, 1]. See
    /// [`uniform_`](TensorOps::uniform_).
    #[track_caller]
    pub fn rand(shape: impl Into<Shape>, device: &Device) -> Pending<Tensor> {
        Self::empty(shape, device).uniform_(0.0, 1.0)
    }
}

#[track_caller]
fn empty<T: TensorElement>(
    op: &'static &'static str,
    shape: Shape,
    device: &Device,
) -> Result<Tensor, Refusal> {
    let buffer = Call::new(op, device)?.alloc::<T>(&shape)?;
    Ok(Tensor::over(buffer, shape))
}

#[track_caller]
fn full<T: TensorElement>(
    op: &'static &'static str,
    shape: Shape,
    value: T,
    device: &Device,
) -> Pending<Tensor> {
    match empty::<T>(op, shape, device) {
        Ok(tensor) => fill_with(op, &tensor, value).unwrap_or_else(Refusal::pass_on),
        Err(refusal) => refusal.pass_on(),
    }
}

#[track_caller]
fn from_host<T: TensorElement>(host: &[T], shape: Shape, device: &Device) -> Outcome {
    let call = Call::new(&"from_host", device)?;
    if shape.elements() != Some(host.len()) {
        let why = format!(
            "{} elements do not fill the shape {shape}; pass a shape with that many elements",
            host.len()
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let buffer = call.alloc::<T>(&shape)?;
    let written = call.stream().at(call.site()).write(&buffer, host);
    Ok(written.with(Tensor::over(buffer, shape)))
}

/// Sets every element: x ← value.
#[track_caller]
pub(super) fn fill_with<T: TensorElement>(op: &'static &'static str, x: &Tensor, value: T) -> Outcome {
    let call = Call::in_place(op, [x])?;
    let (tensor, other) = (x.dtype(), T::DTYPE);
    if tensor != other {
        let why = format!("the tensor is {tensor} and the value is {other}; pass a value of type {tensor}");
        return Err(call.refuse(ErrorKind::DTypeMismatch, &why));
    }
    let filled = call.stream().at(call.site()).fill(call.operand::<T>(x)?, value);
    Ok(filled.with(x.clone()))
}

/// Sets every element to 0: x ← 0.
#[track_caller]
pub(super) fn zero(x: &Tensor) -> Outcome {
    match x.dtype() {
        DType::F32 => fill_with(&"zero_", x, 0.0f32),
        DType::I64 => fill_with(&"zero_", x, 0i64),
    }
}

/// Copies a tensor: y ← x.
#[track_caller]
pub(super) fn copy(y: &Tensor, x: &Tensor) -> Outcome {
    let site = Site::here(&"copy_");
    let (from, to) = (x.device(), y.device());
    if from != to {
        // A refusal before the copy concerns the current stream of the memory that is written.
        let call = Call::on(site, Stream::current(&to)?, [y]);
        let crossing = Crossing::new(&from, &to).map_err(|error| call.refused(error))?;
        call.same_shape(y, x)?;
        return transfer::copy(&call, &crossing, y, x);
    }
    let call = Call::on(site, Stream::current(&to)?, [y]);
    call.same_shape(y, x)?;
    match &y.storage {
        Storage::F32(_) => copied::<f32>(&call, y, x),
        Storage::I64(_) => copied::<i64>(&call, y, x),
    }
}

fn copied<T: TensorElement>(call: &Call<'_>, y: &Tensor, x: &Tensor) -> Outcome {
    let (from, to) = (call.operand::<T>(x)?, call.operand::<T>(y)?);
    if from.is_same(to) {
        // A copy of a tensor onto itself does nothing.
        return Ok(Pending::ready(y.clone()));
    }
    Ok(call.stream().at(call.site()).copy_buffer(to, from).with(y.clone()))
}
