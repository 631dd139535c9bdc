//! The formats `.f16` and `.bf16`, and their arithmetic: PTX ISA 9.7.4.
//!
//! Operands are widened, computed with more bits, and rounded once. The crate `half` is not used
//! here: it chooses instructions at run time, which keeps a loop from becoming vector instructions,
//! and it rounds to nearest only.
//!
//! # NaN
//! The ISA leaves the bits of a NaN open. They are 0x7fff in both formats, the canonical NaN.

use super::Rounding;
use super::float::canonical_f32;
use super::rounding::{add_to_odd, narrow_f64_to_odd};

/// The canonical NaN of both formats.
pub(crate) const NAN: u16 = 0x7fff;

const SIGN: u16 = 1 << 15;

/// The format `.f16`: 5 bits of exponent and 10 of fraction. PTX ISA 5.2.1.
pub(crate) enum F16 {}

/// The format `.bf16`: 8 bits of exponent and 7 of fraction. PTX ISA 5.2.3.
pub(crate) enum Bf16 {}

/// A format of 16 bits.
pub(crate) trait Half {
    /// The bits of infinity. All their ones are the exponent.
    const INFINITY: u16;
    /// The bits of 1.
    const ONE: u16;

    /// Converts to `f32`, exactly. PTX ISA 9.7.9.21, cvt.f32.f16 and cvt.f32.bf16.
    fn widen(x: u16) -> f32;

    /// Rounds to nearest, ties to even.
    fn narrow_nearest(x: f32) -> u16;

    /// Converts from `f32`. PTX ISA 9.7.9.21, cvt.f16.f32 and cvt.bf16.f32.
    #[inline(always)]
    fn narrow(x: f32, round: Rounding) -> u16 {
        let nearest = Self::narrow_nearest(x);
        let back = Self::widen(nearest);
        // Next to zero, `nearest` has the sign of `x`, so that adding to the bits moves away from
        // it.
        let (outward, inward) = (nearest.wrapping_add(1), nearest.wrapping_sub(1));
        let is_negative = nearest & SIGN != 0;
        match round {
            Rounding::Nearest => nearest,
            Rounding::Zero if back.abs() > x.abs() => inward,
            Rounding::Down if back > x => {
                if is_negative {
                    outward
                } else {
                    inward
                }
            }
            Rounding::Up if back < x => {
                if is_negative {
                    inward
                } else {
                    outward
                }
            }
            _ => nearest,
        }
    }

    /// Converts from `f64`. PTX ISA 9.7.9.21, cvt.f16.f64 and cvt.bf16.f64.
    #[inline(always)]
    fn narrow_f64(x: f64, round: Rounding) -> u16 {
        // A first rounding to odd does not change the second one.
        Self::narrow(narrow_f64_to_odd(x), round)
    }
}

impl Half for F16 {
    const INFINITY: u16 = 0x7c00;
    const ONE: u16 = 0x3c00;

    #[inline(always)]
    fn widen(x: u16) -> f32 {
        let magnitude = u32::from(x & !SIGN);
        let normal = (magnitude << 13) + (112 << 23);
        // 2^-24 is the last bit of a subnormal number.
        let subnormal = (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits();
        let special = if magnitude == 0x7c00 { 0x7f80_0000 } else { 0x7fff_ffff };
        let number = if magnitude < 0x400 { subnormal } else { normal };
        let bits = if magnitude < 0x7c00 { number } else { special };
        let sign = if magnitude > 0x7c00 { 0 } else { u32::from(x & SIGN) << 16 };
        f32::from_bits(bits | sign)
    }

    #[inline(always)]
    fn narrow_nearest(x: f32) -> u16 {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        // Adding just less than half of the last bit, or half of it if the last bit is 1.
        let half = 0xfff + (magnitude >> 13 & 1);
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(half) >> 13;
        // In the sum with 0.5, the last bit is 2^-24 too: the addition rounds.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        // 2^-14 and 2^16.
        let number = if magnitude < 0x3880_0000 { subnormal } else { normal };
        let bits = if magnitude < 0x4780_0000 { number } else { 0x7c00 };
        let sign = x.to_bits() >> 16 & 0x8000;
        if magnitude > 0x7f80_0000 { NAN } else { (bits | sign) as u16 }
    }
}

impl Half for Bf16 {
    const INFINITY: u16 = 0x7f80;
    const ONE: u16 = 0x3f80;

    #[inline(always)]
    fn widen(x: u16) -> f32 {
        canonical_f32(f32::from_bits(u32::from(x) << 16))
    }

    #[inline(always)]
    fn narrow_nearest(x: f32) -> u16 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        if x.is_nan() { NAN } else { rounded as u16 }
    }
}

/// Returns `a` + `b`. PTX ISA 9.7.4.1, add.
#[inline(always)]
pub(crate) fn add<H: Half>(a: u16, b: u16) -> u16 {
    // `f32` has more than twice the bits plus two, so that its rounding does not change the result,
    // and it is exact for results that are subnormal (Figueroa, "When is double rounding
    // innocuous?", SIGNUM Newsletter 30, 1995).
    H::narrow(H::widen(a) + H::widen(b), Rounding::Nearest)
}

/// Returns `a` - `b`. PTX ISA 9.7.4.2, sub.
#[inline(always)]
pub(crate) fn sub<H: Half>(a: u16, b: u16) -> u16 {
    H::narrow(H::widen(a) - H::widen(b), Rounding::Nearest)
}

