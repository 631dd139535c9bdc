use super::*;
use crate::number::convert::{f32_to_f64, f64_to_f32};
use crate::number::exact::{BFLOAT16, BINARY16, Exact, Format, ROUNDINGS, any_f32, any_f64, round_sum};
use proptest::prelude::*;

fn exact<H: Half>(x: u16) -> Exact {
    Exact::from_f64(H::widen(x).into())
}

fn is_finite<H: Half>(x: u16) -> bool {
    x & H::INFINITY != H::INFINITY
}

/// All bits, zeros and long runs of them, and subnormal numbers.
fn any_half() -> impl Strategy<Value = u16> {
    prop_oneof![
        any::<u16>(),
        (any::<u16>(), 0u32..12).prop_map(|(bits, run)| bits >> run << run),
        (any::<u16>(), 1u16..4).prop_map(|(bits, field)| bits & 0x83ff | field << 7),
        (any::<u16>(), 5u32..16).prop_map(|(bits, zeros)| bits & SIGN | (bits & !SIGN) >> zeros),
    ]
}

fn check<H: Half>(format: Format, a: u16, b: u16, c: u16) -> Result<(), TestCaseError> {
    if ![a, b, c].into_iter().all(is_finite::<H>) {
        return Ok(());
    }
    let ([x, y, z], minus_y) = ([a, b, c].map(exact::<H>), exact::<H>(b ^ SIGN));
    let nearest = Rounding::Nearest;
    prop_assert_eq!(u64::from(add::<H>(a, b)), round_sum(&x, &y, format, nearest));
    prop_assert_eq!(u64::from(sub::<H>(a, b)), round_sum(&x, &minus_y, format, nearest));
    prop_assert_eq!(u64::from(mul::<H>(a, b)), x.times(&y).round(format, nearest));
    prop_assert_eq!(u64::from(fma::<H>(a, b, c)), round_sum(&x.times(&y), &z, format, nearest));
    // The addend that nearly cancels the product, and one that decides a tie.
    let product = f64::from(H::widen(a)) * f64::from(H::widen(b));
    for c in [H::narrow_f64(-product, nearest), 1, SIGN | 1] {
        if is_finite::<H>(c) {
            let expected = round_sum(&x.times(&y), &exact::<H>(c), format, nearest);
            prop_assert_eq!(u64::from(fma::<H>(a, b, c)), expected);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn arithmetic_of_f16_rounds_as_the_exact_model(a in any_half(), b in any_half(), c in any_half()) {
        check::<F16>(BINARY16, a, b, c)?;
    }

    #[test]
    fn arithmetic_of_bf16_rounds_as_the_exact_model(a in any_half(), b in any_half(), c in any_half()) {
        check::<Bf16>(BFLOAT16, a, b, c)?;
    }

    #[test]
    fn f32_is_narrowed_as_the_exact_model(x in any_f32(), half: u16, offset in -2i32..3) {
        // Numbers near those of the format and halfway between them.
        let near = |bits: f32| f32::from_bits(bits.to_bits().wrapping_add_signed(offset));
        let halfway_f16 = near(F16::widen(half) * (1.0 + f32::EPSILON * 4096.0));
        let halfway_bf16 = f32::from_bits((u32::from(half) << 16 | 0x8000).wrapping_add_signed(offset));
        let numbers = [x, halfway_f16, near(F16::widen(half)), halfway_bf16];
        for x in numbers.into_iter().filter(|x| x.is_finite()) {
            for round in ROUNDINGS {
                let exact = Exact::from_f64(x.into());
                prop_assert_eq!(u64::from(F16::narrow(x, round)), exact.round(BINARY16, round));
                prop_assert_eq!(u64::from(Bf16::narrow(x, round)), exact.round(BFLOAT16, round));
            }
        }
    }

    #[test]
    fn f64_is_narrowed_once(x in any_f64(), half: u16, offset in -2i64..3) {
        let halfway = f64::from_bits(
            f32_to_f64(f32::from_bits(u32::from(half) << 16 | 0x8000)).to_bits().wrapping_add_signed(offset)
        );
        let halfway_f16 = f64::from(F16::widen(half)) + f64::from(F16::widen(half & 0x7c00)) / 2048.0;
        let halfway_f16 = f64::from_bits(halfway_f16.to_bits().wrapping_add_signed(offset));
        for x in [x, halfway, halfway_f16].into_iter().filter(|x| x.is_finite()) {
            for round in ROUNDINGS {
                let exact = Exact::from_f64(x);
                prop_assert_eq!(u64::from(F16::narrow_f64(x, round)), exact.round(BINARY16, round));
                prop_assert_eq!(u64::from(Bf16::narrow_f64(x, round)), exact.round(BFLOAT16, round));
            }
        }
    }
}

#[test]
fn every_half_is_widened_exactly_and_narrowed_back() {
    for x in 0..=u16::MAX {
        let wide = F16::widen(x);
        let expected = ::half::f16::from_bits(x).to_f32_const();
        if expected.is_nan() {
            assert_eq!(wide.to_bits(), 0x7fff_ffff);
        } else {
            assert_eq!(wide.to_bits(), expected.to_bits(), "{x:#x}");
        }
        let wide_b = Bf16::widen(x);
        let expected = ::half::bf16::from_bits(x).to_f32_const();
        assert!(
            wide_b.to_bits() == expected.to_bits() || expected.is_nan() && wide_b.to_bits() == 0x7fff_ffff
        );
        for round in ROUNDINGS {
            let back = if wide.is_nan() { NAN } else { x };
            assert_eq!(F16::narrow(wide, round), back);
            assert_eq!(F16::narrow_f64(wide.into(), round), back);
            let back = if wide_b.is_nan() { NAN } else { x };
            assert_eq!(Bf16::narrow(wide_b, round), back);
            assert_eq!(Bf16::narrow_f64(wide_b.into(), round), back);
            assert_eq!(f64_to_f32(wide.into(), round).to_bits(), wide.to_bits());
        }
    }
}

fn unary_operations_of<H: Half>() {
    for x in 0..=u16::MAX {
        let wide = H::widen(x);
        let narrow = |x: f32| H::narrow_nearest(x);
        assert_eq!(neg::<H>(x), narrow(-wide));
        assert_eq!(abs::<H>(x), narrow(wide.abs()));
        let sat = if wide > 0.0 { wide.min(1.0) } else { 0.0 };
        assert_eq!(saturate::<H>(x), narrow(sat));
        let positive = if wide.is_nan() || wide > 0.0 { wide } else { 0.0 };
        assert_eq!(relu::<H>(x), narrow(positive));
        let is_subnormal = x & H::INFINITY == 0;
        assert_eq!(flush::<H>(x), if is_subnormal { x & SIGN } else { x });
        let limit = if wide.is_infinite() { x - 1 } else { x };
        assert_eq!(satfinite::<H>(x), limit);
    }
}

#[test]
fn unary_operations_agree_with_those_on_f32_for_every_f16() {
    unary_operations_of::<F16>();
}

#[test]
fn unary_operations_agree_with_those_on_f32_for_every_bf16() {
    unary_operations_of::<Bf16>();
}

fn minimum_and_maximum_of<H: Half>() {
    use crate::number::float::{max_f32, max_nan_f32, min_f32, min_nan_f32, xor_sign_f32};
    let some = [0, 1, 0x3c00, H::INFINITY, H::INFINITY + 1, NAN].into_iter().flat_map(|x| [x, x | SIGN]);
    for a in some {
        for b in 0..=u16::MAX {
            let (x, y) = (H::widen(a), H::widen(b));
            assert_eq!(min::<H>(a, b), H::narrow_nearest(min_f32(x, y)));
            assert_eq!(max::<H>(a, b), H::narrow_nearest(max_f32(x, y)));
            assert_eq!(min_nan::<H>(a, b), H::narrow_nearest(min_nan_f32(x, y)));
            assert_eq!(max_nan::<H>(a, b), H::narrow_nearest(max_nan_f32(x, y)));
            if b & H::INFINITY != H::INFINITY {
                let (wide, result) = (max_f32(x.abs(), y.abs()), max::<H>(abs::<H>(a), abs::<H>(b)));
                let expected = if a & !SIGN > H::INFINITY {
                    y.abs().copysign(if (a ^ b) & SIGN == 0 { 1.0 } else { -1.0 })
                } else {
                    xor_sign_f32(wide, x, y)
                };
                assert_eq!(xor_sign::<H>(result, a, b), H::narrow_nearest(expected));
            }
        }
    }
}

#[test]
fn minimum_and_maximum_of_f16_are_those_of_f32() {
    minimum_and_maximum_of::<F16>();
}

#[test]
fn minimum_and_maximum_of_bf16_are_those_of_f32() {
    minimum_and_maximum_of::<Bf16>();
}

fn special_values_of<H: Half>() {
    let (inf, minus_inf, max) = (H::INFINITY, H::INFINITY | SIGN, H::INFINITY - 1);
    assert_eq!(add::<H>(inf, minus_inf), NAN);
    assert_eq!(add::<H>(inf, max), inf);
    assert_eq!(mul::<H>(inf, SIGN), NAN);
    assert_eq!(mul::<H>(max, max), inf);
    assert_eq!(fma::<H>(max, max, minus_inf), minus_inf);
    assert_eq!(fma::<H>(inf, H::ONE, minus_inf), NAN);
    assert_eq!(fma::<H>(H::ONE, H::ONE, NAN | SIGN), NAN);
    assert_eq!(fma::<H>(0, inf, H::ONE), NAN);
    assert_eq!(add::<H>(max, max | SIGN), 0);
    assert_eq!(add::<H>(SIGN, SIGN), SIGN);
    assert_eq!(fma::<H>(SIGN, H::ONE, SIGN), SIGN);
    assert_eq!(mul::<H>(1, SIGN | 1), SIGN);
}

#[test]
fn special_values_follow_ieee_754() {
    special_values_of::<F16>();
    special_values_of::<Bf16>();
}

#[test]
fn a_fused_sum_is_not_rounded_to_f32_first() {
    // 683 x 3 is halfway between 2048 and 2050 of f16, and 2^-24 decides.
    let narrow = |x: f32| F16::narrow(x, Rounding::Nearest);
    let (a, b) = (narrow(683.0), narrow(3.0));
    assert_eq!(fma::<F16>(a, b, 0), narrow(2048.0));
    assert_eq!(fma::<F16>(a, b, 1), narrow(2050.0));
    assert_eq!(fma::<F16>(a, b, SIGN | 1), narrow(2048.0));
    // 7 x 37 is halfway between 258 and 260 of bf16, and the smallest number decides.
    let narrow = |x: f32| Bf16::narrow(x, Rounding::Nearest);
    let (a, b) = (narrow(7.0), narrow(37.0));
    assert_eq!(fma::<Bf16>(a, b, 0), narrow(260.0));
    assert_eq!(fma::<Bf16>(a, b, 1), narrow(260.0));
    assert_eq!(fma::<Bf16>(a, b, SIGN | 1), narrow(258.0));
}
