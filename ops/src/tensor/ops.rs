//! The trait with every tensor op as a method, on tensors and on `Pending`s of tensors.

use super::call::refused_operand;
use super::elementwise::{self, ADD, MUL, SUB};
use super::operand::{OperandOrScalar, TensorOperand};
use super::{Shape, Tensor, TensorElement, create, loss, matmul, random, read, reduce, sgd, view};
use std::borrow::Borrow;
use std::panic::Location;
use warpline_runtime::{Generator, Pending, Pinned, Refusal};

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

/// Returns an op that was refused because of its second or a later operand.
///
/// `first` is the first operand. The memory that the op would have written is marked.
#[cold]
fn refused<T>(refusal: Refusal, first: &Tensor, in_place: &[&Tensor]) -> Pending<T> {
    refused_operand(refusal, &first.device(), in_place).pass_on()
}

/// The ops on tensors, for `&Tensor`, `&Pending<Tensor>` and `Pending<Tensor>`, which is consumed.
///
/// Each op is enqueued immediately, on the current stream of its first operand's device. Operands
/// are given in the same forms as the receiver.
///
/// ```
/// # use warpline_ops::{Tensor, TensorOps};
/// # use warpline_runtime::Device;
/// # fn main() -> warpline_runtime::Result<()> {
/// # let device = Device::best()?;
/// let x = Tensor::from_host(&[1.0, -2.0, 3.0, -4.0], [2, 2], &device).queued()?;
/// let y = x.matmul(&x.t()).sub(1.0).relu(); // no `?` in between
/// let z = (&y).mul(&y).queued()?; // a reference, to keep `y`
/// assert_eq!(y.to_vec::<f32>().blocking_wait()?, [4.0, 10.0, 10.0, 24.0]);
/// assert_eq!(z.sum().item::<f32>().blocking_wait()?, 792.0);
/// # Ok(())
/// # }
/// ```
///
/// Names and formulas are PyTorch's. An op whose name ends in an underscore works in place and
/// returns the tensor that it wrote.
///
/// # Ordering
/// An earlier use of an operand on another stream has to be ordered before the op, as for every op.
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
/// If an op in place is refused for another reason than its arguments, ops on its stream that read
/// the tensor fail too: see [`Pending`].
pub trait TensorOps: TensorOperand {
    /// Returns the sum of this tensor and `other`; i64 wraps around.
    ///
    /// `other` is a number, or has the shape of this tensor or of its last dimensions. A row \[n\]
    /// is added to each row of \[m, n\], and one element to all elements.
    #[track_caller]
    fn add(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary(&ADD, self, other)
    }

    /// Returns this tensor minus `other`, shaped as for [`add`](Self::add).
    #[track_caller]
    fn sub(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary(&SUB, self, other)
    }

    /// Returns the product with `other`, element by element, shaped as for [`add`](Self::add).
    #[track_caller]
    fn mul(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary(&MUL, self, other)
    }

    /// Adds `other`, shaped as for [`add`](Self::add), in place.
    #[track_caller]
    fn add_(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary_in_place(&ADD, self, other)
    }

    /// Subtracts `other`, shaped as for [`add`](Self::add), in place.
    #[track_caller]
    fn sub_(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary_in_place(&SUB, self, other)
    }

    /// Multiplies by `other`, shaped as for [`add`](Self::add), in place.
    #[track_caller]
    fn mul_(self, other: impl OperandOrScalar) -> Pending<Tensor> {
        binary_in_place(&MUL, self, other)
    }

