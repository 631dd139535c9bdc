//! The operators `+`, `-`, `*` and `/` on `Pending`s, for values that define them.

use super::Pending;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A value whose `Pending`s take the operators `+`, `-`, `*` and `/` with an `R`.
#[doc(hidden)]
pub trait Arithmetic<R>: Sized {
    fn arithmetic(operator: Operator, this: Receiver<'_, Self>, other: R) -> Pending<Self>;
}

/// A value whose `Pending`s take the unary minus.
#[doc(hidden)]
pub trait Negated: Sized {
    fn negated(this: Receiver<'_, Self>) -> Pending<Self>;
}

#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Add,
    Sub,
    Mul,
    Div,
}

/// The left operand.
#[doc(hidden)]
#[derive(Debug)]
pub enum Receiver<'a, T> {
    Owned(Pending<T>),
    Borrowed(&'a Pending<T>),
}

macro_rules! operators {
    ($($name:ident, $method:ident);*) => {$(
        impl<T: Arithmetic<R>, R> $name<R> for Pending<T> {
            type Output = Pending<T>;

            #[track_caller]
            #[inline]
            fn $method(self, other: R) -> Pending<T> {
                T::arithmetic(Operator::$name, Receiver::Owned(self), other)
            }
        }

        impl<T: Arithmetic<R>, R> $name<R> for &Pending<T> {
            type Output = Pending<T>;

            #[track_caller]
            #[inline]
            fn $method(self, other: R) -> Pending<T> {
                T::arithmetic(Operator::$name, Receiver::Borrowed(self), other)
            }
        }
    )*};
}
operators!(Add, add; Sub, sub; Mul, mul; Div, div);

impl<T: Negated> Neg for Pending<T> {
    type Output = Pending<T>;

    #[track_caller]
    fn neg(self) -> Pending<T> {
        T::negated(Receiver::Owned(self))
    }
}

impl<T: Negated> Neg for &Pending<T> {
    type Output = Pending<T>;

    #[track_caller]
    fn neg(self) -> Pending<T> {
        T::negated(Receiver::Borrowed(self))
    }
}
