//! Arithmetic of `.f32` and `.f64` with the rounding modes of PTX ISA 9.7.3, and comparisons.
//!
//! # NaN A result of `.f32` that is NaN is [`NAN_F32`]. The ISA (9.7.3) leaves its bits open; those
//! are the ones of NVIDIA's GPUs (CUDA C++ Programming Guide, floating-point standard). `.f64`
//! supports payloads: a NaN result is the first operand that is NaN, quieted. The ISA leaves open
//! which operand that is, and what a NaN looks like if no operand is NaN: [`NAN_F64`], as on
//! NVIDIA's GPUs.
//!
//! # Subnormal numbers
//! They are supported. `.ftz` flushes them after rounding, in operands and results: [`flush_f32`].

use super::Rounding;
use super::rounding::{
    above_f64, add_to_odd, below_f64, narrow_f64, parts_f64, round_f64, shift_right_sticky,
};

/// The canonical NaN of `.f32`.
pub(crate) const NAN_F32: f32 = f32::from_bits(0x7fff_ffff);

/// The NaN of `.f64` for operations without a NaN operand, such as ∞ - ∞.
pub(crate) const NAN_F64: f64 = f64::from_bits(0xfff8_0000_0000_0000);

const QUIET_F64: u64 = 1 << 51;

/// Replaces any NaN by the canonical one. For roots see [`has_root_f32`].
#[inline(always)]
pub(crate) fn canonical_f32(x: f32) -> f32 {
    if x.is_nan() { NAN_F32 } else { x }
}

/// Returns `result`, or if that is NaN, the first NaN of the operands, quieted.
#[inline(always)]
fn with_nan_of<const N: usize>(result: f64, operands: [f64; N]) -> f64 {
    let mut nan = NAN_F64;
    for operand in operands.into_iter().rev() {
        if operand.is_nan() {
            nan = f64::from_bits(operand.to_bits() | QUIET_F64);
        }
    }
    if result.is_nan() { nan } else { result }
}

/// Replaces a subnormal number by the zero with its sign. PTX ISA 9.7.3, `.ftz`.
#[inline(always)]
pub(crate) fn flush_f32(x: f32) -> f32 {
    let sign = f32::from_bits(x.to_bits() & 1 << 31);
    if x.abs() < f32::MIN_POSITIVE { sign } else { x }
}

/// Limits `x` to the range from +0 to 1, and replaces NaN by +0. PTX ISA 9.7.3, `.sat`.
///
/// -0 gives +0, which the ISA leaves open.
#[inline(always)]
pub(crate) fn saturate_f32(x: f32) -> f32 {
    let at_most_one = if x < 1.0 { x } else { 1.0 };
    if x > 0.0 { at_most_one } else { 0.0 }
}

/// Limits `x` to the range from +0 to 1, and replaces NaN by +0. PTX ISA 9.7.9.21, cvt.sat.f64.
#[inline(always)]
pub(crate) fn saturate_f64(x: f64) -> f64 {
    let at_most_one = if x < 1.0 { x } else { 1.0 };
    if x > 0.0 { at_most_one } else { 0.0 }
}

/// Rounds `a` + `b`, which are exact in `f64`, once to `f32`.
#[inline(always)]
fn sum_f32(a: f64, b: f64, round: Rounding) -> f32 {
    let sum = add_to_odd(a, b);
    // IEEE 754-2019, 6.3: an exact sum of zero is -0 if rounded down, unless both operands are +0.
    let differ = (a.to_bits() ^ b.to_bits()) >> 63 == 1;
    let is_minus_zero = round == Rounding::Down && sum == 0.0 && differ;
    narrow_f64(if is_minus_zero { -0.0 } else { sum }, round)
}

/// Returns `a` + `b`. PTX ISA 9.7.3.3, add.f32.
#[inline(always)]
pub(crate) fn add_f32(a: f32, b: f32, round: Rounding) -> f32 {
    canonical_f32(match round {
        Rounding::Nearest => a + b,
        _ => sum_f32(a.into(), b.into(), round),
    })
}

/// Returns `a` - `b`. PTX ISA 9.7.3.4, sub.f32.
#[inline(always)]
pub(crate) fn sub_f32(a: f32, b: f32, round: Rounding) -> f32 {
    add_f32(a, -b, round)
}

/// Returns `a` × `b`. PTX ISA 9.7.3.5, mul.f32.
#[inline(always)]
pub(crate) fn mul_f32(a: f32, b: f32, round: Rounding) -> f32 {
    canonical_f32(match round {
        Rounding::Nearest => a * b,
        // The product has at most 48 bits.
        _ => narrow_f64(f64::from(a) * f64::from(b), round),
    })
}

