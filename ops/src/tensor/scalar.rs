//! The numbers that ops take beside tensors.

use super::DType;
use super::dtype::Kind;
use half::{bf16, f16};

/// A number or truth value given to an op, like a number of Python in PyTorch.
///
/// It has no type of its own beside its kind: in an op with an `f32` tensor, a `Float` is an `f32`.
/// Alone, in [`Tensor::full`](super::Tensor::full) for instance, a `Float` is of the
/// [default type](DType::default_float), and an `Int` is `I64`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A floating-point number.
    Float(f64),
    /// An integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

impl Scalar {
    /// Returns the type of a tensor made of it.
    pub(super) fn dtype(self) -> DType {
        match self {
            Scalar::Float(_) => DType::default_float(),
            Scalar::Int(_) => DType::I64,
            Scalar::Bool(_) => DType::Bool,
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Scalar::Float(_) => Kind::Float,
            Scalar::Int(_) => Kind::Integer,
            Scalar::Bool(_) => Kind::Bool,
        }
    }

    pub(super) fn to_f64(self) -> f64 {
        match self {
            Scalar::Float(value) => value,
            Scalar::Int(value) => value as f64,
            Scalar::Bool(value) => f64::from(u8::from(value)),
        }
    }

    pub(super) fn to_f32(self) -> f32 {
        match self {
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
            Scalar::Float(value) => value as f32,
            Scalar::Int(value) => value as f32,
            Scalar::Bool(value) => f32::from(u8::from(value)),
        }
    }

    /// Returns it as an integer, if it is one: `2.0` is, `2.5` is not.
    pub(super) fn to_i64(self) -> Option<i64> {
        match self {
            // Both bounds are floats: −2⁶³, and 2⁶³, which is not an i64.
            Scalar::Float(value) => {
                let is_integer = value.fract() == 0.0 && (-(2f64.powi(63))..2f64.powi(63)).contains(&value);
                #[expect(clippy::cast_possible_truncation, reason = "an integer within the bounds")]
                is_integer.then_some(value as i64)
            }
            Scalar::Int(value) => Some(value),
            Scalar::Bool(value) => Some(i64::from(value)),
        }
    }
}

macro_rules! scalars {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for Scalar {
            #[inline]
            fn from(value: $ty) -> Self {
                Scalar::$variant(value.into())
            }
        }
    )*};
}
scalars! {
    f32 => Float, f64 => Float, f16 => Float, bf16 => Float,
    i64 => Int, i32 => Int, i16 => Int, i8 => Int, u8 => Int, u16 => Int, u32 => Int,
    bool => Bool
}

#[cfg(test)]
mod tests {
    use super::Scalar;

    #[test]
    fn only_whole_numbers_in_range_are_integers() {
        assert_eq!(Scalar::Float(-3.0).to_i64(), Some(-3));
        assert_eq!(Scalar::Float(2.5).to_i64(), None);
        assert_eq!(Scalar::Float(f64::NAN).to_i64(), None);
        assert_eq!(Scalar::Float(-(2f64.powi(63))).to_i64(), Some(i64::MIN));
        assert_eq!(Scalar::Float(2f64.powi(63)).to_i64(), None);
        assert_eq!(Scalar::from(true).to_i64(), Some(1));
    }
}
