//! The approximations of PTX ISA 9.7.3 and 9.7.4: `.approx` and `.full`.
//!
//! The ISA states the results of special values, and limits the error otherwise. GPUs differ within
//! these limits, also from each other. The results here are the same on every host: they come from
//! sums, products, quotients and roots that IEEE 754 defines, without fused operations.
//!
//! The polynomials interpolate their function at Chebyshev nodes, whose error is nearly the least
//! possible. Their errors before rounding are stated with them.
//!
//! `.ftz` is left to the caller, as in [`float`](super::float).

use super::Rounding;
use super::float::{NAN_F32, NAN_F64, canonical_f32, flush_f32, has_root_f32, has_root_f64, sqrt_f32};
use super::half::{Bf16, F16, Half, flush};

/// The sum of the coefficients × `x`^0, `x`^1 and so on, by Horner's rule.
///
/// It is a macro, since LLVM does not make vector instructions of a loop around another one.
macro_rules! polynomial {
    ($x:expr, [$last:expr $(,)?] $(,)?) => { $last };
    ($x:expr, [$first:expr, $($rest:tt)+] $(,)?) => { $first + $x * polynomial!($x, [$($rest)+]) };
}

/// Returns about 1 / `a`. PTX ISA 9.7.3.13, rcp.approx.f32: at most 1 ulp of error.
///
/// The result is the nearest number.
#[inline(always)]
pub(crate) fn rcp(a: f32) -> f32 {
    canonical_f32(1.0 / a)
}

/// Returns about the square root. PTX ISA 9.7.3.15, sqrt.approx.f32: a relative error of at most
/// 2^-23.
///
/// The result is the nearest number.
#[inline(always)]
pub(crate) fn sqrt(a: f32) -> f32 {
    sqrt_f32(a, Rounding::Nearest)
}

/// Returns about 1 / √`a`. PTX ISA 9.7.3.16, rsqrt.approx.f32: a relative error of at most 2^-22.9.
///
/// Two roundings give an error of at most 2^-23.
#[inline(always)]
pub(crate) fn rsqrt(a: f32) -> f32 {
    let result = 1.0 / a.sqrt();
    if has_root_f32(a) { result } else { NAN_F32 }
}

/// Returns about `a` / `b`. PTX ISA 9.7.3.8, div.approx.f32: at most 2 ulp of error if |`b`| is
/// 2^-126 to 2^126. If |`b`| is larger and finite, NaN for an infinite `a`, and a zero for any
/// other.
///
/// The ISA leaves subnormal `b` open. As the ISA describes, the result is `a` × (1 / `b`), where a
/// subnormal reciprocal is flushed to zero.
#[inline(always)]
pub(crate) fn div(a: f32, b: f32) -> f32 {
    canonical_f32(a * flush_f32(1.0 / b))
}

/// Returns about `a` / `b`. PTX ISA 9.7.3.8, div.full.f32: at most 2 ulp of error for all operands.
///
/// The result is the nearest number.
#[inline(always)]
pub(crate) fn div_full(a: f32, b: f32) -> f32 {
    canonical_f32(a / b)
}

/// Returns about 2 to the power of `a`. PTX ISA 9.7.3.21, ex2.approx.f32: at most 2 ulp of error
/// from the nearest number.
#[inline(always)]
pub(crate) fn ex2(a: f32) -> f32 {
    // Beyond these limits the result is 0 or infinite. NaN is replaced at the end.
    let low = if a > -160.0 { a } else { -160.0 };
    let x = if low < 130.0 { low } else { 130.0 };
    // The sum's last bit is 1, so that the addition rounds `x` to an integer.
    let shifted = x + ROUND_F32;
    let whole = shifted.to_bits().wrapping_sub(ROUND_F32.to_bits()) as i32;
    let fraction = x - (shifted - ROUND_F32);
    // (2^f - 1) / f for |f| <= 1/2. Error of the product with f: 2^-27.
    let quotient = polynomial!(
        fraction,
        [std::f32::consts::LN_2, 0.240_226_5, 0.055_503_57, 0.009_618_083, 0.001_339_086_3, 0.000_154_531_63],
    );
    let power = 1.0 + fraction * quotient;
    // Two factors, since 2^whole may be subnormal. The first product is exact.
    let half = whole >> 1;
    let result = power * power_of_two(half) * power_of_two(whole - half);
    if a.is_nan() { canonical_f32(a) } else { result }
}

/// 1.5 × 2^23: added to a number of less than 2^22, it rounds that to an integer.
const ROUND_F32: f32 = 12_582_912.0;

