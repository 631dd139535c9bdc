//! The functions that create tensors.

use super::array::{flattened, literal_type};
use super::broadcast::{Until, expanded, fits_into};
use super::call::{Call, Outcome};
use super::cast::{convert, converted};
use super::dtype::Kind;
use super::element::Storage;
use super::transfer::{self, Crossing};
use super::{DType, NestedArray, Scalar, Shape, Tensor, TensorElement, TensorOps, TensorOptions};
use half::{bf16, f16};
use warpline_kernels::cast_on_host;
use warpline_runtime::{
    Buffer, Device, Element, Error, ErrorKind, Pending, Pinned, Refusal, Result, Site, Stream,
};
use zerocopy::IntoBytes;

/// Constructors. They allocate on the current stream of the device in their [`TensorOptions`],
/// which are made from a device, a [`DType`], both, or another tensor.
///
/// # Errors
/// In the `Pending`: `OutOfMemory`, or `Fault` or `ShutDown` if the device accepts no more work.
impl Tensor {
    /// Creates a tensor with unspecified contents.
    #[track_caller]
    pub fn empty(shape: impl Into<Shape>, options: impl Into<TensorOptions>) -> Pending<Tensor> {
        let (shape, options) = (shape.into(), options.into());
        empty(&"empty", shape, &options, DType::default_float()).map_or_else(Refusal::pass_on, Pending::ready)
    }

