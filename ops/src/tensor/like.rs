//! The functions that create tensors like another one.
//!
//! They look at its type, device and shape alone. So they need no edge from the stream that writes
//! it, and the order check does not count them as uses.

use super::{NestedArray, Scalar, Shape, Tensor, TensorOperand};
use std::borrow::Borrow;
use warpline_runtime::{Pending, Refusal};

/// Constructors of tensors of the type and on the device of another tensor.
///
/// # Errors
/// The errors of the constructors that take options.
impl Tensor {
    /// Creates a tensor with unspecified contents, of the type and on the device of this one.
    #[track_caller]
    pub fn new_empty(&self, shape: impl Into<Shape>) -> Pending<Tensor> {
        Tensor::empty(shape, self)
    }

    /// Creates a tensor of zeros, of the type and on the device of this one.
    #[track_caller]
    pub fn new_zeros(&self, shape: impl Into<Shape>) -> Pending<Tensor> {
        Tensor::zeros(shape, self)
    }

    /// Creates a tensor of ones, of the type and on the device of this one.
    #[track_caller]
    pub fn new_ones(&self, shape: impl Into<Shape>) -> Pending<Tensor> {
        Tensor::ones(shape, self)
    }

    /// Creates a tensor whose elements are all `value`, of the type and on the device of this one.
    #[track_caller]
    pub fn new_full(&self, shape: impl Into<Shape>, value: impl Into<Scalar>) -> Pending<Tensor> {
        Tensor::full(shape, value, self)
    }

    /// Creates a tensor of the numbers in `data`, of the type and on the device of this one.
    ///
    /// ```
    /// # fn main() -> warpline::Result<()> {
    /// # let device = warpline::Device::best()?;
    /// let x = warpline::Tensor::new([1, 2], &device).queued()?;
    /// let y = x.new_tensor([[1, 2, 3]]).queued()?;
    /// assert_eq!((y.shape(), y.dtype()), (&[1, 3][..], warpline::DType::I64));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new_tensor(&self, data: impl NestedArray) -> Pending<Tensor> {
        Tensor::new(data, self)
    }

    /// Creates a tensor with unspecified contents, of the shape and type and on the device of `x`.
    #[track_caller]
    pub fn empty_like(x: impl TensorOperand) -> Pending<Tensor> {
        like(x, |x| x.new_empty(x.shape()))
    }

    /// Creates a tensor of zeros, of the shape and type and on the device of `x`.
    #[track_caller]
    pub fn zeros_like(x: impl TensorOperand) -> Pending<Tensor> {
        like(x, |x| x.new_zeros(x.shape()))
    }

    /// Creates a tensor of ones, of the shape and type and on the device of `x`.
    #[track_caller]
    pub fn ones_like(x: impl TensorOperand) -> Pending<Tensor> {
        like(x, |x| x.new_ones(x.shape()))
    }

    /// Creates a tensor whose elements are all `value`, of the shape and type and on the device of
    /// `x`.
    #[track_caller]
    pub fn full_like(x: impl TensorOperand, value: impl Into<Scalar>) -> Pending<Tensor> {
        like(x, |x| x.new_full(x.shape(), value))
    }

    /// Creates a tensor of uniform numbers, of the shape and type and on the device of `x`, like
    /// [`rand`](Self::rand).
    #[track_caller]
    pub fn rand_like(x: impl TensorOperand) -> Pending<Tensor> {
        like(x, |x| Tensor::rand(x.shape(), x))
    }

    /// Creates a tensor of normal numbers, of the shape and type and on the device of `x`, like
    /// [`randn`](Self::randn).
    #[track_caller]
    pub fn randn_like(x: impl TensorOperand) -> Pending<Tensor> {
        like(x, |x| Tensor::randn(x.shape(), x))
    }
}

#[track_caller]
fn like(x: impl TensorOperand, make: impl FnOnce(&Tensor) -> Pending<Tensor>) -> Pending<Tensor> {
    match x.held() {
        Ok(x) => make(x.borrow()),
        Err(refusal) => Refusal::pass_on(refusal),
    }
}