/// Returns 2^`exponent`, which is a normal number.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// Returns about the logarithm of `a` to base 2. PTX ISA 9.7.3.20, lg2.approx.f32: an absolute
/// error of at most 2^-22 between 1/2 and 2, a relative one of at most 2^-22 elsewhere.
///
/// Next to 1 the relative error is small too.
#[inline(always)]
pub(crate) fn lg2(a: f32) -> f32 {
    let is_subnormal = a < f32::MIN_POSITIVE;
    let normal = if is_subnormal { a * 16_777_216.0 } else { a };
    // Subtracting the bits of √(1/2) leaves an exponent that is 0 for √(1/2) <= m < √2.
    let root_of_half = 0x3f35_04f3;
    let exponent = (normal.to_bits() as i32).wrapping_sub(root_of_half) >> 23;
    let mantissa = f32::from_bits(normal.to_bits().wrapping_sub((exponent as u32) << 23));
    let exponent = exponent - if is_subnormal { 24 } else { 0 };
    // log2(1 + f) / f. Error of the product with f: 2^-27.
    let fraction = mantissa - 1.0;
    let quotient = polynomial!(
        fraction,
        [
            std::f32::consts::LOG2_E,
            -0.721_347_33,
            0.480_898_53,
            -0.360_696_55,
            0.288_552_55,
            -0.239_608_12,
            0.204_857_65,
            -0.191_388_38,
            0.184_760_33,
            -0.107_497_89,
        ],
    );
    let number = exponent as f32 + fraction * quotient;
    let positive = if a == f32::INFINITY { a } else { number };
    let not_negative = if a == 0.0 { f32::NEG_INFINITY } else { positive };
    canonical_f32(if a >= 0.0 { not_negative } else { f32::NAN })
}

/// Returns about the sine of `a`. PTX ISA 9.7.3.18, sin.approx.f32: an absolute error of at most
/// 2^-20.5 for |`a`| up to 2π, and of 2^-14.7 up to 100π.
///
/// Up to |`a`| = 2^23 the result is nearly the nearest number. Beyond, where the ISA states no
/// limit, it is some number from -1 to 1.
#[inline(always)]
pub(crate) fn sin(a: f32) -> f32 {
    let (quarter, rest) = reduce(a);
    let result = sine_of_quarter(quarter, rest) as f32;
    // The reduction loses the sign of -0.
    let number = if a == 0.0 { a } else { result };
    canonical_f32(if a.is_finite() { number } else { f32::NAN })
}

/// Returns about the cosine of `a`. PTX ISA 9.7.3.19, cos.approx.f32, with the limits of [`sin`].
#[inline(always)]
pub(crate) fn cos(a: f32) -> f32 {
    let (quarter, rest) = reduce(a);
    let result = sine_of_quarter(quarter.wrapping_add(1), rest) as f32;
    canonical_f32(if a.is_finite() { result } else { f32::NAN })
}

/// Returns the nearest multiple of π/2, as a number of quarters modulo 2^32, and the rest.
#[inline(always)]
fn reduce(a: f32) -> (u32, f64) {
    // π/2 is the sum of the three. The first two have 30 bits, so that their products with integers
    // of 23 bits are exact.
    const HALF_PI: [f64; 3] = [1.570_796_325_802_803, 9.920_935_791_635_221e-10, 5.170_182_981_794_105e-19];
    // 1.5 × 2^52: added to a number of less than 2^51, it rounds that to an integer.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(a);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND;
    let quarters = shifted - ROUND;
    let rest = x - quarters * HALF_PI[0] - quarters * HALF_PI[1] - quarters * HALF_PI[2];
    // Only for |a| > 2^23 can the rest be too large.
    let limit = 0.79;
    let rest = if rest < limit { rest } else { limit };
    let rest = if rest > -limit { rest } else { -limit };
    (shifted.to_bits() as u32, rest)
}

/// Returns the sine of `quarter` × π/2 + `rest`.
#[inline(always)]
fn sine_of_quarter(quarter: u32, rest: f64) -> f64 {
    let square = rest * rest;
    // sin(r) / r. Error 2^-37.
    let sine = rest
        * polynomial!(
            square,
            [
                0.999_999_999_995_617_7,
                -0.166_666_666_312_331_8,
                0.008_333_328_747_691_654,
                -0.000_198_391_917_066_076_9,
                2.717_248_501_279_040_7e-6,
            ],
        );
    // cos(r). Error 2^-34.
    let cosine = polynomial!(
        square,
        [
            0.999_999_999_951_882_5,
            -0.499_999_996_109_285_5,
            0.041_666_616_310_965_93,
            -0.001_388_660_647_022_604_9,
            2.437_876_474_351_052e-5,
        ],
    );
    let magnitude = if quarter & 1 == 0 { sine } else { cosine };
    if quarter & 2 == 0 { magnitude } else { -magnitude }
}