/// Returns `a` × `b` + `c`, rounded once. PTX ISA 9.7.3.6, fma.f32, and 9.7.3.7, mad.f32.
#[inline(always)]
pub(crate) fn fma_f32(a: f32, b: f32, c: f32, round: Rounding) -> f32 {
    canonical_f32(match round {
        Rounding::Nearest => a.mul_add(b, c),
        // The product has at most 48 bits.
        _ => sum_f32(f64::from(a) * f64::from(b), c.into(), round),
    })
}

/// Returns `a` / `b`. PTX ISA 9.7.3.8, div.rnd.f32.
#[inline(always)]
pub(crate) fn div_f32(a: f32, b: f32, round: Rounding) -> f32 {
    canonical_f32(match round {
        Rounding::Nearest => a / b,
        // A quotient of numbers with 24 bits is a number with 24 bits, or at least 2^-48 of its
        // size away from all of them. So the rounding to `f64` keeps it on its side.
        _ => narrow_f64(f64::from(a) / f64::from(b), round),
    })
}

/// Returns 1 / `a`. PTX ISA 9.7.3.13, rcp.rnd.f32.
#[inline(always)]
pub(crate) fn rcp_f32(a: f32, round: Rounding) -> f32 {
    div_f32(1.0, a, round)
}

/// Returns the square root, NaN for negative numbers, and -0 for -0. PTX ISA 9.7.3.15,
/// sqrt.rnd.f32.
#[inline(always)]
pub(crate) fn sqrt_f32(a: f32, round: Rounding) -> f32 {
    let root = match round {
        Rounding::Nearest => a.sqrt(),
        // As in `div_f32`: a root is a number with 24 bits, or at least 2^-50 of its size away.
        _ => narrow_f64(f64::from(a).sqrt(), round),
    };
    if has_root_f32(a) { root } else { NAN_F32 }
}

/// Returns whether the square root of `a` is a number.
///
/// The test is one of integers, because LLVM drops the choice between a root and a NaN if it
/// depends on `a >= 0.0` or on the root. It takes all NaN for the same.
#[inline(always)]
pub(super) fn has_root_f32(a: f32) -> bool {
    let bits = a.to_bits();
    bits <= f32::INFINITY.to_bits() || bits == 1 << 31
}

/// Returns whether the square root of `a` is a number, like [`has_root_f32`].
#[inline(always)]
pub(super) fn has_root_f64(a: f64) -> bool {
    let bits = a.to_bits();
    bits <= f64::INFINITY.to_bits() || bits == 1 << 63
}

/// Returns |`a`|. PTX ISA 9.7.3.9, abs.f32.
#[inline(always)]
pub(crate) fn abs_f32(a: f32) -> f32 {
    canonical_f32(a.abs())
}

/// Returns -`a`. PTX ISA 9.7.3.10, neg.f32.
#[inline(always)]
pub(crate) fn neg_f32(a: f32) -> f32 {
    canonical_f32(-a)
}

/// Returns `b` with the sign of `a`, also if it is NaN. PTX ISA 9.7.3.2, copysign.f32.
#[inline(always)]
pub(crate) fn copysign_f32(a: f32, b: f32) -> f32 {
    f32::from_bits(a.to_bits() & 1 << 31 | b.to_bits() & 0x7fff_ffff)
}

/// Returns the smaller number. PTX ISA 9.7.3.11, min.f32.
///
/// -0 is smaller than +0. If one operand is NaN, the result is the other one.
#[inline(always)]
pub(crate) fn min_f32(a: f32, b: f32) -> f32 {
    let smaller = if a < b || b.is_nan() { a } else { b };
    let equal = f32::from_bits(a.to_bits() | b.to_bits());
    canonical_f32(if a == b { equal } else { smaller })
}

/// Returns the larger number. PTX ISA 9.7.3.12, max.f32.
///
/// -0 is smaller than +0. If one operand is NaN, the result is the other one.
#[inline(always)]
pub(crate) fn max_f32(a: f32, b: f32) -> f32 {
    let larger = if a > b || b.is_nan() { a } else { b };
    let equal = f32::from_bits(a.to_bits() & b.to_bits());
    canonical_f32(if a == b { equal } else { larger })
}

/// Returns the smaller number, or NaN if an operand is NaN. PTX ISA 9.7.3.11, min.NaN.f32.
#[inline(always)]
pub(crate) fn min_nan_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { NAN_F32 } else { min_f32(a, b) }
}

