//! The operators `+`, `-`, `*` and `/` on tensors and on `Pending`s of tensors, and of a number
//! with a tensor. Each calls the method of [`TensorOps`] of that name.

use super::elementwise::{ADD, DIV, MUL, SUB, number_first};
use super::operand::OperandOrScalar;
use super::{Tensor, TensorOps};
use std::ops::{Add, Div, Mul, Neg, Sub};
use warpline_runtime::arithmetic::{Arithmetic, Negated, Operator, Receiver};
use warpline_runtime::{Pending, Refusal};

macro_rules! operators {
    ($($name:ident, $method:ident);*) => {$(
        impl<R: OperandOrScalar> $name<R> for &Tensor {
            type Output = Pending<Tensor>;

            #[track_caller]
            fn $method(self, other: R) -> Pending<Tensor> {
                TensorOps::$method(self, other)
            }
        }

        impl<R: OperandOrScalar> $name<R> for Tensor {
            type Output = Pending<Tensor>;

            #[track_caller]
            fn $method(self, other: R) -> Pending<Tensor> {
                TensorOps::$method(&self, other)
            }
        }
    )*};
}
operators!(Add, add; Sub, sub; Mul, mul; Div, div);

impl<R: OperandOrScalar> Arithmetic<R> for Tensor {
    #[track_caller]
    fn arithmetic(operator: Operator, this: Receiver<'_, Self>, other: R) -> Pending<Tensor> {
        match (operator, this) {
            (Operator::Add, Receiver::Owned(this)) => TensorOps::add(this, other),
            (Operator::Add, Receiver::Borrowed(this)) => TensorOps::add(this, other),
            (Operator::Sub, Receiver::Owned(this)) => TensorOps::sub(this, other),
            (Operator::Sub, Receiver::Borrowed(this)) => TensorOps::sub(this, other),
            (Operator::Mul, Receiver::Owned(this)) => TensorOps::mul(this, other),
            (Operator::Mul, Receiver::Borrowed(this)) => TensorOps::mul(this, other),
            (Operator::Div, Receiver::Owned(this)) => TensorOps::div(this, other),
            (Operator::Div, Receiver::Borrowed(this)) => TensorOps::div(this, other),
        }
    }
}

impl Negated for Tensor {
    #[track_caller]
    fn negated(this: Receiver<'_, Self>) -> Pending<Tensor> {
        match this {
            Receiver::Owned(this) => TensorOps::neg(this),
            Receiver::Borrowed(this) => TensorOps::neg(this),
        }
    }
}

impl Neg for &Tensor {
    type Output = Pending<Tensor>;

    #[track_caller]
    fn neg(self) -> Pending<Tensor> {
        TensorOps::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Pending<Tensor>;

    #[track_caller]
    fn neg(self) -> Pending<Tensor> {
        TensorOps::neg(&self)
    }
}

/// Defines the operators between a number and a tensor.
macro_rules! numbers {
    ($($number:ty),*) => {$(
        numbers!(@ $number, Add add ADD, Sub sub SUB, Mul mul MUL, Div div DIV);
    )*};
    (@ $number:ty, $($name:ident $method:ident $op:ident),*) => {$(
        impl $name<&Tensor> for $number {
            type Output = Pending<Tensor>;

            #[track_caller]
            fn $method(self, other: &Tensor) -> Pending<Tensor> {
                number_first(&$op, self.into(), other).unwrap_or_else(Refusal::pass_on)
            }
        }
    )*};
}
// One type of each kind, so that the type of a literal is known: `1.0 - &x`.
numbers!(f64, i64);