/// Returns about the hyperbolic tangent. PTX ISA 9.7.3.22, tanh.approx.f32: a relative error of at
/// most 2^-11. Subnormal numbers are passed through.
///
/// The relative error here is less than 2^-21.
#[inline(always)]
pub(crate) fn tanh(a: f32) -> f32 {
    let x = a.abs();
    let square = a * a;
    // (tanh(x) / x - 1) / x² for x² <= 0.31. Error of the product with x²: 2^-27.
    let quotient =
        polynomial!(square, [-0.333_333_3, 0.133_330_93, -0.053_905_36, 0.021_284_724, -0.006_564_395_5]);
    let small = x + x * (square * quotient);
    // tanh(x) = 1 - 2 / (e^(2x) + 1). From 10 on the result is 1.
    let limited = if x < 10.0 { x } else { 10.0 };
    let large = 1.0 - 2.0 / (ex2(limited * (2.0 * std::f32::consts::LOG2_E)) + 1.0);
    let magnitude = if x < 0.55 { small } else { large };
    if a.is_nan() { canonical_f32(a) } else { magnitude.copysign(a) }
}

/// Returns about 1 / `a`. PTX ISA 9.7.3.14, rcp.approx.ftz.f64.
///
/// The upper 32 bits of `a` count, and the lower ones of the result are 0: a NaN that differs from
/// infinity in the lower half counts as infinity. Subnormal numbers are flushed, and another NaN
/// becomes 0x7fffffff00000000. The ISA states no limit of the error. Relative to the
/// upper half it is less than 2^-20.
#[inline(always)]
pub(crate) fn rcp_ftz_f64(a: f64) -> f64 {
    upper_half(1.0 / upper_operand(a))
}

/// Returns about 1 / √`a`. PTX ISA 9.7.3.17, rsqrt.approx.ftz.f64, with the bits of
/// [`rcp_ftz_f64`].
#[inline(always)]
pub(crate) fn rsqrt_ftz_f64(a: f64) -> f64 {
    upper_half(1.0 / upper_operand(a).sqrt())
}

/// Cuts to the upper 32 bits and flushes a subnormal number.
#[inline(always)]
fn upper_operand(a: f64) -> f64 {
    let upper = a.to_bits() & 0xffff_ffff_0000_0000;
    let sign = upper & 1 << 63;
    f64::from_bits(if a.abs() < f64::MIN_POSITIVE { sign } else { upper })
}

/// Rounds to the upper 32 bits, flushes a subnormal number, and replaces a NaN.
#[inline(always)]
fn upper_half(x: f64) -> f64 {
    // A carry can not reach infinity: a finite result is at most 2^1022.
    let rounded = x.to_bits().wrapping_add(0x8000_0000) & 0xffff_ffff_0000_0000;
    let sign = rounded & 1 << 63;
    let number = if x.abs() < f64::MIN_POSITIVE { sign } else { rounded };
    f64::from_bits(if x.is_nan() { 0x7fff_ffff_0000_0000 } else { number })
}

/// Returns about 1 / √`a`. PTX ISA 9.7.3.16, rsqrt.approx.f64.
///
/// The ISA states no limit of the error. Two roundings give an error of at most 2^-52. A NaN is
/// quieted.
#[inline(always)]
pub(crate) fn rsqrt_f64(a: f64) -> f64 {
    let result = 1.0 / a.sqrt();
    let nan = if a.is_nan() { f64::from_bits(a.to_bits() | 1 << 51) } else { NAN_F64 };
    if has_root_f64(a) { result } else { nan }
}

/// Returns about 2 to the power of `a`. PTX ISA 9.7.4.10, ex2.approx.f16: a relative error of at
/// most 2^-9.9.
#[inline(always)]
pub(crate) fn ex2_f16(a: u16) -> u16 {
    F16::narrow(ex2(F16::widen(a)), Rounding::Nearest)
}

/// Returns about 2 to the power of `a`. Subnormal numbers are flushed. PTX ISA 9.7.4.10,
/// ex2.approx.ftz.bf16: a relative error of at most 2^-7.
#[inline(always)]
pub(crate) fn ex2_ftz_bf16(a: u16) -> u16 {
    flush::<Bf16>(Bf16::narrow(ex2(Bf16::widen(flush::<Bf16>(a))), Rounding::Nearest))
}

/// Returns about the hyperbolic tangent. PTX ISA 9.7.4.9, tanh.approx.f16: an absolute error of at
/// most 2^-10.987.
#[inline(always)]
pub(crate) fn tanh_f16(a: u16) -> u16 {
    F16::narrow(tanh(F16::widen(a)), Rounding::Nearest)
}

/// Returns about the hyperbolic tangent. PTX ISA 9.7.4.9, tanh.approx.bf16: an absolute error of at
/// most 2^-8.
#[inline(always)]
pub(crate) fn tanh_bf16(a: u16) -> u16 {
    Bf16::narrow(tanh(Bf16::widen(a)), Rounding::Nearest)
}

#[cfg(test)]
mod tests;
