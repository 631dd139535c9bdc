//! An op from its checked operands to its launch, with the caller's line in every refusal.

use super::element::Storage;
use super::{DType, Shape, Tensor, TensorElement};
use warpline_runtime::kernel::{KernelCall, LaunchConfig};
use warpline_runtime::{
    Buffer, Declared, Device, DeviceValue, Element, Error, ErrorKind, Pending, Refusal, Result, Site, Stream,
};

/// The result of an op's function: an op in flight, or the reason why there is none.
pub(super) type Outcome<T = Tensor> = Result<Pending<T>, Refusal>;

/// The name and line of an op, its stream, and the tensors that it writes in place.
pub(super) struct Call<'a> {
    site: Site,
    stream: Stream,
    in_place: [Option<&'a Tensor>; 2],
}

impl<'a> Call<'a> {
    /// Creates an op on the current stream of `device`, called at the caller's line.
    #[track_caller]
    #[inline]
    pub(super) fn new(op: &'static &'static str, device: &Device) -> Result<Self, Refusal> {
        let site = Site::here(op);
        Ok(Call { site, stream: Stream::current(device)?, in_place: [None, None] })
    }

    /// Creates an op that writes `tensors`. A refusal marks them.
    #[track_caller]
    #[inline]
    pub(super) fn in_place<const N: usize>(
        op: &'static &'static str,
        tensors: [&'a Tensor; N],
    ) -> Result<Self, Refusal> {
        const { assert!(0 < N) };
        let site = Site::here(op);
        Ok(Self::on(site, Stream::current(&tensors[0].device())?, tensors))
    }

    /// Creates an op on `stream` that writes `tensors`.
    #[inline]
    pub(super) fn on<const N: usize>(site: Site, stream: Stream, tensors: [&'a Tensor; N]) -> Self {
        const { assert!(N <= 2) };
        Call { site, stream, in_place: std::array::from_fn(|i| tensors.get(i).copied()) }
    }

    /// Warns if the op is captured, because it draws random numbers.
    pub(super) fn draws_random_numbers(&self) {
        self.stream.draws_random_numbers(self.site);
    }

    /// Returns the refusal for `why`, which says both numbers and what to do.
    #[cold]
    pub(super) fn refuse(&self, kind: ErrorKind, why: &str) -> Refusal {
        let (op, location) = (self.site.op(), self.site.location);
        let (file, line) = (location.file(), location.line());
        let label = self.stream.label();
        self.refused(Error::new(kind, format!("{op} on stream \"{label}\" ({file}:{line}): {why}")))
    }

    /// Returns the refusal with this error.
    #[cold]
    pub(super) fn refused(&self, error: Error) -> Refusal {
        match written(self.in_place.into_iter().flatten()) {
            Some(written) => self.stream.refuse_writes(error, written),
            None => Refusal::on(&self.stream, error),
        }
    }

    /// Returns the refusal of a part of this op, with the tensors marked that the op would have
    /// written.
    #[cold]
    pub(super) fn marked(&self, refusal: Refusal) -> Refusal {
        match written(self.in_place.into_iter().flatten()) {
            Some(written) => self.stream.refuse_writes(refusal, written),
            None => refusal,
        }
    }

    /// Refuses the op if `tensor` is a transposed view.
    #[inline]
    pub(super) fn contiguous(&self, tensor: &Tensor) -> Result<(), Refusal> {
        match tensor.transposed {
            true => Err(self.refuse(ErrorKind::Shape, &tensor.not_contiguous())),
            false => Ok(()),
        }
    }

    /// Returns the memory of `tensor`, whose elements must be `T` and contiguous.
    #[inline]
    pub(super) fn operand<'t, T>(&self, tensor: &'t Tensor) -> Result<&'t Buffer<T>, Refusal>
    where
        T: TensorElement<Stored = T> + Element,
    {
        self.contiguous(tensor)?;
        self.either_way(tensor)
    }

    /// Returns the memory as [`operand`](Self::operand) does, also of a transposed view.
    #[inline]
    pub(super) fn either_way<'t, T>(&self, tensor: &'t Tensor) -> Result<&'t Buffer<T>, Refusal>
    where
        T: TensorElement<Stored = T> + Element,
    {
        T::buffer(&tensor.storage).ok_or_else(|| self.wrong_dtype(tensor, T::DTYPE))
    }

    #[cold]
    fn wrong_dtype(&self, tensor: &Tensor, wanted: DType) -> Refusal {
        let (shape, dtype) = (&tensor.shape, tensor.dtype());
        let why = format!(
            "a tensor of shape {shape} is {dtype}, and the op takes {wanted}; convert it with \
             .to(DType::{wanted:?})"
        );
        self.refuse(ErrorKind::DTypeMismatch, &why)
    }

    /// Refuses to read the elements of `tensor` as `T` if they are of another type.
    #[inline]
    pub(super) fn read_as<T: TensorElement>(&self, tensor: &Tensor) -> Result<(), Refusal> {
        let (dtype, asked, op) = (tensor.dtype(), T::DTYPE, self.site.op());
        if dtype == asked {
            return Ok(());
        }
        let why = format!("the tensor is {dtype}, and {asked} was requested; call {op}::<{dtype}>()");
        Err(self.refuse(ErrorKind::DTypeMismatch, &why))
    }