    /// Creates a tensor of zeros.
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, options: impl Into<TensorOptions>) -> Pending<Tensor> {
        full(&"zeros", shape.into(), Scalar::Float(0.0), &options.into())
    }

    /// Creates a tensor of ones.
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>, options: impl Into<TensorOptions>) -> Pending<Tensor> {
        full(&"ones", shape.into(), Scalar::Float(1.0), &options.into())
    }

    /// Creates a tensor whose elements are all `value`.
    ///
    /// Without a type in the options, the type is that of `value` alone: the default
    /// floating-point type for `0.5`, `I64` for `7`, `Bool` for `true`.
    ///
    /// # Errors
    /// The errors of every constructor; `DTypeMismatch` if the type cannot hold `value`, as in
    /// [`fill_`](TensorOps::fill_).
    #[track_caller]
    pub fn full(
        shape: impl Into<Shape>,
        value: impl Into<Scalar>,
        options: impl Into<TensorOptions>,
    ) -> Pending<Tensor> {
        full(&"full", shape.into(), value.into(), &options.into())
    }

    /// Creates a tensor from a number or from nested arrays, slices and vectors of numbers.
    ///
    /// Without a type in the options, numbers are taken as PyTorch takes those of Python:
    /// floating-point numbers of any type become the [default type](DType::default_float),
    /// integers `I64`. [`from_host`](Self::from_host) keeps the type of its elements.
    ///
    /// # Errors
    /// The errors of every constructor; `Shape` if parts of one level have different lengths;
    /// `DTypeMismatch` if an integer is outside the range of the integer type in the options.
    ///
    /// # Examples
    /// ```
    /// use warpline::{DType, Device, Tensor, TensorOps};
    /// # fn main() -> warpline::Result<()> {
    /// let device = Device::best()?;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]], &device).queued()?;
    /// assert_eq!((x.shape(), x.dtype()), (&[2, 2][..], DType::F32));
    /// let mask = Tensor::new(vec![true, false], &device).queued()?;
    /// assert_eq!(mask.to_vec::<bool>().blocking_wait()?, [true, false]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(data: impl NestedArray, options: impl Into<TensorOptions>) -> Pending<Tensor> {
        new(&data, &options.into()).unwrap_or_else(Refusal::pass_on)
    }

    /// Creates a one-dimensional tensor of the numbers `start`, `start + step`, … below `end`, or
    /// above `end` if `step` is negative.
    ///
    /// There are ⌈(`end` − `start`) / `step`⌉ numbers, computed as `start` + i·`step` in `f64`, or
    /// exactly if all three are integers. Without a type in the options it is `I64` for integers,
    /// else the default floating-point type, as of `torch.arange`.
    ///
    /// # Errors
    /// The errors of every constructor; `Shape` if `step` is 0 or leads away from `end`, or a
    /// number is not finite.
    ///
    /// # Examples
    /// ```
    /// use warpline::{Device, Tensor, TensorOps};
    /// # fn main() -> warpline::Result<()> {
    /// let device = Device::best()?;
    /// let x = Tensor::arange(0, 10, 3, &device);
    /// assert_eq!(x.to_vec::<i64>().blocking_wait()?, [0, 3, 6, 9]);
    /// let y = Tensor::arange(1.0, 0.0, -0.5, &device);
    /// assert_eq!(y.to_vec::<f32>().blocking_wait()?, [1.0, 0.5]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        options: impl Into<TensorOptions>,
    ) -> Pending<Tensor> {
        arange(start.into(), end.into(), step.into(), &options.into()).unwrap_or_else(Refusal::pass_on)
    }

    /// Creates a tensor from the elements of `host`, in row-major order and of their type.
    ///
    /// The type of a Rust literal like `1.0` is `f64` where nothing else decides it, and that of
    /// `1` is `i32`: write `1.0_f32`, or use [`new`](Self::new).
    ///
    /// `host` is copied before the call returns, as by
    /// [`Stream::write`](warpline_runtime::Stream::write).
    ///
    /// # Errors
    /// In the `Pending`: `Shape` if `shape` does not have as many elements; `OutOfMemory` if the
    /// device has no memory, or the pinned memory that is held leaves no room.
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
    pub fn from_pinned<T: TensorElement<Stored = T> + Element>(
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
    #[track_caller]
    pub fn from_buffer<T>(buffer: Buffer<T>, shape: impl Into<Shape>) -> Result<Tensor>
    where
        T: TensorElement<Stored = T> + Element,
    {
        let (site, shape, len) = (Site::here(&"from_buffer"), shape.into(), buffer.len());
        if shape.elements() != Some(len) {
            let why = format!("{site}: {len} elements do not fill the shape {shape}; pass one with as many");
            return Err(Error::new(ErrorKind::Shape, why));
        }
        if !buffer.is_contiguous() {
            let (rows, width, pitch) = buffer.shape();
            let why = format!(
                "{site}: the buffer is a strided view of {rows} rows of {width} elements, \
                 {pitch} apart; copy it to contiguous memory first"
            );
            return Err(Error::new(ErrorKind::Shape, why));
        }
        Ok(Tensor::over(buffer, shape))
    }

    /// Creates a tensor of standard normal numbers from the device's generator. See
    /// [`normal_`](TensorOps::normal_).
    #[track_caller]
    pub fn randn(shape: impl Into<Shape>, options: impl Into<TensorOptions>) -> Pending<Tensor> {
        Self::empty(shape, options).normal_(0.0, 1.0)
    }

    /// Creates a tensor of numbers from the device's generator, uniform in (0, 1]. See
    /// [`uniform_`](TensorOps::uniform_).
    #[track_caller]
    pub fn rand(shape: impl Into<Shape>, options: impl Into<TensorOptions>) -> Pending<Tensor> {
        Self::empty(shape, options).uniform_(0.0, 1.0)
    }
}

/// Allocates a tensor of type `dtype`, unless the options name another.
#[track_caller]
fn empty(
    op: &'static &'static str,
    shape: Shape,
    options: &TensorOptions,
    dtype: DType,
) -> Result<Tensor, Refusal> {
    let call = Call::new(op, &options.device()?)?;
    let storage = Storage::alloc(&call, options.dtype.unwrap_or(dtype), call.elements(&shape)?)?;
    Ok(Tensor::of(storage, shape))
}

#[track_caller]
fn full(op: &'static &'static str, shape: Shape, value: Scalar, options: &TensorOptions) -> Pending<Tensor> {
    match empty(op, shape, options, value.dtype()) {
        Ok(tensor) => fill_with(op, &tensor, value).unwrap_or_else(Refusal::pass_on),
        Err(refusal) => refusal.pass_on(),
    }
}