/// Returns the larger number, or NaN if an operand is NaN. PTX ISA 9.7.3.12, max.NaN.f32.
#[inline(always)]
pub(crate) fn max_nan_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { NAN_F32 } else { max_f32(a, b) }
}

/// Gives `result` the product of the signs of `a` and `b`, unless it is NaN. PTX ISA 9.7.3.11,
/// `.xorsign`.
///
/// `min.xorsign.abs.f32` is `xor_sign_f32(min_f32(a.abs(), b.abs()), a, b)`.
#[inline(always)]
pub(crate) fn xor_sign_f32(result: f32, a: f32, b: f32) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & 1 << 31;
    let signed = f32::from_bits(result.to_bits() & 0x7fff_ffff | sign);
    if result.is_nan() { result } else { signed }
}

/// Returns `a` + `b`. PTX ISA 9.7.3.3, add.f64.
#[inline(always)]
pub(crate) fn add_f64(a: f64, b: f64, round: Rounding) -> f64 {
    let sum = match round {
        Rounding::Nearest => a + b,
        _ => directed_fma(a, 1.0, b, round),
    };
    with_nan_of(sum, [a, b])
}

/// Returns `a` - `b`. PTX ISA 9.7.3.4, sub.f64.
#[inline(always)]
pub(crate) fn sub_f64(a: f64, b: f64, round: Rounding) -> f64 {
    let difference = match round {
        Rounding::Nearest => a - b,
        _ => directed_fma(a, 1.0, -b, round),
    };
    with_nan_of(difference, [a, b])
}

/// Returns `a` × `b`. PTX ISA 9.7.3.5, mul.f64.
#[inline(always)]
pub(crate) fn mul_f64(a: f64, b: f64, round: Rounding) -> f64 {
    let product = match round {
        Rounding::Nearest => a * b,
        // The sum with a zero of the same sign keeps a product of zero.
        _ => directed_fma(a, b, if (a.to_bits() ^ b.to_bits()) >> 63 == 1 { -0.0 } else { 0.0 }, round),
    };
    with_nan_of(product, [a, b])
}

/// Returns `a` × `b` + `c`, rounded once. PTX ISA 9.7.3.6, fma.f64, and 9.7.3.7, mad.f64.
#[inline(always)]
pub(crate) fn fma_f64(a: f64, b: f64, c: f64, round: Rounding) -> f64 {
    let sum = match round {
        Rounding::Nearest => a.mul_add(b, c),
        _ => directed_fma(a, b, c, round),
    };
    with_nan_of(sum, [a, b, c])
}

/// Returns `a` / `b`. PTX ISA 9.7.3.8, div.rnd.f64.
#[inline(always)]
pub(crate) fn div_f64(a: f64, b: f64, round: Rounding) -> f64 {
    let quotient = match round {
        Rounding::Nearest => a / b,
        _ => directed_div(a, b, round),
    };
    with_nan_of(quotient, [a, b])
}

/// Returns 1 / `a`. PTX ISA 9.7.3.13, rcp.rnd.f64.
#[inline(always)]
pub(crate) fn rcp_f64(a: f64, round: Rounding) -> f64 {
    div_f64(1.0, a, round)
}

/// Returns the square root, NaN for negative numbers, and -0 for -0. PTX ISA 9.7.3.15,
/// sqrt.rnd.f64.
#[inline(always)]
pub(crate) fn sqrt_f64(a: f64, round: Rounding) -> f64 {
    let root = match round {
        Rounding::Nearest => a.sqrt(),
        _ => directed_sqrt(a, round),
    };
    if has_root_f64(a) { root } else { with_nan_of(f64::NAN, [a]) }
}