    /// Refuses the op if `one` and `other` differ in shape.
    #[inline]
    pub(super) fn same_shape(&self, one: &Tensor, other: &Tensor) -> Result<(), Refusal> {
        if one.shape == other.shape {
            return Ok(());
        }
        let why = format!("the shapes are {} and {}; pass tensors of the same shape", one.shape, other.shape);
        Err(self.refuse(ErrorKind::Shape, &why))
    }

    /// Refuses the op if `tensor` is on another device than its stream.
    ///
    /// A launch refuses such operands itself. This is for ops that launch nothing if they have
    /// nothing to compute.
    #[inline]
    pub(super) fn here(&self, tensor: &Tensor) -> Result<(), Refusal> {
        let (here, there) = (self.stream.device(), tensor.device());
        if here == there {
            return Ok(());
        }
        let why = format!(
            "the stream is on {here} and an operand is on {there}; copy the operand with \
             .to(&device) first"
        );
        Err(self.refuse(ErrorKind::DeviceMismatch, &why))
    }

    /// Returns the sizes of a matrix.
    #[inline]
    pub(super) fn matrix(&self, tensor: &Tensor) -> Result<[usize; 2], Refusal> {
        tensor.shape[..].try_into().map_err(|_| {
            let why = format!(
                "a tensor has {} dimensions (shape {}), and the op takes a matrix; reshape it to 2 \
                 dimensions",
                tensor.shape.len(),
                tensor.shape
            );
            self.refuse(ErrorKind::Shape, &why)
        })
    }

    /// Returns the number of elements of a result of this shape.
    #[inline]
    pub(super) fn elements(&self, shape: &Shape) -> Result<usize, Refusal> {
        shape.elements().ok_or_else(|| {
            let why = format!(
                "a tensor of shape {shape} has more elements than a usize can count; make it \
                 smaller"
            );
            self.refuse(ErrorKind::OutOfMemory, &why)
        })
    }

    /// Allocates memory for a result of this shape.
    #[inline]
    pub(super) fn alloc<T: Element>(&self, shape: &Shape) -> Result<Buffer<T>, Refusal> {
        self.scratch(self.elements(shape)?)
    }

    /// Allocates memory for `len` elements that one kernel leaves for the next.
    #[inline]
    pub(super) fn scratch<T: Element>(&self, len: usize) -> Result<Buffer<T>, Refusal> {
        let site = Site::at(&"alloc", self.site.location);
        self.stream.at(site).alloc(len).map_err(|error| self.refused(error))
    }

    /// Allocates memory for a result of the shape of `tensor`.
    #[inline]
    pub(super) fn alloc_like<T: Element>(&self, tensor: &Tensor) -> Result<Buffer<T>, Refusal> {
        self.alloc(&tensor.shape)
    }

    /// Launches `call`. The `Pending` resolves to `value`.
    #[inline]
    pub(super) fn launch<T>(&self, call: KernelCall<'_>, config: LaunchConfig, value: T) -> Pending<T> {
        self.stream.at(self.site).launch(call, config).with(value)
    }

    /// Returns once `part` of this op is enqueued, for the next part. If it was refused, so is the
    /// op.
    #[inline]
    pub(super) fn through<T: DeviceValue>(&self, part: Pending<T>) -> Result<T, Refusal> {
        part.into_operand().map_err(|refusal| self.marked(refusal))
    }

    pub(super) fn site(&self) -> Site {
        self.site
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }
}

/// Returns the refusal of a call on the current stream of `device`.
#[cold]
pub(super) fn refused_call(error: Error, device: &Device) -> Refusal {
    match Stream::current(device) {
        Ok(stream) => Refusal::on(&stream, error),
        Err(_) => error.into(),
    }
}

/// Returns the refusal of an op whose operand was refused, with the operand's error.
///
/// The op would have written `in_place`, on the current stream of `device`.
#[cold]
pub(super) fn refused_operand(refusal: Refusal, device: &Device, in_place: &[&Tensor]) -> Refusal {
    // A device that accepts no more work has already reported why.
    let Ok(stream) = Stream::current(device) else { return refusal };
    match written(in_place.iter().copied()) {
        Some(written) => stream.refuse_writes(refusal, written),
        None => refusal.or_on(&stream),
    }
}

/// Returns what an op that writes `tensors` declares.
fn written<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Option<Declared<'a>> {
    tensors.into_iter().map(Tensor::written).reduce(|all, one| all.and(one))
}

impl Tensor {
    /// Creates a tensor over the whole of `buffer`, which has as many elements as `shape`.
    #[inline]
    pub(super) fn over<T>(buffer: Buffer<T>, shape: Shape) -> Self
    where
        T: TensorElement<Stored = T> + Element,
    {
        Self::of(T::storage(buffer), shape)
    }

    /// Creates a tensor over the whole of `storage`, which has as many elements as `shape`.
    #[inline]
    pub(super) fn of(storage: Storage, shape: Shape) -> Self {
        debug_assert_eq!(shape.elements(), Some(storage.len()));
        Tensor { storage, shape, transposed: false }
    }
}