#[track_caller]
fn new<A: NestedArray>(data: &A, options: &TensorOptions) -> Outcome {
    let call = Call::new(&"new", &options.device()?)?;
    let (numbers, shape) = flattened(&call, data)?;
    written(&call, &numbers, shape, options.dtype.unwrap_or_else(|| literal_type(A::Element::DTYPE)))
}

/// Creates a tensor of type `dtype` on the stream of `call`, of the elements of `host`, which are
/// converted on the host.
fn written<T: TensorElement>(call: &Call<'_>, host: &[T], shape: Shape, dtype: DType) -> Outcome {
    let to = Storage::alloc(call, dtype, host.len())?;
    let (stream, bytes) = (call.stream().at(call.site()), T::as_stored(host).as_bytes());
    let sent = match dtype == T::DTYPE {
        true => stream.write(&to.words::<u8>(), bytes),
        false => stream.write(&to.words::<u8>(), &converted_on_host(call, T::DTYPE, dtype, bytes)?),
    };
    Ok(sent.with(Tensor::of(to, shape)))
}

/// Returns elements converted between two types. Integers have to be in the range of an integer
/// type.
fn converted_on_host(call: &Call<'_>, from: DType, to: DType, x: &[u8]) -> Result<Vec<u8>, Refusal> {
    let cast = |from: DType, to: DType, x: &[u8]| {
        let mut y = vec![0; x.len() / from.size() * to.size()];
        cast_on_host(from.code(), to.code(), x, &mut y);
        y
    };
    let y = cast(from, to, x);
    if from.kind() == Kind::Integer && to.kind() == Kind::Integer && cast(to, from, &y) != x {
        let why = format!(
            "an integer is outside the range of {to}; pass integers in that range, or a tensor of \
             {from} converted with .to(DType::{to:?}), which keeps the low bits"
        );
        return Err(call.refuse(ErrorKind::DTypeMismatch, &why));
    }
    Ok(y)
}

#[track_caller]
fn arange(start: Scalar, end: Scalar, step: Scalar, options: &TensorOptions) -> Outcome {
    let call = Call::new(&"arange", &options.device()?)?;
    let refused = |why: &str| {
        let [start, end, step] = [start, end, step].map(Scalar::to_f64);
        let why = format!("the numbers from {start} to {end} in steps of {step}: {why}");
        Err(call.refuse(ErrorKind::Shape, &why))
    };
    let [first, last, by] = [start, end, step].map(Scalar::to_f64);
    if by == 0.0 || ![first, last, by].into_iter().all(f64::is_finite) {
        return refused("the step must not be 0, and all three must be finite");
    }
    let are_integers = [start, end, step].iter().all(|number| number.kind() < Kind::Float);
    let exact = [start, end, step].map(|number| number.to_i64().filter(|_| are_integers));
    let len = match exact {
        [Some(first), Some(last), Some(by)] => {
            let (span, by) = (i128::from(last) - i128::from(first), i128::from(by));
            usize::try_from((span + by - by.signum()) / by)
                .ok()
                .filter(|_| span == 0 || (span < 0) == (by < 0))
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "too many elements become usize::MAX, refused below"
        )]
        _ => Some((last - first) / by).filter(|&steps| steps >= 0.0).map(|steps| steps.ceil() as usize),
    };
    let Some(len) = len else { return refused("the step leads away from the end; change its sign") };
    let shape = Shape::from([len]);
    match exact {
        [Some(first), _, Some(by)] => {
            let number = |i: usize| first.wrapping_add(by.wrapping_mul(i as i64));
            let numbers = listed(&call, len, number)?;
            written(&call, &numbers, shape, options.dtype.unwrap_or(DType::I64))
        }
        _ => {
            let numbers = listed(&call, len, |i| first + i as f64 * by)?;
            written(&call, &numbers, shape, options.dtype.unwrap_or_else(DType::default_float))
        }
    }
}