/// Returns `a` × `b` + `c`, with integers of 128 bits.
fn directed_fma(a: f64, b: f64, c: f64, round: Rounding) -> f64 {
    if !(a.is_finite() && b.is_finite() && c.is_finite()) {
        // Infinities and NaN do not depend on the rounding, but a finite product must not overflow.
        let product = if a.is_finite() && b.is_finite() { 0.0 } else { a * b };
        return product + c;
    }
    let is_product_negative = (a.to_bits() ^ b.to_bits()) >> 63 == 1;
    let is_c_negative = c.is_sign_negative();
    let ((mantissa_a, exponent_a), (mantissa_b, exponent_b)) = (parts_f64(a), parts_f64(b));
    let (mantissa_c, exponent_c) = parts_f64(c);
    let product = u128::from(mantissa_a) * u128::from(mantissa_b);
    let zero = match (is_product_negative, is_c_negative) {
        (true, true) => -0.0,
        (false, false) => 0.0,
        _ if round == Rounding::Down => -0.0,
        _ => 0.0,
    };
    if product == 0 {
        return if mantissa_c == 0 { zero } else { c };
    }
    let (product, exponent) = align(product, exponent_a + exponent_b);
    if mantissa_c == 0 {
        return round_f64(is_product_negative, product, exponent, round);
    }
    let (other, exponent_c) = align(mantissa_c.into(), exponent_c);
    // The smaller one loses bits only if it is more than 2^16 times smaller. Then the result has
    // far more than the 55 bits that it needs with a sticky bit.
    let last = exponent.max(exponent_c);
    let product = shift_right_sticky(product, (last - exponent) as u32);
    let other = shift_right_sticky(other, (last - exponent_c) as u32);
    if is_product_negative == is_c_negative {
        round_f64(is_product_negative, product + other, last, round)
    } else if product == other {
        zero
    } else {
        let is_negative = if product > other { is_product_negative } else { is_c_negative };
        round_f64(is_negative, product.abs_diff(other), last, round)
    }
}

/// Shifts `mantissa`, which is not zero, so that its highest bit is bit 126.
fn align(mantissa: u128, exponent: i32) -> (u128, i32) {
    let zeros = mantissa.leading_zeros() as i32 - 1;
    (mantissa << zeros, exponent - zeros)
}

/// Returns `a` / `b`, with integers of 128 bits.
fn directed_div(a: f64, b: f64, round: Rounding) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return a / b;
    }
    let ((mantissa_a, exponent_a), (mantissa_b, exponent_b)) = (parts_f64(a), parts_f64(b));
    // 127 bits over at most 53 bits are at least 74 bits.
    let (dividend, exponent_a) = align(mantissa_a.into(), exponent_a);
    let divisor = u128::from(mantissa_b);
    let sticky = u128::from(!dividend.is_multiple_of(divisor));
    let is_negative = (a.to_bits() ^ b.to_bits()) >> 63 == 1;
    round_f64(is_negative, (dividend / divisor) | sticky, exponent_a - exponent_b, round)
}

/// Returns the square root, corrected by the sign of the exact remainder.
fn directed_sqrt(a: f64, round: Rounding) -> f64 {
    if !a.is_finite() || a <= 0.0 {
        return a.sqrt();
    }
    let root = a.sqrt();
    let ((mantissa_a, exponent_a), (mantissa, exponent)) = (parts_f64(a), parts_f64(root));
    // A root has 53 bits, its square 105 or 106. `exact` is as long, so that the shift is 51 to
    // 105.
    let square = u128::from(mantissa) * u128::from(mantissa);
    let exact = u128::from(mantissa_a) << (exponent_a - 2 * exponent);
    match round {
        Rounding::Down | Rounding::Zero if square > exact => below_f64(root),
        Rounding::Up if square < exact => above_f64(root),
        _ => root,
    }
}

/// Returns |`a`|. A NaN passes through unchanged. PTX ISA 9.7.3.9, abs.f64.
#[inline(always)]
pub(crate) fn abs_f64(a: f64) -> f64 {
    if a.is_nan() { a } else { a.abs() }
}

/// Returns -`a`. A NaN passes through unchanged, which the ISA leaves open. PTX ISA 9.7.3.10,
/// neg.f64.
#[inline(always)]
pub(crate) fn neg_f64(a: f64) -> f64 {
    if a.is_nan() { a } else { -a }
}

/// Returns `b` with the sign of `a`, also if it is NaN. PTX ISA 9.7.3.2, copysign.f64.
#[inline(always)]
pub(crate) fn copysign_f64(a: f64, b: f64) -> f64 {
    f64::from_bits(a.to_bits() & 1 << 63 | b.to_bits() & !(1 << 63))
}

/// Returns the smaller number. PTX ISA 9.7.3.11, min.f64.
///
/// -0 is smaller than +0. If one operand is NaN, the result is the other one.
#[inline(always)]
pub(crate) fn min_f64(a: f64, b: f64) -> f64 {
    let smaller = if a < b || b.is_nan() { a } else { b };
    let equal = f64::from_bits(a.to_bits() | b.to_bits());
    with_nan_of(if a == b { equal } else { smaller }, [a, b])
}

