//! Conversions between integers and floating-point numbers: PTX ISA 9.7.9.21, cvt.
//!
//! Sources of `.f16` and `.bf16` are widened first: [`Half::widen`] is exact. Conversions between
//! integers without `.sat` are Rust's `as`, which cuts or extends like PTX.
//!
//! `.ftz` applies to sources and results of `.f32` only. The caller flushes them with
//! [`flush_f32`](super::float::flush_f32).

use super::Rounding;
use super::float::{NAN_F32, canonical_f32};
use super::half::Half;
use super::integer::{Integer, low_bits_of_integer};
use super::rounding::{above_f64, below_f64, narrow_f64};

/// The integers that `cvt` converts from and to.
pub(crate) trait AnyInteger: Copy {
    /// The result for a NaN of `.f32`, `.f16` and `.bf16`: 0, or if there are 64 bits the integer
    /// whose highest bit alone is 1.
    const OF_NAN_F32: Self;

    /// The result for a NaN of `.f64`: the integer whose highest bit alone is 1.
    const OF_NAN_F64: Self;

    /// Returns `x` as an integer. `x` is one, infinite or NaN. NaN gives `of_nan`.
    ///
    /// Values out of range become the nearest integer.
    fn from_integral(x: f64, of_nan: Self) -> Self;

    /// Returns the nearest `f32`, ties to even.
    fn nearest_f32(self) -> f32;

    /// Returns the integer rounded to odd, with at least 42 bits.
    fn odd_f64(self) -> f64;

    /// Returns the integer as an `f64`.
    fn to_f64(self, round: Rounding) -> f64;
}

macro_rules! impl_narrow {
    ($($integer:ty),*) => {$(
        impl AnyInteger for $integer {
            const OF_NAN_F32: Self = 0;
            const OF_NAN_F64: Self = 1 << (Self::BITS - 1);

            #[inline(always)]
            fn from_integral(x: f64, of_nan: Self) -> Self {
                let (min, max) = (f64::from(Self::MIN), f64::from(Self::MAX));
                let x = if x.is_nan() { of_nan.into() } else { x };
                let x = if x > min { x } else { min };
                let x = if x < max { x } else { max };
                low_bits_of_integer(x) as Self
            }

            #[inline(always)]
            fn nearest_f32(self) -> f32 {
                self as f32
            }

            #[inline(always)]
            fn odd_f64(self) -> f64 {
                self.into()
            }

            #[inline(always)]
            fn to_f64(self, _: Rounding) -> f64 {
                self.into()
            }
        }
    )*};
}

impl_narrow!(u8, u16, u32, i8, i16, i32);

macro_rules! impl_wide {
    ($integer:ty, $magnitude:ident, $from_integral:ident) => {
        impl AnyInteger for $integer {
            const OF_NAN_F32: Self = 1 << 63;
            const OF_NAN_F64: Self = 1 << 63;

            #[inline(always)]
            fn from_integral(x: f64, of_nan: Self) -> Self {
                let result = $from_integral(x);
                if x.is_nan() { of_nan } else { result }
            }

            #[inline(always)]
            fn nearest_f32(self) -> f32 {
                self as f32
            }

            #[inline(always)]
            fn odd_f64(self) -> f64 {
                let magnitude = $magnitude(self);
                // The shifted integer has at most 53 bits, and its last bit stands for those lost.
                let shifted = magnitude >> 11 | u64::from(magnitude & 0x7ff != 0);
                let odd = if magnitude >> 53 == 0 { magnitude as f64 } else { shifted as f64 * 2048.0 };
                if i128::from(self) < 0 { -odd } else { odd }
            }

            #[inline(always)]
            fn to_f64(self, round: Rounding) -> f64 {
                let nearest = self as f64;
                let (exact, back) = (i128::from(self), nearest as i128);
                match round {
                    Rounding::Down if back > exact => below_f64(nearest),
                    Rounding::Up if back < exact => above_f64(nearest),
                    Rounding::Zero if back > exact && exact > 0 => below_f64(nearest),
                    Rounding::Zero if back < exact && exact < 0 => above_f64(nearest),
                    _ => nearest,
                }
            }
        }
    };
}

impl_wide!(u64, unsigned_magnitude, unsigned_from_integral);
impl_wide!(i64, signed_magnitude, signed_from_integral);

