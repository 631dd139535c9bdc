//! Rounding in a direction, for hosts that can only round to nearest.
//!
//! # Two ways
//! * Results of 32 and fewer bits are computed in `f64`, **rounded to odd**, and then rounded in
//!   the direction. Rounding to odd keeps an exact value, and replaces any other by the one of its
//!   two neighbours whose last bit is 1. A second rounding to a format with at least two bits fewer
//!   then gives the result of a single rounding (Boldo and Melquiond, "Emulation of FMA and
//!   correctly rounded sums", IEEE Transactions on Computers 57, 2008).
//! * Results of 64 bits are computed with integers of 128 bits: [`round_f64`].

/// A rounding mode of floating-point results. PTX ISA 6.5.2, rounding modifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rounding {
    /// `.rn` and `.rni`: to nearest, ties to even.
    Nearest,
    /// `.rz` and `.rzi`: toward zero.
    Zero,
    /// `.rm` and `.rmi`: toward negative infinity.
    Down,
    /// `.rp` and `.rpi`: toward positive infinity.
    Up,
}

/// Returns `a + b` rounded to odd, for operands whose sum does not overflow unless one is infinite.
///
/// The sum of zeros with different signs is +0.
#[inline(always)]
pub(super) fn add_to_odd(a: f64, b: f64) -> f64 {
    // Knuth's TwoSum: `error` is exactly `a + b - sum`.
    let sum = a + b;
    let b_in_sum = sum - a;
    let error = (a - (sum - b_in_sum)) + (b - b_in_sum);
    // The error of an infinite sum is NaN, and neither comparison holds.
    let is_inexact = error.abs() > 0.0;
    let bits = sum.to_bits();
    let away = (error > 0.0) == (sum > 0.0);
    let neighbor = if away { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f64::from_bits(if is_inexact && bits & 1 == 0 { neighbor } else { bits })
}

/// Rounds an `f64` to `f32`. The result of a NaN is some NaN.
#[inline(always)]
pub(super) fn narrow_f64(x: f64, round: Rounding) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    match round {
        Rounding::Nearest => nearest,
        Rounding::Zero => {
            let is_over = back.abs() > x.abs();
            f32::from_bits(nearest.to_bits().wrapping_sub(u32::from(is_over)))
        }
        Rounding::Down => {
            if back > x {
                below_f32(nearest)
            } else {
                nearest
            }
        }
        Rounding::Up => {
            if back < x {
                above_f32(nearest)
            } else {
                nearest
            }
        }
    }
}

/// Rounds an `f64` to `f32`, to odd.
#[inline(always)]
pub(super) fn narrow_f64_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();
    let away = back.abs() < x.abs();
    let neighbor = if away { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let is_inexact = back != x && !x.is_nan();
    f32::from_bits(if is_inexact && bits & 1 == 0 { neighbor } else { bits })
}

/// Returns the next number below `x`. `x` is a number, and not +0.
#[inline(always)]
pub(super) fn below_f32(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits >> 31 == 1 { bits.wrapping_add(1) } else { bits.wrapping_sub(1) })
}

/// Returns the next number above `x`. `x` is a number, and not -0.
#[inline(always)]
pub(super) fn above_f32(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits >> 31 == 1 { bits.wrapping_sub(1) } else { bits.wrapping_add(1) })
}

/// Returns the next number below `x`. `x` is a number, and not +0.
#[inline(always)]
pub(super) fn below_f64(x: f64) -> f64 {
    let bits = x.to_bits();
    f64::from_bits(if bits >> 63 == 1 { bits.wrapping_add(1) } else { bits.wrapping_sub(1) })
}

/// Returns the next number above `x`. `x` is a number, and not -0.
#[inline(always)]
pub(super) fn above_f64(x: f64) -> f64 {
    let bits = x.to_bits();
    f64::from_bits(if bits >> 63 == 1 { bits.wrapping_sub(1) } else { bits.wrapping_add(1) })
}

/// Returns the mantissa `m` and the exponent `e` of a finite `x`: |x| = m × 2^e, with m < 2^53.
#[inline(always)]
pub(super) fn parts_f64(x: f64) -> (u64, i32) {
    let bits = x.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    match (bits >> 52) as i32 & 0x7ff {
        0 => (fraction, -1074),
        biased => (fraction | 1 << 52, biased - 1075),
    }
}