    /// Returns max(x, 0) of f32; NaN stays NaN.
    #[track_caller]
    fn relu(self) -> Pending<Tensor> {
        let x = held!(self);
        elementwise::relu(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the gradient before [`relu`](Self::relu), from the gradient after it and from its
    /// output.
    ///
    /// This tensor is the gradient after it. The result is this tensor where `output` > 0 or NaN,
    /// else 0.
    #[track_caller]
    fn relu_backward(self, output: impl TensorOperand) -> Pending<Tensor> {
        let grad = held!(self);
        let output = held!(output, beside grad);
        elementwise::relu_backward(grad.borrow(), output.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the product of two f32 matrices, \[m, k\] and \[k, n\] to \[m, n\].
    ///
    /// Either may be a transposed view. Sums are f32. Their order does not depend on the number of
    /// threads, but may depend on the processor. On a GPU cuBLAS computes the product if it is
    /// found, and adds in an order of its own: see [`libraries`](warpline_kernels::libraries).
    #[track_caller]
    fn matmul(self, other: impl TensorOperand) -> Pending<Tensor> {
        let a = held!(self);
        let b = held!(other, beside a);
        matmul::matmul(a.borrow(), b.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Applies a fully connected layer, x·wᵀ + bias, in one op.
    ///
    /// It takes inputs \[m, k\], a weight \[n, k\] and a bias \[n\], as `torch.nn.Linear` does, to
    /// \[m, n\]. The weight may be a transposed view of a \[k, n\] matrix.
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
    /// Of several largest elements, the first counts. The first NaN is larger than everything.
    #[track_caller]
    fn argmax(self) -> Pending<Tensor> {
        let x = held!(self);
        reduce::argmax(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the number of equal elements of two i64 tensors of one shape, an i64 scalar.
    ///
    /// It counts right answers, for instance.
    #[track_caller]
    fn count_equal(self, other: impl TensorOperand) -> Pending<Tensor> {
        let x = held!(self);
        let y = held!(other, beside x);
        reduce::count_equal(x.borrow(), y.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the mean cross entropy of softmax(this) with `labels`, and its gradient.
    ///
    /// The mean is over the rows, and the gradient is with respect to this tensor. f32 logits \[m,
    /// n\] and i64 labels \[m\] give a scalar and \[m, n\]. One op computes both.
    ///
    /// The device cannot refuse a label: a label outside 0..n makes the loss, and its row of the
    /// gradient, NaN. There is no label that is ignored.
    #[track_caller]
    fn cross_entropy(self, labels: impl TensorOperand) -> Pending<(Tensor, Tensor)> {
        let logits = held!(self);
        let labels = held!(labels, beside logits);
        loss::cross_entropy(logits.borrow(), labels.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Performs a step of gradient descent with momentum, in place.
    ///
    /// The step is velocity ← momentum·velocity + grad, then this ← this − lr·velocity, as in
    /// `torch.optim.SGD`. All three are f32 and of one shape. `velocity` starts at 0.
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
            (param, grad, velocity) => refused_step(param, grad.err(), velocity),
        }
    }

    /// Sets every element to `value`, which is of the tensor's type.
    #[track_caller]
    fn fill_<T: TensorElement>(self, value: T) -> Pending<Tensor> {
        let x = held!(self);
        create::fill_with(&"fill_", x.borrow(), value).unwrap_or_else(Refusal::pass_on)
    }

    /// Sets every element to 0.
    #[track_caller]
    fn zero_(self) -> Pending<Tensor> {
        let x = held!(self);
        create::zero(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Copies `source`, of the same shape and type, into this tensor. A copy onto itself does
    /// nothing.
    #[track_caller]
    fn copy_(self, source: impl TensorOperand) -> Pending<Tensor> {
        let y = held!(self);
        match source.held() {
            Ok(x) => create::copy(y.borrow(), x.borrow()).unwrap_or_else(Refusal::pass_on),
            Err(refusal) => refused(refusal, y.borrow(), &[y.borrow()]),
        }
    }

    /// Fills the tensor with normal f32 numbers from the device's [`Generator`].
    ///
    /// The generator advances when the op is enqueued. The numbers come from Philox4x32-10 and
    /// Box–Muller, as in cuRAND. The same seed and calls give the same words on every device and
    /// for any number of threads. Each device has its own logarithm and sine.
    #[track_caller]
    fn normal_(self, mean: f32, deviation: f32) -> Pending<Tensor> {
        let x = held!(self);
        random::normal(x.borrow(), None, mean, deviation).unwrap_or_else(Refusal::pass_on)
    }

    /// Fills the tensor like [`normal_`](Self::normal_), from your own generator.
    #[track_caller]
    fn normal_from_(self, generator: &Generator, mean: f32, deviation: f32) -> Pending<Tensor> {
        let x = held!(self);
        random::normal(x.borrow(), Some(generator), mean, deviation).unwrap_or_else(Refusal::pass_on)
    }

    /// Fills the tensor with f32 numbers from the device's [`Generator`], uniform in (low, high] up
    /// to rounding.
    ///
    /// The bits are the same on every device.
    #[track_caller]
    fn uniform_(self, low: f32, high: f32) -> Pending<Tensor> {
        let x = held!(self);
        random::uniform(x.borrow(), None, low, high).unwrap_or_else(Refusal::pass_on)
    }

    /// Fills the tensor like [`uniform_`](Self::uniform_), from your own generator.
    #[track_caller]
    fn uniform_from_(self, generator: &Generator, low: f32, high: f32) -> Pending<Tensor> {
        let x = held!(self);
        random::uniform(x.borrow(), Some(generator), low, high).unwrap_or_else(Refusal::pass_on)
    }

    /// Returns the matrix with rows and columns exchanged: a view.
    ///
    /// [`matmul`](Self::matmul) and [`linear`](Self::linear) take the view as it is, and every
    /// other op after [`contiguous`](Self::contiguous). A tensor of fewer than two dimensions is
    /// returned as it is.
    #[track_caller]
    fn t(self) -> Pending<Tensor> {
        let location = Location::caller();
        self.viewed(|x| view::t(location, x))
    }

    /// Returns the same elements in the same order, with another shape: a view.
    #[track_caller]
    fn reshape(self, shape: impl Into<Shape>) -> Pending<Tensor> {
        let location = Location::caller();
        self.viewed(|x| view::reshape(location, x, shape.into()))
    }

    /// Returns the part of `len` along dimension `dim` from `start` on: a view.
    ///
    /// `dim` has to be 0, since other parts are not contiguous in memory.
    #[track_caller]
    fn narrow(self, dim: usize, start: usize, len: usize) -> Pending<Tensor> {
        let location = Location::caller();
        self.viewed(|x| view::narrow(location, x, dim, start, len))
    }

    /// Returns the same elements in row-major order: a copy of a transposed view, else the tensor
    /// itself.
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
    /// cached, another thread allocates some before the copy. The error is `OutOfMemory` if the
    /// pool's cap (`RuntimeBuilder::pinned_cap`) or the machine has no room.
    #[track_caller]
    fn to_vec<T: TensorElement>(self) -> Pending<Vec<T>> {
        let x = held!(self);
        read::to_vec(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Copies the elements into pinned memory of the host, in row-major order.
    ///
    /// This saves the copy into a vector that [`to_vec`](Self::to_vec) ends with. The result is
    /// ready for [`Tensor::from_pinned`].
    #[track_caller]
    fn to_pinned<T: TensorElement>(self) -> Pending<Pinned<T>> {
        let x = held!(self);
        read::to_pinned(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }

    /// Reads the only element back to the host, as [`to_vec`](Self::to_vec) does and with its
    /// errors.
    ///
    /// The error is `Shape` if the tensor does not have exactly one element.
    #[track_caller]
    fn item<T: TensorElement>(self) -> Pending<T> {
        let x = held!(self);
        read::item(x.borrow()).unwrap_or_else(Refusal::pass_on)
    }
}

impl<T: TensorOperand> TensorOps for T {}

/// Returns a step that was refused because of its parameter, its gradient or its velocity.
///
/// Of the tensors that it would have written, those that exist are marked.
#[cold]
fn refused_step(
    param: Result<impl Borrow<Tensor>, Refusal>,
    grad: Option<Refusal>,
    velocity: Result<impl Borrow<Tensor>, Refusal>,
) -> Pending<Tensor> {
    fn apart<H>(held: Result<H, Refusal>) -> (Option<H>, Option<Refusal>) {
        match held {
            Ok(held) => (Some(held), None),
            Err(refusal) => (None, Some(refusal)),
        }
    }
    let ((param, first), (velocity, last)) = (apart(param), apart(velocity));
    let mut refusals = [first, grad, last].into_iter().flatten();
    let refusal = refusals.next().expect("one of the three was refused");
    // The first error is passed on. The others are dropped like `Pending`s, so that their streams
    // report them.
    refusals.for_each(|other| drop(other.pass_on::<()>()));
    let param = param.as_ref().map(Borrow::borrow);
    let velocity = velocity.as_ref().map(Borrow::borrow);
    let written: Vec<&Tensor> = param.into_iter().chain(velocity).collect();
    match written.first() {
        Some(first) => refused(refusal, first, &written),
        None => refusal.pass_on(),
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
