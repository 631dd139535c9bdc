//! The trait `TensorOps`: arithmetic, conversions, copies, views and reading of tensors, and the
//! f32 ops that train a perceptron.

use super::call::{refused_call, refused_operand};
use super::elementwise::{self, ADD, DIV, MUL, SUB};
use super::operand::{OperandOrScalar, TensorOperand};
use super::{
    Scalar, Shape, Tensor, TensorDisplay, TensorElement, TensorOptions, create, display, loss, matmul, pin,
    random, read, reduce, sgd, transfer, view,
};
use std::borrow::Borrow;
use std::panic::Location;
use warpline_runtime::{Device, DeviceId, Element, Error, Generator, Pending, Pinned, Refusal, Result, Site};

/// Evaluates to an operand's tensor. If the operand was refused, the method returns its error.
/// `$first` is the first operand.
macro_rules! held {
    ($operand:expr) => {
        match $operand.held() {
            Ok(held) => held,
            Err(refusal) => return refusal.pass_on(),
        }
    };
    ($operand:expr, beside $first:ident) => {
        match $operand.held() {
            Ok(held) => held,
            Err(refusal) => return refused(refusal, $first.borrow(), &[]),
        }
    };
}

pub(super) use held;

/// Returns an op that was refused because of its second or a later operand.
///
/// `first` is the first operand. The memory that the op would have written is marked.
#[cold]
pub(super) fn refused<T>(refusal: Refusal, first: &Tensor, in_place: &[&Tensor]) -> Pending<T> {
    refused_operand(refusal, &first.device(), in_place).pass_on()
}

/// The ops on tensors, as methods of `&Tensor`, `&Pending<Tensor>` and `Pending<Tensor>`. The last
/// is consumed.
///
/// Each op is enqueued immediately, on the current stream of its first operand's device. Operands
/// can have the same forms as the receiver.
///
/// ```
/// # use warpline::{Tensor, TensorOps};
/// # use warpline::Device;
/// # fn main() -> warpline::Result<()> {
/// # let device = Device::best()?;
/// let x = Tensor::new([[1.0, -2.0], [3.0, -4.0]], &device).queued()?;
/// let y = x.matmul(&x.t()).sub(1.0).relu(); // no `?` in between
/// let z = (&y).mul(&y).queued()?; // a reference, to keep `y`
/// assert_eq!(y.to_vec::<f32>().blocking_wait()?, [4.0, 10.0, 10.0, 24.0]);
/// assert_eq!(z.sum().item::<f32>().blocking_wait()?, 792.0);
/// # Ok(())
/// # }
/// ```
///
/// Names and formulas are PyTorch's. An op whose name ends in an underscore works in place and
/// returns the tensor that it wrote. The operators call [`add`](Self::add),
/// [`sub`](Self::sub), [`mul`](Self::mul), [`div`](Self::div) and [`neg`](Self::neg); `&x + &y`
/// keeps both operands. [`NnOps`](super::NnOps) has further ops; [`Tensor::cat`] and
/// [`Tensor::stack`] join tensors.
///
/// # Ordering
/// An earlier use of an operand on another stream has to be ordered before the op.
/// Results are allocated on the stream of the op.
///
/// # Errors
/// Errors are in the `Pending`:
/// - the error of an operand that was refused;
/// - `Shape`, `DTypeMismatch` and `DeviceMismatch` if operands do not fit; transposed views fit
///   only in [`matmul`](Self::matmul) and [`linear`](Self::linear);
/// - `Unordered` if an edge is missing;
/// - `OutOfMemory`, `Fault` and `ShutDown`.
///
/// If an in-place op is refused for a reason other than its arguments, ops on its stream that read
/// the tensor fail too: see [`Pending`].
pub trait TensorOps: TensorOperand {
    /// Returns the sum of this tensor and `other`, a number or a tensor. Sums of integers wrap
    /// around, and that of two `bool` is true if one of them is.
    ///
    /// Shapes are broadcast as in PyTorch: counted from the last dimension, sizes are equal, or one
    /// of them is 1 or missing. A row \[n\] is added to each row of \[m, n\]. A column \[m, 1\]
    /// is first repeated in memory. Types are promoted: see [`DType`](super::DType).
    #[track_caller]
    fn add(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary(&ADD, self, other)
    }

    /// Returns this tensor minus `other`, broadcast and promoted as for [`add`](Self::add). Not
    /// defined for `bool`.
    #[track_caller]
    fn sub(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary(&SUB, self, other)
    }