/// Shifts right, and sets the last bit if a bit of 1 is lost.
#[inline(always)]
pub(super) fn shift_right_sticky(mantissa: u128, amount: u32) -> u128 {
    match amount {
        0 => mantissa,
        1..=127 => mantissa >> amount | u128::from(mantissa << (128 - amount) != 0),
        _ => u128::from(mantissa != 0),
    }
}

/// Rounds ±`mantissa` × 2^`exponent`. `mantissa` is not zero, and `exponent` within ±10,000.
///
/// If the last bit of `mantissa` stands for lost bits (see [`shift_right_sticky`]), `mantissa`
/// needs at least 55 bits.
#[inline(always)]
pub(super) fn round_f64(is_negative: bool, mantissa: u128, exponent: i32, round: Rounding) -> f64 {
    let top = exponent + 127 - mantissa.leading_zeros() as i32;
    // The exponent of the last bit of the result.
    let last = (top - 52).max(-1074);
    let shift = last - exponent;
    let (kept, rest) = match shift {
        ..=0 => (mantissa << -shift, 0),
        1..=127 => (mantissa >> shift, mantissa << (128 - shift)),
        128 => (0, mantissa),
        _ => (0, 1),
    };
    let half = 1 << 127;
    let is_away = match round {
        Rounding::Nearest => rest > half || (rest == half && kept & 1 == 1),
        Rounding::Zero => false,
        Rounding::Down => is_negative && rest != 0,
        Rounding::Up => !is_negative && rest != 0,
    };
    let infinity = f64::INFINITY.to_bits();
    let magnitude = if last > 971 {
        infinity
    } else {
        // `kept` has at most 53 bits. Its bit 52 adds 1 to the exponent field.
        (((last + 1074) as u64) << 52) + kept as u64 + u64::from(is_away)
    };
    let stays_finite = match round {
        Rounding::Nearest => false,
        Rounding::Zero => true,
        Rounding::Down => !is_negative,
        Rounding::Up => is_negative,
    };
    let magnitude = magnitude.min(infinity - u64::from(stays_finite));
    f64::from_bits(u64::from(is_negative) << 63 | magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::exact::{BINARY64, Exact, any_f64, expect_f64};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn narrowing_an_f64_rounds_as_the_exact_model(x in any_f64()) {
            for round in [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up] {
                let expected = Exact::from_f64(x).round(crate::number::exact::BINARY32, round) as u32;
                prop_assert_eq!(narrow_f64(x, round).to_bits(), expected, "{} {:?}", x, round);
            }
        }

        #[test]
        fn a_wide_mantissa_rounds_as_the_exact_model(
            mantissa in 1u128..,
            zeros in 0u32..128,
            exponent in -1300i32..1100,
            is_negative: bool,
        ) {
            let mantissa = (mantissa >> zeros).max(1);
            let exact = Exact::from_integer(is_negative, mantissa).times_power_of_two(exponent);
            for round in [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up] {
                let expected = exact.round(BINARY64, round);
                expect_f64(round_f64(is_negative, mantissa, exponent, round), expected)?;
            }
        }
    }

    #[test]
    fn rounding_to_odd_keeps_exact_sums_and_makes_others_odd() {
        assert_eq!(add_to_odd(1.0, 2.0), 3.0);
        assert_eq!(add_to_odd(1.0, 1e-300), 1.0 + f64::EPSILON);
        assert_eq!(add_to_odd(1.0, -1e-300), 1.0 - f64::EPSILON / 2.0);
        assert_eq!(add_to_odd(-1.0, 1e-300), -1.0 + f64::EPSILON / 2.0);
        assert_eq!(add_to_odd(f64::INFINITY, 1.0), f64::INFINITY);
        assert_eq!(narrow_f64_to_odd(1.0 + 1e-12), 1.0 + f32::EPSILON);
        assert_eq!(narrow_f64_to_odd(1e300), f32::MAX);
        assert_eq!(narrow_f64_to_odd(-1e-300), -f32::from_bits(1));
        assert_eq!(narrow_f64_to_odd(f64::INFINITY), f32::INFINITY);
    }
}
