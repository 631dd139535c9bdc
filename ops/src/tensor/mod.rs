//! Tensors: shaped device memory, and the ops on it.
//!
//! # Files
//! `shape` and `dtype` define sizes and element types. `create` makes tensors, and `view` gives the
//! same memory another shape. `ops` and `ops_nn` are the traits with the ops as methods, on tensors
//! and on `Pending`s of tensors; CONTRIBUTING.md says which op goes where. A method turns its
//! receiver and operands into tensors (`operand`) and calls a plain function in one of the other
//! files. That function checks shapes, allocates the result and launches one kernel or, for large
//! reductions and convolutions, several (`call`). `join` enqueues copies instead.

mod array;
mod broadcast;
#[cfg(feature = "safetensors")]
mod bytes;
mod call;
mod cast;
mod conv;
mod create;
mod dims;
mod display;
mod dtype;
mod element;
mod elementwise;
mod join;
mod like;
mod loss;
mod matmul;
mod maximum;
mod normalize;
mod operand;
mod operators;
mod ops;
mod ops_nn;
mod options;
mod pin;
mod random;
mod read;
mod reduce;
mod scalar;
mod select;
mod sgd;
mod shape;
mod text;
mod transfer;
mod unary;
mod view;

pub use array::NestedArray;
pub use dtype::{DType, DTypeScope};
pub use element::TensorElement;
pub use operand::{OperandOrScalar, TensorOperand};
pub use ops::TensorOps;
pub use ops_nn::NnOps;
pub use options::TensorOptions;
pub use scalar::Scalar;
pub use shape::Shape;
pub use text::TensorDisplay;

use element::{Storage, with_buffer};
use std::fmt;
use warpline_runtime::{
    Buffer, Declared, Device, DeviceValue, Element, Error, ErrorKind, HoldsMemory, MemoryRef, Result, Site,
    writes,
};

/// Elements of one type in a device's memory, with a shape.
///
/// A tensor is a cheap handle: clones and views share the memory. The element type is a run-time
/// value, a [`DType`], as in PyTorch. The elements are in row-major order without gaps, except in a
/// transposed view, which [`t`](TensorOps::t) makes.
///
/// The ops are in [`TensorOps`]. Each op enqueues on the current stream of the device and returns
/// immediately. It returns a `Pending<Tensor>`, on which further ops can be called as on the tensor
/// itself:
///
/// ```
/// use warpline::{Tensor, TensorOps};
/// # use warpline::Device;
///
/// # fn main() -> warpline::Result<()> {
/// # let device = Device::best()?;
/// let x = Tensor::randn([64, 128], &device);
/// let w = Tensor::randn([128, 10], &device).queued()?;
/// let b = Tensor::zeros([10], &device).queued()?;
/// let y = x.matmul(&w).add(&b).relu();
/// let total: f32 = y.sum().item().blocking_wait()?;
/// assert!(total > 0.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Storage,
    shape: Shape,
    /// `true` if the memory holds the transpose: `shape` is that of the view.
    transposed: bool,
}

impl Tensor {
    /// Returns the sizes, the slowest-varying one first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.storage.len()
    }

    /// Returns whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.storage.dtype()
    }

    /// Returns the device that the memory is on.
    pub fn device(&self) -> Device {
        with_buffer!(&self.storage, buffer => buffer.device())
    }

    /// Returns whether the elements are in row-major order without gaps, as in all but transposed
    /// views.
    pub fn is_contiguous(&self) -> bool {
        !self.transposed
    }

    /// Returns true if the memory is from a pinned pool, as that of
    /// [`pin_memory`](TensorOps::pin_memory) is.
    pub fn is_pinned(&self) -> bool {
        with_buffer!(&self.storage, buffer => buffer.is_pinned())
    }

    /// Returns whether both are views of one allocation.
    pub fn shares_memory(&self, other: &Tensor) -> bool {
        self.storage.shares_memory(&other.storage)
    }

    /// Returns true if both are the same elements of one allocation, in the same shape.
    pub(crate) fn is_same(&self, other: &Tensor) -> bool {
        self.shape == other.shape
            && (self.dtype(), self.transposed) == (other.dtype(), other.transposed)
            && self.storage.words::<u8>().is_same(&other.storage.words())
    }

    /// Returns the buffer that holds the elements, for your own kernels and copies. Those of `bool`
    /// are bytes, `u8`.
    ///
    /// # Errors
    /// `DTypeMismatch` if the elements are not of type `T`; `Shape` if this is a transposed view.
    #[track_caller]
    pub fn buffer<T>(&self) -> Result<&Buffer<T>>
    where
        T: TensorElement<Stored = T> + Element,
    {
        let site = Site::here(&"buffer");
        if self.transposed {
            return Err(Error::new(ErrorKind::Shape, format!("{site}: {}", self.not_contiguous())));
        }
        T::buffer(&self.storage).ok_or_else(|| {
            let (dtype, asked) = (self.dtype(), T::DTYPE);
            let why = format!("the tensor is {dtype}, and {asked} was requested; call buffer::<{dtype}>()");
            Error::new(ErrorKind::DTypeMismatch, format!("{site}: {why}"))
        })
    }

    /// Accepts the current contents of the memory after a write to it was refused: see
    /// [`Buffer::accept_contents`].
    pub fn accept_contents(&self) {
        with_buffer!(&self.storage, buffer => buffer.accept_contents());
    }

    fn not_contiguous(&self) -> String {
        format!(
            "the tensor is a transposed view of shape {}, and only matmul and linear take \
             transposed views; call .contiguous() on it, which copies",
            self.shape
        )
    }

    /// Returns what an op that writes this tensor declares.
    fn written(&self) -> Declared<'_> {
        with_buffer!(&self.storage, buffer => writes([buffer]))
    }
}

impl DeviceValue for Tensor {}

impl HoldsMemory for Tensor {
    fn memory(&self) -> MemoryRef<'_> {
        with_buffer!(&self.storage, buffer => buffer.memory())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = if self.transposed { ", transposed" } else { "" };
        write!(f, "Tensor<{}>({} on {}{view})", self.dtype(), self.shape, self.device())
    }
}
