//! The receivers and operands of tensor ops: tensors, `Pending`s of tensors, and scalars.

use super::call::refused_call;
use super::{Scalar, Tensor};
use std::borrow::Borrow;
use warpline_runtime::{Pending, Refusal, Result};

/// A tensor operand: a `&Tensor`, a `&Pending<Tensor>`, or a `Pending<Tensor>`, which is consumed.
///
/// The host does not wait for a `Pending` operand: the op uses the tensor that the pending call
/// will have written. If that call was refused, the op is refused with the same error.
pub trait TensorOperand: Sized {
    /// The tensor, owned or borrowed.
    #[doc(hidden)]
    type Held: Borrow<Tensor>;

    #[doc(hidden)]
    fn held(self) -> Result<Self::Held, Refusal>;

    #[doc(hidden)]
    fn is_transposed(&self) -> bool;

    /// The tensor, unless it was refused. The `Pending` stays unobserved.
    #[doc(hidden)]
    fn looked_at(&self) -> Result<&Tensor, Refusal>;

    /// Returns another tensor of the same memory, which is ready when this one is.
    #[doc(hidden)]
    fn viewed(self, view: impl FnOnce(&Tensor) -> Result<Tensor>) -> Pending<Tensor>;
}

impl<'a> TensorOperand for &'a Tensor {
    type Held = &'a Tensor;

    #[inline]
    fn held(self) -> Result<&'a Tensor, Refusal> {
        Ok(self)
    }

    fn is_transposed(&self) -> bool {
        self.transposed
    }

    fn looked_at(&self) -> Result<&Tensor, Refusal> {
        Ok(self)
    }

    fn viewed(self, view: impl FnOnce(&Tensor) -> Result<Tensor>) -> Pending<Tensor> {
        looked_at(self, view).map_or_else(Refusal::pass_on, Pending::ready)
    }
}

/// Returns what `view` makes of `x`. A refusal is that of a call on the current stream, like an
/// op's.
fn looked_at(x: &Tensor, view: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor, Refusal> {
    view(x).map_err(|error| refused_call(error, &x.device()))
}

impl<'a> TensorOperand for &'a Pending<Tensor> {
    type Held = &'a Tensor;

    #[inline]
    fn held(self) -> Result<&'a Tensor, Refusal> {
        self.as_operand()
    }

    fn is_transposed(&self) -> bool {
        self.as_operand().is_ok_and(|tensor| tensor.transposed)
    }

    fn looked_at(&self) -> Result<&Tensor, Refusal> {
        self.as_operand()
    }

    fn viewed(self, view: impl FnOnce(&Tensor) -> Result<Tensor>) -> Pending<Tensor> {
        self.view_of(|x| looked_at(x, view))
    }
}

impl TensorOperand for Pending<Tensor> {
    type Held = Tensor;

    #[inline]
    fn held(self) -> Result<Tensor, Refusal> {
        self.into_operand()
    }

    fn is_transposed(&self) -> bool {
        (&self).is_transposed()
    }

    fn looked_at(&self) -> Result<&Tensor, Refusal> {
        self.as_operand()
    }

    fn viewed(self, view: impl FnOnce(&Tensor) -> Result<Tensor>) -> Pending<Tensor> {
        self.view(|x| looked_at(x, view))
    }
}

/// A second operand: a [`TensorOperand`], or one number for all elements.
pub trait OperandOrScalar: Sized {
    #[doc(hidden)]
    type Held: Borrow<Tensor>;

    #[doc(hidden)]
    fn given(self) -> Result<Given<Self::Held>, Refusal>;
}

/// A second operand in the form in which it was given.
#[doc(hidden)]
pub enum Given<H> {
    Tensor(H),
    Scalar(Scalar),
}

impl<H: Borrow<Tensor>> Given<H> {
    #[inline]
    pub(super) fn as_ref(&self) -> Given<&Tensor> {
        match self {
            Given::Tensor(held) => Given::Tensor(held.borrow()),
            Given::Scalar(scalar) => Given::Scalar(*scalar),
        }
    }
}

macro_rules! operands {
    ($($operand:ty),*) => {$(
        impl<'a> OperandOrScalar for $operand {
            type Held = <$operand as TensorOperand>::Held;

            #[inline]
            fn given(self) -> Result<Given<Self::Held>, Refusal> {
                self.held().map(Given::Tensor)
            }
        }
    )*};
}
operands!(&'a Tensor, &'a Pending<Tensor>);

impl OperandOrScalar for Pending<Tensor> {
    type Held = Tensor;

    #[inline]
    fn given(self) -> Result<Given<Tensor>, Refusal> {
        self.held().map(Given::Tensor)
    }
}

macro_rules! scalars {
    ($($ty:ty),*) => {$(
        impl OperandOrScalar for $ty {
            type Held = Tensor;

            #[inline]
            fn given(self) -> Result<Given<Tensor>, Refusal> {
                Ok(Given::Scalar(self.into()))
            }
        }
    )*};
}
scalars!(f32, f64, half::f16, half::bf16, i64, i32, i16, i8, u8, bool, Scalar);
