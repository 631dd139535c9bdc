//! Conversion between element types, y\[i\] ← x\[i\].
//!
//! The operands are bytes, and two codes, a [`TypeCode`] each, say what they hold. One kernel
//! serves all pairs of types. It reads and writes each element once.
//!
//! # Rules
//! They are the same on every device.
//! - To `bool`: 0 and −0 become false, everything else true, NaN too. From `bool`: 0 and 1.
//! - Between integers: the low bits are kept, so a value out of range wraps around.
//! - From a floating-point type to an integer: towards zero. A value out of range becomes the
//!   nearest end of the range, and NaN becomes 0. Both are undefined in C++, so PyTorch's
//!   results differ between processors.
//! - To `f32` and `f64`: to nearest, ties to even.
//! - A NaN becomes the positive quiet NaN without a payload, also where the type stays the same.
//! - To `f16` and `bf16`: from the value as `f32`, to nearest, ties to even, like PyTorch. So an
//!   `f64` or an integer of more than 24 bits is rounded twice. A value out of range becomes an
//!   infinity.

use crate::convert::rounded;
use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The element type of an operand of [`cast`](fn@cast).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum TypeCode {
    /// 32-bit floating point.
    F32 = 0,
    /// 64-bit floating point.
    F64 = 1,
    /// 16-bit floating point of IEEE 754.
    F16 = 2,
    /// The upper half of an `f32`.
    Bf16 = 3,
    /// 64-bit signed integer.
    I64 = 4,
    /// 32-bit signed integer.
    I32 = 5,
    /// 16-bit signed integer.
    I16 = 6,
    /// 8-bit signed integer.
    I8 = 7,
    /// 8-bit unsigned integer.
    U8 = 8,
    /// One byte: 0 is false, and every other value is true. `cast` writes 0 and 1.
    Bool = 9,
}

impl TypeCode {
    /// All types, by code.
    pub const ALL: [TypeCode; 10] = [
        TypeCode::F32,
        TypeCode::F64,
        TypeCode::F16,
        TypeCode::Bf16,
        TypeCode::I64,
        TypeCode::I32,
        TypeCode::I16,
        TypeCode::I8,
        TypeCode::U8,
        TypeCode::Bool,
    ];

    /// Returns the size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            TypeCode::F64 | TypeCode::I64 => 8,
            TypeCode::F32 | TypeCode::I32 => 4,
            TypeCode::F16 | TypeCode::Bf16 | TypeCode::I16 => 2,
            TypeCode::I8 | TypeCode::U8 | TypeCode::Bool => 1,
        }
    }
}

/// Returns the size of `n` elements of the type with this code, if there is such a type.
fn bytes(n: u64, code: u32) -> Option<u64> {
    n.checked_mul(TypeCode::ALL.get(code as usize)?.size() as u64)
}

warpline_runtime::kernel! {
    /// Converts `n` elements of the [`TypeCode`] `from` to elements of the `TypeCode` `to`.
    pub unsafe fn cast(n: u64, from: u32, to: u32, x: &[u8], write y: &mut [u8])
    where bytes(n, from) == Some(x.len() as u64) && bytes(n, to) == Some(y.len() as u64)
    {
        descriptor: CAST,
        ptx_from_sm_60: include_str!("../ptx/cast.ptx"),
        cpu: |_, from, to, x, y| cast_bytes(from, to, x, y),
    }
}

/// A value of any type, exactly.
#[derive(Clone, Copy)]
enum Value {
    Integer(i64),
    Float(f64),
}

/// An element type: how its values are read and written.
trait Convert: FromBytes + IntoBytes + Immutable + Copy {
    fn value(self) -> Value;
    fn of(value: Value) -> Self;
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl Convert for $ty {
            #[inline]
            fn value(self) -> Value {
                Value::Integer(self as i64)
            }

            #[inline]
            #[allow(clippy::cast_possible_truncation, reason = "rules at the top of this file")]
            fn of(value: Value) -> Self {
                match value {
                    Value::Integer(value) => value as $ty,
                    Value::Float(value) => value as $ty,
                }
            }
        }
    )*};
}
integers!(i64, i32, i16, i8, u8);

macro_rules! floats {
    ($($ty:ty, $nan:literal, $value:ident => $widened:expr, $float:ident => $from_float:expr, $integer:ident => $from_integer:expr);*) => {$(
        impl Convert for $ty {
            #[inline]
            fn value(self) -> Value {
                let $value = self;
                Value::Float($widened)
            }

            #[inline]
            fn of(value: Value) -> Self {
                match value {
                    Value::Integer($integer) => $from_integer,
                    Value::Float(value) if value.is_nan() => <$ty>::from_bits($nan),
                    Value::Float($float) => $from_float,
                }
            }
        }
    )*};
}
floats! {
    f32, 0x7fc0_0000, x => f64::from(x), f => rounded(f), i => i as f32;
    f64, 0x7ff8_0000_0000_0000, x => x, f => f, i => i as f64;
    f16, 0x7e00, x => f64::from(x), f => f16::from_f32(rounded(f)), i => f16::from_f32(i as f32);
    bf16, 0x7fc0, x => f64::from(x), f => bf16::from_f32(rounded(f)), i => bf16::from_f32(i as f32)
}

/// A byte that is false if it is 0.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
struct Bool(u8);

impl Convert for Bool {
    #[inline]
    fn value(self) -> Value {
        Value::Integer(i64::from(self.0 != 0))
    }

    #[inline]
    fn of(value: Value) -> Self {
        Bool(u8::from(match value {
            Value::Integer(value) => value != 0,
            Value::Float(value) => value != 0.0,
        }))
    }
}