/// Returns the magnitude of an integer of less than 2^64.
#[inline(always)]
fn magnitude_of_integral(x: f64) -> u64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as u32 & 0x7ff;
    let mantissa = bits & ((1 << 52) - 1) | 1 << 52;
    // At 1075 the last bit of the mantissa is 1. An integer of a lower exponent has zeros below 1.
    if exponent > 1075 {
        u64::shl(mantissa, exponent.wrapping_sub(1075))
    } else {
        u64::shr(mantissa, 1075u32.wrapping_sub(exponent))
    }
}

#[inline(always)]
fn unsigned_from_integral(x: f64) -> u64 {
    let positive = if x > 0.0 { magnitude_of_integral(x) } else { 0 };
    if x < TWO_TO_64 { positive } else { u64::MAX }
}

#[inline(always)]
fn signed_from_integral(x: f64) -> i64 {
    let magnitude = magnitude_of_integral(x) as i64;
    let integer = if x < 0.0 { magnitude.wrapping_neg() } else { magnitude };
    let limit = if x < 0.0 { i64::MIN } else { i64::MAX };
    if x.abs() < TWO_TO_64 / 2.0 { integer } else { limit }
}

const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;

#[inline(always)]
fn unsigned_magnitude(x: u64) -> u64 {
    x
}

#[inline(always)]
fn signed_magnitude(x: i64) -> u64 {
    x.unsigned_abs()
}

/// Rounds to an integer and converts to it. PTX ISA 9.7.9.21, cvt.irnd from `.f32`, and from `.f16`
/// and `.bf16` after [`Half::widen`].
///
/// Values out of range become the nearest integer, with or without `.sat`. NaN becomes 0, or the
/// integer whose highest bit alone is 1 if there are 64 bits.
#[inline(always)]
pub(crate) fn f32_to_integer<T: AnyInteger>(x: f32, round: Rounding) -> T {
    let integral = match round {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    };
    T::from_integral(integral.into(), T::OF_NAN_F32)
}

/// Rounds to an integer and converts to it. PTX ISA 9.7.9.21, cvt.irnd from `.f64`.
///
/// Values out of range become the nearest integer, with or without `.sat`. NaN becomes the integer
/// whose highest bit alone is 1.
#[inline(always)]
pub(crate) fn f64_to_integer<T: AnyInteger>(x: f64, round: Rounding) -> T {
    let integral = match round {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    };
    T::from_integral(integral, T::OF_NAN_F64)
}

/// Rounds to an integer in the same format. PTX ISA 9.7.9.21, cvt.irnd.f32.f32.
#[inline(always)]
pub(crate) fn integral_f32(x: f32, round: Rounding) -> f32 {
    canonical_f32(match round {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    })
}

/// Rounds to an integer in the same format. PTX ISA 9.7.9.21, cvt.irnd.f64.f64. A NaN is quieted.
#[inline(always)]
pub(crate) fn integral_f64(x: f64, round: Rounding) -> f64 {
    let integral = match round {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    };
    if x.is_nan() { f64::from_bits(x.to_bits() | 1 << 51) } else { integral }
}

/// Rounds to an integer in the same format. PTX ISA 9.7.9.21, cvt.irnd.f16.f16 and
/// cvt.irnd.bf16.bf16.
#[inline(always)]
pub(crate) fn integral_half<H: Half>(x: u16, round: Rounding) -> u16 {
    // An integer next to a number of few bits has no more bits: the second conversion is exact.
    H::narrow(integral_f32(H::widen(x), round), Rounding::Nearest)
}

/// Converts an integer to `f32`. PTX ISA 9.7.9.21, cvt.frnd.f32.
#[inline(always)]
pub(crate) fn integer_to_f32<T: AnyInteger>(x: T, round: Rounding) -> f32 {
    match round {
        Rounding::Nearest => x.nearest_f32(),
        _ => narrow_f64(x.odd_f64(), round),
    }
}

/// Converts an integer to `f64`. PTX ISA 9.7.9.21, cvt.frnd.f64.
#[inline(always)]
pub(crate) fn integer_to_f64<T: AnyInteger>(x: T, round: Rounding) -> f64 {
    x.to_f64(round)
}

/// Converts an integer to `.f16` or `.bf16`. PTX ISA 9.7.9.21, cvt.frnd.f16 and cvt.frnd.bf16.
#[inline(always)]
pub(crate) fn integer_to_half<H: Half, T: AnyInteger>(x: T, round: Rounding) -> u16 {
    H::narrow_f64(x.odd_f64(), round)
}