    /// Returns the product with `other`, element by element, broadcast and promoted as for
    /// [`add`](Self::add).
    #[track_caller]
    fn mul(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary(&MUL, self, other)
    }

    /// Returns the quotient with `other`, element by element, broadcast and promoted as for
    /// [`add`](Self::add). A quotient of integers is a floating-point number, of the
    /// [default type](super::DType::default_float).
    #[track_caller]
    fn div(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary(&DIV, self, other)
    }

    /// Returns this tensor with the sign of every element changed. The smallest integer stays
    /// itself. Not defined for `bool`.
    #[track_caller]
    fn neg(self) -> Pending<Tensor> {
        let x = held!(self);
        elementwise::neg(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Adds `other` in place, like [`add`](Self::add). The shape and type of this tensor stay.
    ///
    /// # Errors
    /// The errors of every op; `Shape` if `other` does not fit into this shape; `DTypeMismatch` if
    /// the result is floating-point and this tensor is not, or an integer and this is `bool`.
    #[track_caller]
    fn add_(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary_in_place(&ADD, self, other)
    }

    /// Subtracts `other` in place, like [`sub`](Self::sub). The shape and type of this tensor stay.
    #[track_caller]
    fn sub_(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary_in_place(&SUB, self, other)
    }

    /// Multiplies by `other` in place, like [`mul`](Self::mul). The shape and type of this tensor
    /// stay.
    #[track_caller]
    fn mul_(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary_in_place(&MUL, self, other)
    }

    /// Divides by `other` in place, like [`div`](Self::div), with the errors of
    /// [`add_`](Self::add_).
    #[track_caller]
    fn div_(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary_in_place(&DIV, self, other)
    }

    /// Returns max(x, 0) for each f32 element; NaN stays NaN.
    #[track_caller]
    fn relu(self) -> Pending<Tensor> {
        let x = held!(self);
        elementwise::relu(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the gradient with respect to the input of [`relu`](Self::relu), given its output and
    /// the gradient with respect to that output.
    ///
    /// This tensor is the gradient with respect to the output. The result is this tensor where
    /// `output` is positive or NaN, else 0.
    #[track_caller]
    fn relu_backward(self, output: impl TensorOperand) -> Pending<Tensor> {
        let grad = held!(self);
        let output = held!(output, beside grad);
        elementwise::relu_backward(grad.borrow(), output.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the product of two f32 matrices, \[m, k\] and \[k, n\] to \[m, n\].
    ///
    /// Either may be a transposed view. Sums are f32. Their order does not depend on the number of
    /// threads, but may depend on the processor. On a GPU, cuBLAS computes the product if it can be
    /// loaded, and adds in an order of its own: see [`libraries`](warpline_kernels::libraries).
    #[track_caller]
    fn matmul(self, other: impl TensorOperand) -> Pending<Tensor> {
        let a = held!(self);
        let b = held!(other, beside a);
        matmul::matmul(a.borrow(), b.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Applies a fully connected layer, x·wᵀ + bias, in one op.
    ///
    /// Inputs \[m, k\], a weight \[n, k\] and a bias \[n\] give \[m, n\], as in `torch.nn.Linear`.
    /// The weight may be a transposed view of a \[k, n\] matrix.
    #[track_caller]
    fn linear(self, weight: impl TensorOperand, bias: impl TensorOperand) -> Pending<Tensor> {
        let x = held!(self);
        let (w, bias) = (held!(weight, beside x), held!(bias, beside x));
        matmul::linear(x.borrow(), w.borrow(), bias.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the sum of all f32 elements, a scalar; 0 if there are none.
    ///
    /// The sum is pairwise in a fixed order, so every run gives the same bits.
    #[track_caller]
    fn sum(self) -> Pending<Tensor> {
        let x = held!(self);
        reduce::sum(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the mean of all f32 elements, a scalar; NaN if there are none.
    #[track_caller]
    fn mean(self) -> Pending<Tensor> {
        let x = held!(self);
        reduce::mean(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the sum of the rows of an f32 matrix, \[m, n\] to \[n\].
    ///
    /// This is PyTorch's `sum(0)`, the gradient of a bias. It is accumulated in f64.
    #[track_caller]
    fn sum_rows(self) -> Pending<Tensor> {
        let x = held!(self);
        reduce::sum_rows(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the index of the largest f32 element along the last dimension, as i64: \[…, n\] to
    /// \[…\].
    ///
    /// If several elements are the largest, it is the index of the first one. If there are NaNs, it
    /// is the index of the first NaN.
    #[track_caller]
    fn argmax(self) -> Pending<Tensor> {
        let x = held!(self);
        reduce::argmax(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the number of equal elements of two i64 tensors of one shape, an i64 scalar.
    ///
    /// It counts correct predictions, for instance.
    #[track_caller]
    fn count_equal(self, other: impl TensorOperand) -> Pending<Tensor> {
        let x = held!(self);
        let y = held!(other, beside x);
        reduce::count_equal(x.borrow(), y.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the mean cross entropy of softmax(`self`) with `labels`, and its gradient.
    ///
    /// This tensor holds the f32 logits, \[m, n\], and `labels` is i64, \[m\]. The loss is a
    /// scalar, the mean over the rows. The gradient is with respect to this tensor, \[m, n\]. One
    /// op computes both.
    ///
    /// A label outside 0..n is not an error: it makes the loss, and its row of the gradient, NaN.
    /// No label is ignored; PyTorch's `ignore_index` has no counterpart.
    #[track_caller]
    fn cross_entropy(self, labels: impl TensorOperand) -> Pending<(Tensor, Tensor)> {
        let logits = held!(self);
        let labels = held!(labels, beside logits);
        loss::cross_entropy(logits.borrow(), labels.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Performs a step of gradient descent with momentum, in place.
    ///
    /// The step is velocity ← momentum·velocity + grad, then self ← self − lr·velocity, as in
    /// `torch.optim.SGD`. All three are f32 and of one shape. `velocity` should be 0 before the
    /// first step.
    #[track_caller]
    fn sgd_(
        self,
        grad: impl TensorOperand,
        velocity: impl TensorOperand,
        lr: f32,
        momentum: f32,
    ) -> Pending<Tensor> {
        match (self.held(), grad.held(), velocity.held()) {
            (Ok(param), Ok(grad), Ok(velocity)) => {
                sgd::sgd(param.borrow(), grad.borrow(), velocity.borrow(), lr, momentum)
                    .unwrap_or_else(Refusal::pass_on)
            }
            (param, grad, velocity) => sgd::refused_step(param, grad.err(), velocity),
        }
    }

    /// Sets every element to `value`.
    ///
    /// # Errors
    /// The errors of every op; `DTypeMismatch` if the elements are integers and `value` is not one,
    /// or is out of their range. A floating-point tensor takes the number rounded, as
    /// [`to`](Self::to) rounds it.
    #[track_caller]
    fn fill_(self, value: impl Into<Scalar>) -> Pending<Tensor> {
        let x = held!(self);
        create::fill_with(&"fill_", x.borrow(), value.into()).unwrap_or_else(Refusal::pass_on)
    }

    /// Sets every element to 0.
    #[track_caller]
    fn zero_(self) -> Pending<Tensor> {
        let x = held!(self);
        create::fill_with(&"zero_", x.borrow(), Scalar::Int(0)).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns this tensor on another device, with elements of another type, or both. Returns the
    /// tensor itself, without a copy, if it has them already. Then both share memory, and an op in
    /// place changes both. So `x.cpu()` is a copy if `x` is on a GPU, and `x` itself on a CPU. In
    /// tests without a GPU, `RuntimeBuilder::to_copies` makes it a copy everywhere.
    ///
    /// `target` is a device, a [`DType`](super::DType), both in a tuple, or another tensor, whose
    /// type and device are meant. The copy has the layout of this tensor, so the copy of a
    /// transposed view is transposed.
    ///
    /// # Conversion
    /// It runs on the device of this tensor. The rules are the same on every device. To `bool`,
    /// everything but 0 is true. Integers keep their low bits, so they wrap around. A
    /// floating-point number becomes an integer towards zero; one out of range becomes the nearest
    /// end of the range, and NaN becomes 0. To a floating-point type it is rounded to nearest, ties
    /// to even; to `f16` and `bf16` by way of `f32`, as in PyTorch. A NaN loses its sign and its
    /// payload.
    ///
    /// # Ordering
    /// A copy to another device is ordered by itself: it runs after all work so far on the current
    /// streams of both devices, and later work on both streams runs after it. It is on the current
    /// stream of this tensor's device, or of the other device if only this tensor is on a CPU
    /// device. Other streams need edges, as always.
    ///
    /// # Errors
    /// The errors of every op. `DeviceMismatch` if the devices are of different runtimes, or of
    /// different backends neither of which is the CPU's: copy to `cpu:0` first. `OutOfMemory` if
    /// the device or its pinned pool has no memory.
    ///
    /// # Examples
    /// ```
    /// # use warpline::{DType, DeviceId, Runtime, Tensor, TensorOps};
    /// # fn main() -> warpline::Result<()> {
    /// let runtime = Runtime::builder().cpu_devices(2).build()?;
    /// let [one, two] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
    /// let x = Tensor::new([1.0, 2.0], &one).queued()?;
    /// let y = x.to(&two).mul(3.0); // on `two`, in order, without an edge of its own
    /// assert_eq!(y.to(&one).add(&x).to_vec::<f32>().blocking_wait()?, [4.0, 8.0]);
    /// let z = x.to((DType::I64, &two)).queued()?;
    /// assert_eq!(z.to_vec::<i64>().blocking_wait()?, [1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn to(self, target: impl Into<TensorOptions>) -> Pending<Tensor> {
        let target = target.into();
        moved(&"to", self, |_| Ok(target))
    }

    /// Returns this tensor on `cpu:0` of its runtime, like [`to`](Self::to): itself if it is there,
    /// and else a copy.
    ///
    /// # Errors
    /// The errors of [`to`](Self::to); `ShutDown` if the runtime was dropped.
    #[track_caller]
    fn cpu(self) -> Pending<Tensor> {
        moved(&"cpu", self, |device| Ok((&device.sibling(DeviceId::Cpu(0))?).into()))
    }

    /// Returns this tensor on the [current CUDA device](Device::current_cuda) of its runtime, like
    /// [`to`](Self::to). Outside of scopes this is `cuda:0`.
    ///
    /// # Errors
    /// The errors of [`to`](Self::to); `NoSuchDevice` if there is no such device; `ShutDown` if the
    /// runtime was dropped.
    #[track_caller]
    fn cuda(self) -> Pending<Tensor> {
        moved(&"cuda", self, |device| Ok((&device.current_cuda()?).into()))
    }

    /// Returns this tensor on `cuda:N` of its runtime, in every scope, like [`to`](Self::to).
    ///
    /// # Errors
    /// The errors of [`cuda`](Self::cuda).
    #[track_caller]
    fn cuda_on(self, ordinal: u32) -> Pending<Tensor> {
        moved(&"cuda_on", self, |device| Ok((&device.sibling(DeviceId::Cuda(ordinal))?).into()))
    }

    /// Returns a copy of this tensor, which is on `cpu:0`, in page-locked memory. Returns the
    /// tensor itself, without a copy, if it is there already.
    ///
    /// The memory is from the pinned pool of the [current CUDA device](Device::current_cuda) of the
    /// runtime. Any CUDA device can copy it. If no CUDA device is found, it is from the pool of
    /// `cpu:0`, whose memory is not page-locked. The pool's cap holds
    /// (`RuntimeBuilder::pinned_cap`). The copy has the layout of this tensor.
    ///
    /// If the pool has no cached memory, the call waits while the driver page-locks some. That
    /// takes milliseconds.
    ///
    /// # Copies to a GPU
    /// [`to`](Self::to) and [`copy_`](Self::copy_) copy a pinned tensor directly. Other memory of
    /// `cpu:0` goes through the GPU's pinned pool in pieces, which host functions fill. So pinning
    /// pays for a tensor that is copied several times. For data that is read for one copy, fill a
    /// [`Pinned`] buffer and call [`Tensor::from_pinned`].
    ///
    /// # Errors
    /// The errors of every op; `DeviceMismatch` if the tensor is not on `cpu:0`; `OutOfMemory` if
    /// the pinned memory that is held leaves no room; `Reentrant` in a host function, and in a
    /// task with [`SyncMode::Error`](warpline_runtime::SyncMode::Error), even if the pool has
    /// cached memory; the errors of opening a CUDA device, except `NoSuchDevice`.
    ///
    /// # Examples
    /// ```
    /// # use warpline::{Device, Tensor, TensorOps};
    /// # fn main() -> warpline::Result<()> {
    /// let x = Tensor::new([1.0, 2.0], &Device::open("cpu")?).queued()?;
    /// let pinned = x.pin_memory().queued()?;
    /// assert!(pinned.is_pinned() && !x.is_pinned());
    /// assert!(pinned.pin_memory().queued()?.shares_memory(&pinned));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn pin_memory(self) -> Pending<Tensor> {
        if self.looked_at().is_ok_and(Tensor::is_pinned) {
            return self.viewed(|x| Ok(x.clone()));
        }
        let x = held!(self);
        pin::pin(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Copies `source` into this tensor, broadcast to its shape and converted to its type. A copy
    /// onto itself does nothing.
    ///
    /// `source` may be on another device. The copy is then ordered by itself, as in
    /// [`to`](Self::to).
    ///
    /// # Errors
    /// The errors of every op; `Shape` if the shape of `source` does not fit into this one. Like
    /// every op, it takes no transposed view.
    #[track_caller]
    fn copy_(self, source: impl TensorOperand) -> Pending<Tensor> {
        let y = held!(self);
        match source.held() {
            Ok(x) => create::copy(y.borrow(), x.borrow()).unwrap_or_else(Refusal::pass_on),
            Err(refusal) => refused(refusal, y.borrow(), &[y.borrow()]),
        }
    }

    /// Fills the tensor with normal numbers from the device's [`Generator`]. They are drawn as f32
    /// and converted to the tensor's type, which has to be floating-point.
    ///
    /// The generator advances when the op is enqueued. The numbers come from Philox4x32-10 and
    /// Box–Muller, as in cuRAND. The same seed and calls give the same random words on every device
    /// and for any number of threads. The last bits of the numbers differ between devices, since
    /// each has its own logarithm, sine and cosine.
    #[track_caller]
    fn normal_(self, mean: f32, deviation: f32) -> Pending<Tensor> {
        let x = held!(self);
        random::normal(x.borrow(), None, mean, deviation).unwrap_or_else(Refusal::pass_on)
    }

    /// Fills the tensor like [`normal_`](Self::normal_), with numbers from `generator`.
    #[track_caller]
    fn normal_from_(self, generator: &Generator, mean: f32, deviation: f32) -> Pending<Tensor> {
        let x = held!(self);
        random::normal(x.borrow(), Some(generator), mean, deviation).unwrap_or_else(Refusal::pass_on)
    }

    /// Fills the tensor with numbers from the device's [`Generator`], uniform in (low, high] up to
    /// rounding. They are drawn as f32 and converted, as in [`normal_`](Self::normal_).
    ///
    /// The bits are the same on every device.
    #[track_caller]
    fn uniform_(self, low: f32, high: f32) -> Pending<Tensor> {
        let x = held!(self);
        random::uniform(x.borrow(), None, low, high).unwrap_or_else(Refusal::pass_on)
    }

    /// Fills the tensor like [`uniform_`](Self::uniform_), with numbers from `generator`.
    #[track_caller]
    fn uniform_from_(self, generator: &Generator, low: f32, high: f32) -> Pending<Tensor> {
        let x = held!(self);
        random::uniform(x.borrow(), Some(generator), low, high).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the transpose of a matrix, as a view.
    ///
    /// [`matmul`](Self::matmul) and [`linear`](Self::linear) accept the view. For other ops, call
    /// [`contiguous`](Self::contiguous) first. A tensor of fewer than two dimensions is returned as
    /// it is.
    #[track_caller]
    fn t(self) -> Pending<Tensor> {
        let location = Location::caller();
        self.viewed(|x| view::t(location, x))
    }

    /// Returns a view of the same elements, in the same order, with another shape.
    #[track_caller]
    fn reshape(self, shape: impl Into<Shape>) -> Pending<Tensor> {
        let location = Location::caller();
        self.viewed(|x| view::reshape(location, x, shape.into()))
    }

    /// Returns a view of indices `start` to `start + len` (exclusive) of dimension `dim`.
    ///
    /// `dim` has to be 0, since parts along other dimensions are not contiguous in memory.
    #[track_caller]
    fn narrow(self, dim: usize, start: usize, len: usize) -> Pending<Tensor> {
        let location = Location::caller();
        self.viewed(|x| view::narrow(location, x, dim, start, len))
    }

    /// Returns the same elements in row-major order: a copy if the tensor is a transposed view,
    /// otherwise the tensor itself.
    #[track_caller]
    fn contiguous(self) -> Pending<Tensor> {
        if !self.is_transposed() {
            return self.viewed(|x| Ok(x.clone()));
        }
        let x = held!(self);
        read::contiguous(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Reads the elements back to the host, in row-major order.
    ///
    /// On a CUDA device they pass through page-locked memory of the device's pool. If none is
    /// cached, another thread allocates some before the copy, or the copy waits for earlier ones.
    /// The error is `OutOfMemory` if the pinned memory that is held leaves no room, or if the
    /// machine has no memory.
    #[track_caller]
    fn to_vec<T: TensorElement>(self) -> Pending<Vec<T>> {
        let x = held!(self);
        read::to_vec(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Copies the elements into pinned memory of the host, in row-major order.
    ///
    /// This saves the last step of [`to_vec`](Self::to_vec), a copy into a vector. The result is
    /// ready for [`Tensor::from_pinned`].
    #[track_caller]
    fn to_pinned<T: TensorElement<Stored = T> + Element>(self) -> Pending<Pinned<T>> {
        let x = held!(self);
        read::to_pinned(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Reads the elements for printing. The value implements `Display`, in PyTorch's format.
    ///
    /// Numbers have four decimals, or are scientific if they differ much in size. Of a tensor of
    /// more than 1000 elements, three indices at each end of a dimension are shown. Those of the
    /// first long dimension are copied on the device, so that little of a large tensor is read.
    ///
    /// The text ends with the device if that is not `cpu:0`, with the sizes if there are no
    /// elements, and with the type if it is not implied: the default floating-point type, `i64` and
    /// `bool` are. Types have Warpline's names.
    ///
    /// # Errors
    /// The errors of [`to_vec`](Self::to_vec). Transposed views are allowed.
    ///
    /// # Examples
    /// ```
    /// # use warpline::{DType, Device, Tensor, TensorOps};
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::open("cpu")?;
    /// let x = Tensor::new([[1.0, -0.5], [2.0, f32::NAN]], (DType::F64, &device));
    /// assert_eq!(
    ///     x.display().blocking_wait()?.to_string(),
    ///     "tensor([[ 1.0000, -0.5000],\n        [ 2.0000,     nan]], dtype=f64)"
    /// );
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn display(self) -> Pending<TensorDisplay> {
        let x = held!(self);
        display::display(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Reads the only element back to the host, with the errors of [`to_vec`](Self::to_vec).
    ///
    /// The error is `Shape` if the tensor does not have exactly one element.
    #[track_caller]
    fn item<T: TensorElement>(self) -> Pending<T> {
        let x = held!(self);
        read::item(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }
}

impl<T: TensorOperand> TensorOps for T {}

/// Returns `x` with the type and device that `choose` returns, given the device of `x`.
#[track_caller]
fn moved(
    op: &'static &'static str,
    x: impl TensorOperand,
    choose: impl FnOnce(&Device) -> Result<TensorOptions>,
) -> Pending<Tensor> {
    let target = match x.looked_at() {
        Ok(x) => choose(&x.device()).map(|target| (target.is_met_by(x), target)),
        // The error of the operand is passed on below.
        Err(_) => Ok((false, TensorOptions::default())),
    };
    match target {
        Ok((true, _)) => x.viewed(|x| Ok(x.clone())),
        Ok((false, target)) => {
            let x = held!(x);
            transfer::to(op, x.borrow(), &target).unwrap_or_else(Refusal::pass_on)
        }
        Err(error) => {
            let x = held!(x);
            let error = Error::new(error.kind(), format!("{}: {error}", Site::here(op)));
            refused_call(error, &x.borrow().device()).pass_on()
        }
    }
}

#[track_caller]
fn binary(
    op: &'static elementwise::Binary,
    x: impl TensorOperand,
    y: impl OperandOrScalar,
) -> Pending<Tensor> {
    let x = held!(x);
    match y.given() {
        Ok(y) => elementwise::binary(op, x.borrow(), y.as_ref()).unwrap_or_else(Refusal::pass_on),
        Err(refusal) => refused(refusal, x.borrow(), &[]),
    }
}

#[track_caller]
fn binary_in_place(
    op: &'static elementwise::Binary,
    x: impl TensorOperand,
    y: impl OperandOrScalar,
) -> Pending<Tensor> {
    let x = held!(x);
    match y.given() {
        Ok(y) => elementwise::binary_in_place(op, x.borrow(), y.as_ref()).unwrap_or_else(Refusal::pass_on),
        Err(refusal) => refused(refusal, x.borrow(), &[x.borrow()]),
    }
}
