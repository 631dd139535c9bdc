use super::*;
use crate::number::exact::any_f32;
use proptest::prelude::*;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;
const TINY: f32 = f32::from_bits(1);

/// The relative error of a result, where `f64` is exact enough to stand for the truth.
fn relative(actual: f64, exact: f64) -> f64 {
    if actual == exact { 0.0 } else { ((actual - exact) / exact).abs() }
}

/// The distance of two numbers of the same sign, counted in numbers of `f32`.
fn ulps(actual: f32, nearest: f32) -> u32 {
    actual.to_bits().abs_diff(nearest.to_bits())
}

/// About `count` numbers of `f32` from `low` to `high`, at equal distances of their bits.
fn between(low: f32, high: f32, count: u32) -> impl Iterator<Item = f32> {
    let step = ((high.to_bits() - low.to_bits()) / count).max(1) as usize;
    (low.to_bits()..=high.to_bits()).step_by(step).map(f32::from_bits)
}

fn both_signs(numbers: impl Iterator<Item = f32>) -> impl Iterator<Item = f32> {
    numbers.flat_map(|x| [x, -x])
}

#[test]
fn special_values_are_those_of_the_tables() {
    type Row = (&'static str, fn(f32) -> f32, [f32; 5]);
    // Results for -Inf, -0, +0, +Inf and NaN: PTX ISA 9.7.3.13 to 9.7.3.22.
    let rows: [Row; 8] = [
        ("rcp", rcp, [-0.0, -INF, INF, 0.0, NAN]),
        ("sqrt", sqrt, [NAN, -0.0, 0.0, INF, NAN]),
        ("rsqrt", rsqrt, [NAN, -INF, INF, 0.0, NAN]),
        ("sin", sin, [NAN, -0.0, 0.0, NAN, NAN]),
        ("cos", cos, [NAN, 1.0, 1.0, NAN, NAN]),
        ("lg2", lg2, [NAN, -INF, -INF, INF, NAN]),
        ("ex2", ex2, [0.0, 1.0, 1.0, INF, NAN]),
        ("tanh", tanh, [-1.0, -0.0, 0.0, 1.0, NAN]),
    ];
    for (name, function, results) in rows {
        for (operand, expected) in
            [-INF, -0.0, 0.0, INF, f32::from_bits(0xffc0_0001)].into_iter().zip(results)
        {
            let expected = if expected.is_nan() { 0x7fff_ffff } else { expected.to_bits() };
            assert_eq!(function(operand).to_bits(), expected, "{name} {operand}");
        }
    }
    for function in [sqrt, rsqrt, lg2] {
        assert_eq!(function(-1.0).to_bits(), 0x7fff_ffff);
        assert_eq!(function(f32::MIN).to_bits(), 0x7fff_ffff);
        assert_eq!(function(-TINY).to_bits(), 0x7fff_ffff);
    }
}

#[test]
fn powers_of_two_are_exact_and_others_within_two_ulps() {
    for exponent in -149..128 {
        assert_eq!(f64::from(ex2(exponent as f32)), 2f64.powi(exponent));
        assert_eq!(f64::from(lg2(2f64.powi(exponent) as f32)), f64::from(exponent));
    }
    for x in both_signs(between(1e-9, 160.0, 400_000)) {
        let nearest = f64::from(x).exp2() as f32;
        assert!(ulps(ex2(x), nearest) <= 2, "{x}: {} {nearest}", ex2(x));
    }
    for x in [-1000.0, -151.0, f32::MIN] {
        assert_eq!(ex2(x).to_bits(), 0);
    }
    for x in [128.0, 1000.0, f32::MAX] {
        assert_eq!(ex2(x), INF);
    }
    assert_eq!(ex2(TINY), 1.0);
}

#[test]
fn logarithms_are_within_the_error_of_the_isa() {
    let limit = 2f64.powi(-22);
    for x in between(0.5, 2.0, 400_000) {
        let exact = f64::from(x).log2();
        assert!((f64::from(lg2(x)) - exact).abs() <= limit, "{x}");
        assert!(x == 1.0 || relative(lg2(x).into(), exact) <= limit, "{x}");
    }
    for x in between(TINY, f32::MAX, 400_000) {
        assert!((0.5..=2.0).contains(&x) || relative(lg2(x).into(), f64::from(x).log2()) <= limit, "{x}");
    }
}

#[test]
fn reciprocals_and_roots_are_within_the_error_of_the_isa() {
    for x in between(TINY, f32::MAX, 200_000) {
        assert!(ulps(rcp(x), (1.0 / f64::from(x)) as f32) <= 1, "{x}");
        assert!(relative(sqrt(x).into(), f64::from(x).sqrt()) <= 2f64.powi(-23), "{x}");
        assert!(relative(rsqrt(x).into(), 1.0 / f64::from(x).sqrt()) <= 2f64.powf(-22.9), "{x}");
    }
}

#[test]
fn sines_and_cosines_are_within_the_error_of_the_isa() {
    use std::f32::consts::PI;
    for (high, limit) in [(2.0 * PI, -20.5), (100.0 * PI, -14.7)] {
        for x in both_signs(between(1e-6, high, 200_000)) {
            let wide = f64::from(x);
            assert!((f64::from(sin(x)) - wide.sin()).abs() <= 2f64.powf(limit), "{x}");
            assert!((f64::from(cos(x)) - wide.cos()).abs() <= 2f64.powf(limit), "{x}");
        }
    }
    for x in both_signs(between(1e-38, 8e6, 100_000)) {
        let wide = f64::from(x);
        assert!((f64::from(sin(x)) - wide.sin()).abs() <= wide.sin().abs().max(1e-3) * 2f64.powi(-23), "{x}");
        assert!((f64::from(cos(x)) - wide.cos()).abs() <= wide.cos().abs().max(1e-3) * 2f64.powi(-23), "{x}");
    }
    for x in both_signs(between(8e6, f32::MAX, 10_000)) {
        assert!(sin(x).abs() <= 1.0 && cos(x).abs() <= 1.0, "{x}");
    }
    assert_eq!(sin(TINY), TINY);
    assert_eq!(sin(-TINY), -TINY);
}

#[test]
fn hyperbolic_tangents_are_within_the_error_of_the_isa() {
    for x in both_signs(between(f32::MIN_POSITIVE, 40.0, 200_000)) {
        assert!(relative(tanh(x).into(), f64::from(x).tanh()) <= 2f64.powi(-21), "{x}");
        assert!(tanh(x).abs() <= 1.0);
    }
    for x in both_signs(between(TINY, f32::MIN_POSITIVE, 10_000)) {
        assert_eq!(tanh(x), x);
    }
}

proptest! {
    #[test]
    fn quotients_are_within_the_error_of_the_isa(a in any_f32(), b in any_f32()) {
        prop_assume!(b != 0.0);
        let nearest = a / b;
        prop_assert_eq!(div_full(a, b), nearest);
        let (low, high) = (2f32.powi(-126), 2f32.powi(126));
        if (low..=high).contains(&b.abs()) {
            prop_assert!(ulps(div(a, b), nearest) <= 2, "{:e} {:e}", a, b);
        } else if b.abs() > high {
            prop_assert_eq!(div(a, b).to_bits(), (0f32 * a.signum() * b.signum()).to_bits());
            prop_assert_eq!(div(INF, b).to_bits(), 0x7fff_ffff);
        }
    }

    #[test]
    fn gross_approximations_of_f64_use_the_upper_half(bits: u64) {
        let a = f64::from_bits(bits);
        prop_assume!(a.is_normal());
        for (result, exact) in [(rcp_ftz_f64(a), 1.0 / a), (rsqrt_ftz_f64(a.abs()), 1.0 / a.abs().sqrt())] {
            prop_assert_eq!(result.to_bits() as u32, 0);
            if exact.is_normal() {
                prop_assert!(relative(result, exact) < 2f64.powi(-19), "{:e}", a);
            } else {
                prop_assert_eq!(result.to_bits(), exact.to_bits() & 1 << 63);
            }
        }
        prop_assert!(relative(rsqrt_f64(a.abs()), 1.0 / a.abs().sqrt()) < 1e-15);
    }
}

#[test]
fn gross_approximations_of_f64_follow_their_tables() {
    let inf = f64::INFINITY;
    let subnormal = f64::from_bits(0x000f_ffff_ffff_ffff);
    let nan = f64::from_bits(0x7fff_ffff_0000_0000);
    let payload = f64::from_bits(0xfff0_0000_0000_0001);
    // PTX ISA 9.7.3.14 and 9.7.3.17.
    for (a, reciprocal, root) in [
        (-inf, -0.0, nan),
        (-subnormal, -inf, -inf),
        (-0.0, -inf, -inf),
        (0.0, inf, inf),
        (subnormal, inf, inf),
        (inf, 0.0, 0.0),
        (payload, -0.0, nan),
        (f64::NAN, nan, nan),
        (-1.0, -1.0, nan),
        (f64::MAX, 0.0, 2f64.powi(-512)),
        (f64::MIN_POSITIVE, 2f64.powi(1022), 2f64.powi(511)),
    ] {
        assert_eq!(rcp_ftz_f64(a).to_bits(), reciprocal.to_bits(), "{a:e}");
        let result = rsqrt_ftz_f64(a);
        assert!(result.to_bits() == root.to_bits() || relative(result, root) < 1e-6, "{a:e}");
    }
    for (a, result) in [(-inf, NAN_F64), (-0.0, -inf), (0.0, inf), (inf, 0.0), (-1.0, NAN_F64)] {
        assert_eq!(rsqrt_f64(a).to_bits(), result.to_bits());
    }
    assert_eq!(rsqrt_f64(payload).to_bits(), 0xfff8_0000_0000_0001);
}

#[test]
fn every_half_is_within_the_error_of_the_isa() {
    for a in 0..=u16::MAX {
        let x = F16::widen(a);
        let exact = f64::from(x).exp2();
        let result = f64::from(F16::widen(ex2_f16(a)));
        if x.is_nan() {
            assert_eq!((ex2_f16(a), tanh_f16(a)), (0x7fff, 0x7fff));
        } else {
            // Below 2^-14 a number has less bits: half of the last is the error.
            let limit = (exact * 2f64.powf(-9.9)).max(2f64.powi(-25));
            assert!(
                result == exact || (result - exact).abs() <= limit || exact >= 65520.0 && result > exact,
                "{x}"
            );
            let error = (f64::from(F16::widen(tanh_f16(a))) - f64::from(x).tanh()).abs();
            assert!(error <= 2f64.powf(-10.987), "{x}");
        }
        let x = Bf16::widen(a);
        let exact = f64::from(x).exp2();
        let result = f64::from(Bf16::widen(ex2_ftz_bf16(a)));
        if x.is_nan() {
            assert_eq!((ex2_ftz_bf16(a), tanh_bf16(a)), (0x7fff, 0x7fff));
        } else {
            let is_right = relative(result, exact) <= 2f64.powi(-7)
                || exact < 2f64.powi(-126) && result == 0.0
                || exact > 3.3e38 && result > exact;
            assert!(is_right, "{x} {result} {exact}");
            let error = (f64::from(Bf16::widen(tanh_bf16(a))) - f64::from(x).tanh()).abs();
            assert!(error <= 2f64.powi(-8), "{x}");
        }
    }
    assert_eq!((ex2_ftz_bf16(0x8001), ex2_ftz_bf16(0xff80), ex2_ftz_bf16(0x7f80)), (0x3f80, 0, 0x7f80));
    assert_eq!((tanh_f16(0x8001), tanh_bf16(0x8000), tanh_f16(0xfc00)), (0x8001, 0x8000, 0xbc00));
}