/// Returns `a` × `b`. PTX ISA 9.7.4.3, mul.
#[inline(always)]
pub(crate) fn mul<H: Half>(a: u16, b: u16) -> u16 {
    // The product has at most 22 bits for `.f16` and 16 for `.bf16`, and is exact in `f32`. The
    // exception are products of `.bf16` below 2^-134. They become 2^-134 at most, and then zero.
    H::narrow(H::widen(a) * H::widen(b), Rounding::Nearest)
}

/// Returns `a` × `b` + `c`, rounded once. PTX ISA 9.7.4.4, fma.
#[inline(always)]
pub(crate) fn fma<H: Half>(a: u16, b: u16, c: u16) -> u16 {
    let product = f64::from(H::widen(a)) * f64::from(H::widen(b));
    H::narrow_f64(add_to_odd(product, H::widen(c).into()), Rounding::Nearest)
}

/// Returns -`a`. PTX ISA 9.7.4.5, neg.
#[inline(always)]
pub(crate) fn neg<H: Half>(a: u16) -> u16 {
    canonical::<H>(a ^ SIGN)
}

/// Returns |`a`|. PTX ISA 9.7.4.6, abs.
#[inline(always)]
pub(crate) fn abs<H: Half>(a: u16) -> u16 {
    canonical::<H>(a & !SIGN)
}

/// Returns the smaller number. PTX ISA 9.7.4.7, min.
///
/// -0 is smaller than +0. If one operand is NaN, the result is the other one.
#[inline(always)]
pub(crate) fn min<H: Half>(a: u16, b: u16) -> u16 {
    let smaller = if order(a) < order(b) { a } else { b };
    let number = if is_nan::<H>(b) { a } else { smaller };
    canonical::<H>(if is_nan::<H>(a) { b } else { number })
}

/// Returns the larger number. PTX ISA 9.7.4.8, max.
///
/// -0 is smaller than +0. If one operand is NaN, the result is the other one.
#[inline(always)]
pub(crate) fn max<H: Half>(a: u16, b: u16) -> u16 {
    let larger = if order(a) > order(b) { a } else { b };
    let number = if is_nan::<H>(b) { a } else { larger };
    canonical::<H>(if is_nan::<H>(a) { b } else { number })
}

/// Returns the smaller number, or NaN if an operand is NaN. PTX ISA 9.7.4.7, min.NaN.
#[inline(always)]
pub(crate) fn min_nan<H: Half>(a: u16, b: u16) -> u16 {
    if is_nan::<H>(a) || is_nan::<H>(b) { NAN } else { min::<H>(a, b) }
}

/// Returns the larger number, or NaN if an operand is NaN. PTX ISA 9.7.4.8, max.NaN.
#[inline(always)]
pub(crate) fn max_nan<H: Half>(a: u16, b: u16) -> u16 {
    if is_nan::<H>(a) || is_nan::<H>(b) { NAN } else { max::<H>(a, b) }
}

/// Gives `result` the product of the signs of `a` and `b`, unless it is NaN. PTX ISA 9.7.4.7,
/// `.xorsign`.
///
/// `min.xorsign.abs` is `xor_sign(min(abs(a), abs(b)), a, b)`.
#[inline(always)]
pub(crate) fn xor_sign<H: Half>(result: u16, a: u16, b: u16) -> u16 {
    let signed = result & !SIGN | (a ^ b) & SIGN;
    if is_nan::<H>(result) { result } else { signed }
}

/// Replaces a subnormal number by the zero with its sign. PTX ISA 9.7.4, `.ftz`.
#[inline(always)]
pub(crate) fn flush<H: Half>(x: u16) -> u16 {
    if x & H::INFINITY == 0 { x & SIGN } else { x }
}

/// Limits `x` to the range from +0 to 1, and replaces NaN by +0. PTX ISA 9.7.4, `.sat`.
///
/// -0 gives +0, which the ISA leaves open.
#[inline(always)]
pub(crate) fn saturate<H: Half>(x: u16) -> u16 {
    if x > H::INFINITY { 0 } else { Ord::min(x, H::ONE) }
}

/// Replaces negative numbers by +0, and NaN by the canonical one. PTX ISA 9.7.4.4, `.relu`.
///
/// -0 gives +0, which the ISA leaves open.
#[inline(always)]
pub(crate) fn relu<H: Half>(x: u16) -> u16 {
    let number = if x & SIGN == 0 { x } else { 0 };
    if is_nan::<H>(x) { NAN } else { number }
}

/// Replaces infinity by the largest number with its sign. PTX ISA 9.7.9.21, `.satfinite`.
#[inline(always)]
pub(crate) fn satfinite<H: Half>(x: u16) -> u16 {
    if x & !SIGN == H::INFINITY { x - 1 } else { x }
}

#[inline(always)]
fn is_nan<H: Half>(x: u16) -> bool {
    x & !SIGN > H::INFINITY
}

#[inline(always)]
fn canonical<H: Half>(x: u16) -> u16 {
    if is_nan::<H>(x) { NAN } else { x }
}

/// Maps numbers to integers of the same order, -0 below +0.
#[inline(always)]
fn order(x: u16) -> i16 {
    let sign = x as i16 >> 15;
    x as i16 ^ (sign & i16::MAX)
}

#[cfg(test)]
mod tests;