/// Returns the larger number. PTX ISA 9.7.3.12, max.f64.
///
/// -0 is smaller than +0. If one operand is NaN, the result is the other one.
#[inline(always)]
pub(crate) fn max_f64(a: f64, b: f64) -> f64 {
    let larger = if a > b || b.is_nan() { a } else { b };
    let equal = f64::from_bits(a.to_bits() & b.to_bits());
    with_nan_of(if a == b { equal } else { larger }, [a, b])
}

/// A property that `testp` tests. PTX ISA 9.7.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Property {
    /// `.finite`: neither infinite nor NaN.
    Finite,
    /// `.infinite`
    Infinite,
    /// `.number`: not NaN.
    Number,
    /// `.notanumber`: NaN.
    NotANumber,
    /// `.normal`: finite and not subnormal. Zero is normal.
    Normal,
    /// `.subnormal`
    Subnormal,
}

/// Returns whether `a` has the property. PTX ISA 9.7.3.1, testp.f32.
#[inline(always)]
pub(crate) fn testp_f32(a: f32, property: Property) -> bool {
    let is_subnormal = a != 0.0 && a.abs() < f32::MIN_POSITIVE;
    match property {
        Property::Finite => a.is_finite(),
        Property::Infinite => a.is_infinite(),
        Property::Number => !a.is_nan(),
        Property::NotANumber => a.is_nan(),
        Property::Normal => a.is_finite() && !is_subnormal,
        Property::Subnormal => is_subnormal,
    }
}

/// Returns whether `a` has the property. PTX ISA 9.7.3.1, testp.f64.
#[inline(always)]
pub(crate) fn testp_f64(a: f64, property: Property) -> bool {
    let is_subnormal = a != 0.0 && a.abs() < f64::MIN_POSITIVE;
    match property {
        Property::Finite => a.is_finite(),
        Property::Infinite => a.is_infinite(),
        Property::Number => !a.is_nan(),
        Property::NotANumber => a.is_nan(),
        Property::Normal => a.is_finite() && !is_subnormal,
        Property::Subnormal => is_subnormal,
    }
}

/// A comparison of floating-point numbers. PTX ISA 9.3.1.2.
///
/// If an operand is NaN, the ordered comparisons `Eq` to `Ge` are false, and the unordered ones
/// `Equ` to `Geu` are true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Comparison {
    /// `.eq`
    Eq,
    /// `.ne`: both are numbers, and differ.
    Ne,
    /// `.lt`
    Lt,
    /// `.le`
    Le,
    /// `.gt`
    Gt,
    /// `.ge`
    Ge,
    /// `.equ`
    Equ,
    /// `.neu`
    Neu,
    /// `.ltu`
    Ltu,
    /// `.leu`
    Leu,
    /// `.gtu`
    Gtu,
    /// `.geu`
    Geu,
    /// `.num`: both are numbers.
    Num,
    /// `.nan`: one is NaN.
    Nan,
}

/// Compares numbers of `.f32`, and of `.f16` and `.bf16` after their conversion. PTX ISA 9.7.6.2,
/// setp, and 9.7.7.2.
#[expect(clippy::double_comparisons, clippy::neg_cmp_op_on_partial_ord, reason = "NaN decides")]
#[inline(always)]
pub(crate) fn compare_f32(a: f32, b: f32, comparison: Comparison) -> bool {
    match comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a < b || a > b,
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Gt => a > b,
        Comparison::Ge => a >= b,
        Comparison::Equ => !(a < b || a > b),
        Comparison::Neu => a != b,
        Comparison::Ltu => !(a >= b),
        Comparison::Leu => !(a > b),
        Comparison::Gtu => !(a <= b),
        Comparison::Geu => !(a < b),
        Comparison::Num => !(a.is_nan() || b.is_nan()),
        Comparison::Nan => a.is_nan() || b.is_nan(),
    }
}

/// Compares numbers of `.f64`. PTX ISA 9.7.6.2, setp.
#[expect(clippy::double_comparisons, clippy::neg_cmp_op_on_partial_ord, reason = "NaN decides")]
#[inline(always)]
pub(crate) fn compare_f64(a: f64, b: f64, comparison: Comparison) -> bool {
    match comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a < b || a > b,
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Gt => a > b,
        Comparison::Ge => a >= b,
        Comparison::Equ => !(a < b || a > b),
        Comparison::Neu => a != b,
        Comparison::Ltu => !(a >= b),
        Comparison::Leu => !(a > b),
        Comparison::Gtu => !(a <= b),
        Comparison::Geu => !(a < b),
        Comparison::Num => !(a.is_nan() || b.is_nan()),
        Comparison::Nan => a.is_nan() || b.is_nan(),
    }
}

#[cfg(test)]
mod tests;