/// Returns `len` numbers in the host's memory.
fn listed<T>(call: &Call<'_>, len: usize, number: impl Fn(usize) -> T) -> Result<Vec<T>, Refusal> {
    let mut numbers = Vec::new();
    if numbers.try_reserve_exact(len).is_err() {
        let why = format!("the host has no memory for {len} numbers; make the range shorter");
        return Err(call.refuse(ErrorKind::OutOfMemory, &why));
    }
    numbers.extend((0..len).map(number));
    Ok(numbers)
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
    written(&call, host, shape, T::DTYPE)
}

/// Sets every element: x ← value.
#[track_caller]
pub(super) fn fill_with(op: &'static &'static str, x: &Tensor, value: Scalar) -> Outcome {
    let call = Call::in_place(op, [x])?;
    call.contiguous(x)?;
    let stream = call.stream().at(call.site());
    let integer = |low: i64, high: i64| {
        value.to_i64().filter(|value| (low..=high).contains(value)).ok_or_else(|| {
            let why = format!(
                "{} is not an {}, whose values go from {low} to {high}; pass an integer in that range",
                value.to_f64(),
                x.dtype()
            );
            call.refuse(ErrorKind::DTypeMismatch, &why)
        })
    };
    macro_rules! filled_with_integer {
        ($ty:ty, $buffer:ident) => {
            stream.fill($buffer, {
                #[allow(clippy::cast_possible_truncation, reason = "`integer` refuses others")]
                let value = integer(<$ty>::MIN.into(), <$ty>::MAX.into())? as $ty;
                value
            })
        };
    }
    let filled = match &x.storage {
        Storage::F32(buffer) => stream.fill(buffer, value.to_f32()),
        Storage::F64(buffer) => stream.fill(buffer, value.to_f64()),
        Storage::F16(buffer) => stream.fill(buffer, f16::from_f32(value.to_f32())),
        Storage::BF16(buffer) => stream.fill(buffer, bf16::from_f32(value.to_f32())),
        Storage::I64(buffer) => filled_with_integer!(i64, buffer),
        Storage::I32(buffer) => filled_with_integer!(i32, buffer),
        Storage::I16(buffer) => filled_with_integer!(i16, buffer),
        Storage::I8(buffer) => filled_with_integer!(i8, buffer),
        Storage::U8(buffer) => filled_with_integer!(u8, buffer),
        Storage::Bool(buffer) => stream.fill(buffer, u8::from(value.to_f64() != 0.0)),
    };
    Ok(filled.with(x.clone()))
}

/// Copies a tensor, repeated to the shape and converted to the type of `y`: y ← x.
#[track_caller]
pub(super) fn copy(y: &Tensor, x: &Tensor) -> Outcome {
    let site = Site::here(&"copy_");
    let (from, to) = (x.device(), y.device());
    // A refusal before the copy concerns the current stream of the memory that is written.
    let call = Call::on(site, Stream::current(&to)?, [y]);
    call.contiguous(y)?;
    fits_into(&call, x, &y.shape)?;
    if from == to {
        return copied(&call, y, x);
    }
    let crossing = Crossing::new(&from, &to).map_err(|error| call.refused(error))?;
    // Converted before it travels, and repeated after that.
    let source = Call::on(site, Stream::current(&from)?, []);
    source.contiguous(x).map_err(|refusal| call.marked(refusal))?;
    let x = converted(&source, x, y.dtype()).map_err(|refusal| call.marked(refusal))?;
    if x.shape == y.shape {
        return transfer::copy(&call, &crossing, y, &x);
    }
    let here = call.through(transfer::moved(&call, &crossing, &x, &to)?)?;
    copied(&call, y, &here)
}

/// Copies a tensor of the same device.
fn copied(call: &Call<'_>, y: &Tensor, x: &Tensor) -> Outcome {
    let x = expanded(call, x, &y.shape, Until::Shape)?;
    if x.dtype() != y.dtype() {
        return Ok(convert(call, &x, &y.storage).with(y.clone()));
    }
    let (from, to): (Buffer<u8>, Buffer<u8>) = (x.words(), y.storage.words());
    if from.is_same(&to) {
        // A copy of a tensor onto itself does nothing.
        return Ok(Pending::ready(y.clone()));
    }
    Ok(call.stream().at(call.site()).copy_buffer(&to, &from).with(y.clone()))
}