/// Evaluates `$body` with the type `$ty` that has the code `$code`.
macro_rules! with_type {
    ($code:expr, $ty:ident => $body:expr) => {
        with_type!(@ $code, $ty => $body,
            F32 f32, F64 f64, F16 f16, Bf16 bf16, I64 i64, I32 i32, I16 i16, I8 i8, U8 u8, Bool Bool)
    };
    (@ $code:expr, $ty:ident => $body:expr, $($variant:ident $of:ty),*) => {
        match TypeCode::ALL[$code as usize] {
            $(TypeCode::$variant => {
                type $ty = $of;
                $body
            })*
        }
    };
}

/// Converts elements in the host's memory by the same rules.
///
/// # Panics
/// If `x` and `y` do not have the same whole number of elements of their types.
pub fn cast_on_host(from: TypeCode, to: TypeCode, x: &[u8], y: &mut [u8]) {
    let n = x.len() / from.size();
    let fits = (x.len(), y.len()) == (n * from.size(), n * to.size());
    assert!(fits, "{} bytes of {from:?} do not become {} bytes of {to:?}", x.len(), y.len());
    cast_bytes(from as u32, to as u32, x, y);
}

fn cast_bytes(from: u32, to: u32, x: &[u8], y: &mut [u8]) {
    with_type!(from, From => with_type!(to, To => cast_each::<From, To>(x, y)));
}

/// The bytes need not be aligned to the elements.
fn cast_each<X: Convert, Y: Convert>(x: &[u8], y: &mut [u8]) {
    for (x, y) in x.chunks_exact(size_of::<X>()).zip(y.chunks_exact_mut(size_of::<Y>())) {
        let converted = Y::of(X::read_from_bytes(x).expect("of one element").value());
        y.copy_from_slice(converted.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{read, run, value, written};
    use warpline_runtime::Element;

    fn converted<X: Element, Y: Element>(from: TypeCode, to: TypeCode, x: &[X]) -> Vec<Y> {
        let mut y = vec![0xa5u8; x.len() * to.size()];
        let bytes = x.as_bytes();
        let args =
            [value(x.len() as u64), value(from as u32), value(to as u32), read(bytes), written(&mut y)];
        run(&CAST, &args);
        y.chunks_exact(size_of::<Y>()).map(|y| Y::read_from_bytes(y).unwrap()).collect()
    }

    #[test]
    fn every_type_keeps_what_every_other_can_hold() {
        for from in TypeCode::ALL {
            let x: Vec<u8> = converted(TypeCode::I64, from, &[0i64, 1, 1, 0, 1]);
            for to in TypeCode::ALL {
                let mut y = vec![0u8; 5 * to.size()];
                run(&CAST, &[value(5u64), value(from as u32), value(to as u32), read(&x), written(&mut y)]);
                let back: Vec<i64> = converted_bytes(to, &y);
                assert_eq!(back, [0, 1, 1, 0, 1], "{from:?} to {to:?}");
            }
        }
    }

    fn converted_bytes(from: TypeCode, x: &[u8]) -> Vec<i64> {
        let n = x.len() / from.size();
        let mut y = vec![0u8; n * 8];
        let to = TypeCode::I64 as u32;
        run(&CAST, &[value(n as u64), value(from as u32), value(to), read(x), written(&mut y)]);
        y.chunks_exact(8).map(|y| i64::read_from_bytes(y).unwrap()).collect()
    }

    #[test]
    fn floats_become_integers_towards_zero_and_within_the_range() {
        let x = [2.9f32, -2.9, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 300.0, -1.0];
        let bytes: Vec<u8> = converted(TypeCode::F32, TypeCode::U8, &x);
        assert_eq!(bytes, [2, 0, 0, 255, 0, 255, 0]);
        let signed: Vec<i8> = converted(TypeCode::F32, TypeCode::I8, &x);
        assert_eq!(signed, [2, -2, 0, 127, -128, 127, -1]);
        let long: Vec<i64> = converted(TypeCode::F32, TypeCode::I64, &x);
        assert_eq!(long, [2, -2, 0, i64::MAX, i64::MIN, 300, -1]);
    }

    #[test]
    fn integers_wrap_around() {
        let x = [256i64, -1, i64::MAX, 1 << 40];
        let bytes: Vec<u8> = converted(TypeCode::I64, TypeCode::U8, &x);
        assert_eq!(bytes, [0, 255, 255, 0]);
        let short: Vec<i16> = converted(TypeCode::I64, TypeCode::I16, &x);
        assert_eq!(short, [256, -1, -1, 0]);
    }

    #[test]
    fn half_precision_is_rounded_from_f32() {
        // 1 + 2⁻¹¹ + 2⁻³⁰ is above the middle of two f16, and its f32 is the middle.
        let x = [1.0 + 2f64.powi(-11) + 2f64.powi(-30), 65520.0, -1e-8, f64::NAN];
        let y: Vec<f16> = converted(TypeCode::F64, TypeCode::F16, &x);
        assert_eq!((y[0], y[1]), (f16::ONE, f16::INFINITY));
        assert!(y[2] == f16::from_f32(-0.0) && y[2].is_sign_negative() && y[3].is_nan());
        let y: Vec<bf16> = converted(TypeCode::I64, TypeCode::Bf16, &[257i64, 259]);
        assert_eq!(y, [256.0, 260.0].map(bf16::from_f32));
    }

    #[test]
    fn everything_but_zero_is_true() {
        let y: Vec<u8> = converted(TypeCode::F64, TypeCode::Bool, &[0.0, -0.0, f64::NAN, 1e-300, -5.0]);
        assert_eq!(y, [0, 0, 1, 1, 1]);
        let y: Vec<f32> = converted(TypeCode::Bool, TypeCode::F32, &[0u8, 1, 7]);
        assert_eq!(y, [0.0, 1.0, 1.0]);
    }
}