/// Converts to `f64`, exactly. PTX ISA 9.7.9.21, cvt.f64.f32.
///
/// The ISA leaves the NaN of a NaN open. Here it keeps sign and payload, and is quiet.
#[inline(always)]
pub(crate) fn f32_to_f64(x: f32) -> f64 {
    let bits = x.to_bits();
    let sign = u64::from(bits >> 31) << 63;
    let nan = f64::from_bits(sign | 0x7ff8 << 48 | u64::from(bits & 0x7f_ffff) << 29);
    if x.is_nan() { nan } else { x.into() }
}

/// Converts to `f32`. A NaN becomes the canonical one. PTX ISA 9.7.9.21, cvt.frnd.f32.f64.
#[inline(always)]
pub(crate) fn f64_to_f32(x: f64, round: Rounding) -> f32 {
    canonical_f32(narrow_f64(x, round))
}

/// Puts the result for the first operand into the upper half, and that for the second into the
/// lower one. PTX ISA 9.7.9.21, cvt.f16x2.f32 and cvt.bf16x2.f32.
#[inline(always)]
pub(crate) fn pack(first: u16, second: u16) -> u32 {
    u32::from(first) << 16 | u32::from(second)
}

/// Rounds to 10 bits of fraction, ties away from zero. PTX ISA 9.7.9.21, cvt.rna.tf32.f32.
///
/// The ISA leaves the lower 13 bits of `.tf32` open (5.2.3). They are 0, except in NaN.
#[inline(always)]
pub(crate) fn f32_to_tf32_away(x: f32) -> u32 {
    let rounded = x.to_bits().wrapping_add(0x1000) & !0x1fff;
    if x.is_nan() { NAN_F32.to_bits() } else { rounded }
}

/// Rounds to 10 bits of fraction, to nearest with ties to even, or toward zero for any other
/// rounding. PTX ISA 9.7.9.21, cvt.rn.tf32.f32 and cvt.rz.tf32.f32.
#[inline(always)]
pub(crate) fn f32_to_tf32(x: f32, round: Rounding) -> u32 {
    let bits = x.to_bits();
    let half = if round == Rounding::Nearest { 0xfff + (bits >> 13 & 1) } else { 0 };
    let rounded = bits.wrapping_add(half) & !0x1fff;
    if x.is_nan() { NAN_F32.to_bits() } else { rounded }
}

/// Replaces infinity by the largest number with its sign. PTX ISA 9.7.9.21, `.satfinite` with
/// `.tf32`.
#[inline(always)]
pub(crate) fn satfinite_tf32(x: u32) -> u32 {
    if x & 0x7fff_ffff == 0x7f80_0000 { x - 0x2000 } else { x }
}

/// Replaces negative numbers by +0. PTX ISA 9.7.9.21, `.relu` with `.tf32`.
#[inline(always)]
pub(crate) fn relu_tf32(x: u32) -> u32 {
    if x >> 31 == 0 { x } else { 0 }
}

/// Limits a signed integer to those of `BITS` bits, 1 to 64. PTX ISA 9.7.9.21, cvt.sat.
#[inline(always)]
pub(crate) fn signed_to_signed<const BITS: u32>(x: i64) -> i64 {
    let max = i64::MAX >> (64 - BITS);
    x.clamp(-max - 1, max)
}

/// Limits a signed integer to the unsigned ones of `BITS` bits, 1 to 64. PTX ISA 9.7.9.21, cvt.sat.
#[inline(always)]
pub(crate) fn signed_to_unsigned<const BITS: u32>(x: i64) -> u64 {
    (x.max(0) as u64).min(u64::MAX >> (64 - BITS))
}

/// Limits an unsigned integer to the signed ones of `BITS` bits, 1 to 64. PTX ISA 9.7.9.21,
/// cvt.sat.
#[inline(always)]
pub(crate) fn unsigned_to_signed<const BITS: u32>(x: u64) -> i64 {
    x.min(u64::MAX >> (65 - BITS)) as i64
}

/// Limits an unsigned integer to those of `BITS` bits, 1 to 64. PTX ISA 9.7.9.21, cvt.sat.
#[inline(always)]
pub(crate) fn unsigned_to_unsigned<const BITS: u32>(x: u64) -> u64 {
    x.min(u64::MAX >> (64 - BITS))
}

#[cfg(test)]
mod tests;
