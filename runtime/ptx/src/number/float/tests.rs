use super::*;
use crate::number::exact::{
    BINARY32, BINARY64, Exact, ROUNDINGS, any_f32, any_f64, expect_f32, expect_f64, round_sum,
};
use proptest::prelude::*;

const INF: f32 = f32::INFINITY;
const TINY: f32 = f32::from_bits(1);

fn exact(x: f32) -> Exact {
    Exact::from_f64(x.into())
}

proptest! {
    #[test]
    fn sums_and_products_of_f32_round_as_the_exact_model(a in any_f32(), b in any_f32()) {
        for round in ROUNDINGS {
            expect_f32(add_f32(a, b, round), round_sum(&exact(a), &exact(b), BINARY32, round))?;
            expect_f32(sub_f32(a, b, round), round_sum(&exact(a), &exact(-b), BINARY32, round))?;
            expect_f32(mul_f32(a, b, round), exact(a).times(&exact(b)).round(BINARY32, round))?;
        }
    }

    #[test]
    fn fused_sums_of_f32_round_as_the_exact_model(
        a in any_f32(), b in any_f32(), c in any_f32(), cancels: bool
    ) {
        // Nearly cancelling operands show wrong roundings of the product.
        let near = -(f64::from(a) * f64::from(b)) as f32;
        let c = if cancels && near.is_finite() { near } else { c };
        let product = exact(a).times(&exact(b));
        for round in ROUNDINGS {
            expect_f32(fma_f32(a, b, c, round), round_sum(&product, &exact(c), BINARY32, round))?;
        }
    }

    #[test]
    fn quotients_and_roots_of_f32_round_as_the_exact_model(a in any_f32(), b in any_f32()) {
        prop_assume!(a != 0.0 && b != 0.0);
        let quotient = exact(a).over(&exact(b));
        let reciprocal = exact(1.0).over(&exact(b));
        let root = exact(a.abs()).root();
        for round in ROUNDINGS {
            expect_f32(div_f32(a, b, round), quotient.round(BINARY32, round))?;
            expect_f32(rcp_f32(b, round), reciprocal.round(BINARY32, round))?;
            expect_f32(sqrt_f32(a.abs(), round), root.round(BINARY32, round))?;
        }
        // Quotients and roots that are exact, or nearly.
        let (multiple, square) = (a * b, a * a);
        if !multiple.is_normal() || !square.is_normal() {
            return Ok(());
        }
        let (quotient, root) = (exact(multiple).over(&exact(b)), exact(square).root());
        for round in ROUNDINGS {
            expect_f32(div_f32(multiple, b, round), quotient.round(BINARY32, round))?;
            expect_f32(sqrt_f32(square, round), root.round(BINARY32, round))?;
        }
    }

    #[test]
    fn sums_and_products_of_f64_round_as_the_exact_model(
        a in any_f64(), b in any_f64(), c in any_f64(), cancels: bool
    ) {
        let [x, y] = [a, b].map(Exact::from_f64);
        let near = -(a * b);
        let c = if cancels && near.is_finite() { near } else { c };
        for round in ROUNDINGS {
            expect_f64(add_f64(a, b, round), round_sum(&x, &y, BINARY64, round))?;
            expect_f64(sub_f64(a, b, round), round_sum(&x, &Exact::from_f64(-b), BINARY64, round))?;
            expect_f64(mul_f64(a, b, round), x.times(&y).round(BINARY64, round))?;
            let sum = round_sum(&x.times(&y), &Exact::from_f64(c), BINARY64, round);
            expect_f64(fma_f64(a, b, c, round), sum)?;
        }
    }

    #[test]
    fn quotients_and_roots_of_f64_round_as_the_exact_model(a in any_f64(), b in any_f64()) {
        prop_assume!(a != 0.0 && b != 0.0);
        let [x, y] = [a, b].map(Exact::from_f64);
        let (quotient, root) = (x.over(&y), Exact::from_f64(a.abs()).root());
        for round in ROUNDINGS {
            expect_f64(div_f64(a, b, round), quotient.round(BINARY64, round))?;
            expect_f64(sqrt_f64(a.abs(), round), root.round(BINARY64, round))?;
        }
        let (multiple, square) = (a * b, a * a);
        if !multiple.is_normal() || !square.is_normal() {
            return Ok(());
        }
        let (quotient, root) = (Exact::from_f64(multiple).over(&y), Exact::from_f64(square).root());
        for round in ROUNDINGS {
            expect_f64(div_f64(multiple, b, round), quotient.round(BINARY64, round))?;
            expect_f64(sqrt_f64(square, round), root.round(BINARY64, round))?;
        }
    }
}

#[test]
fn quotients_just_beside_a_number_are_not_taken_for_it() {
    // (1 + 2^-49) / (1 + 2^-50) is about 1 + 2^-50 - 2^-100.
    let [a, b] = [49, 50].map(|bits| 1.0 + 2f64.powi(-bits));
    assert_eq!(div_f64(a, b, Rounding::Nearest), b);
    assert_eq!(div_f64(a, b, Rounding::Up), b);
    assert_eq!(div_f64(a, b, Rounding::Down), b - f64::EPSILON);
    assert_eq!(div_f64(a, b, Rounding::Zero), b - f64::EPSILON);
    assert_eq!(div_f64(-a, b, Rounding::Down), -b);
    // 1 / (1 - 2^-50) is about 1 + 2^-50 + 2^-100.
    let c = 1.0 - 2f64.powi(-50);
    assert_eq!(rcp_f64(c, Rounding::Nearest), b);
    assert_eq!(rcp_f64(c, Rounding::Up), b + f64::EPSILON);
    assert_eq!(rcp_f64(c, Rounding::Down), b);
}

/// Compares bits, so that -0 and +0 differ.
#[track_caller]
fn same(actual: f32, expected: f32) {
    assert_eq!(actual.to_bits(), expected.to_bits(), "{actual:e}, expected {expected:e}");
}

#[test]
fn single_nans_are_canonical() {
    let odd_nan = f32::from_bits(0xffa0_0001);
    for round in ROUNDINGS {
        let results = [
            add_f32(INF, -INF, round),
            sub_f32(INF, INF, round),
            mul_f32(0.0, INF, round),
            fma_f32(INF, 1.0, -INF, round),
            fma_f32(0.0, INF, 1.0, round),
            div_f32(0.0, 0.0, round),
            div_f32(INF, INF, round),
            sqrt_f32(-1.0, round),
            rcp_f32(odd_nan, round),
            add_f32(odd_nan, 1.0, round),
            fma_f32(1.0, 1.0, odd_nan, round),
        ];
        for result in results {
            same(result, NAN_F32);
        }
    }
    same(abs_f32(odd_nan), NAN_F32);
    same(neg_f32(odd_nan), NAN_F32);
}

#[test]
fn double_nans_keep_the_payload_of_the_first_operand() {
    let first = f64::from_bits(0x7ff0_0000_0000_0123);
    let second = f64::from_bits(0xfff8_0000_0000_0456);
    let quiet = 0x7ff8_0000_0000_0123;
    for round in ROUNDINGS {
        assert_eq!(add_f64(first, second, round).to_bits(), quiet);
        assert_eq!(sub_f64(1.0, second, round).to_bits(), second.to_bits());
        assert_eq!(mul_f64(first, 0.0, round).to_bits(), quiet);
        assert_eq!(fma_f64(1.0, first, second, round).to_bits(), quiet);
        assert_eq!(fma_f64(0.0, f64::INFINITY, second, round).to_bits(), second.to_bits());
        assert_eq!(div_f64(second, first, round).to_bits(), second.to_bits());
        assert_eq!(sqrt_f64(first, round).to_bits(), quiet);
        assert_eq!(add_f64(f64::INFINITY, -f64::INFINITY, round).to_bits(), NAN_F64.to_bits());
        assert_eq!(mul_f64(0.0, f64::INFINITY, round).to_bits(), NAN_F64.to_bits());
        assert_eq!(div_f64(0.0, 0.0, round).to_bits(), NAN_F64.to_bits());
        assert_eq!(sqrt_f64(-1.0, round).to_bits(), NAN_F64.to_bits());
    }
    assert_eq!(abs_f64(second).to_bits(), second.to_bits());
    assert_eq!(neg_f64(second).to_bits(), second.to_bits());
    assert_eq!(min_f64(first, second).to_bits(), quiet);
}

#[test]
fn infinities_and_zeros_do_not_depend_on_the_rounding() {
    for round in ROUNDINGS {
        same(add_f32(INF, f32::MAX, round), INF);
        same(fma_f32(f32::MAX, f32::MAX, -INF, round), -INF);
        same(div_f32(1.0, 0.0, round), INF);
        same(rcp_f32(-0.0, round), -INF);
        same(rcp_f32(-INF, round), -0.0);
        same(sqrt_f32(-0.0, round), -0.0);
        same(sqrt_f32(INF, round), INF);
        same(mul_f32(-0.0, 2.0, round), -0.0);
        same(add_f32(-0.0, -0.0, round), -0.0);
        same(add_f32(0.0, 0.0, round), 0.0);
        let zero = if round == Rounding::Down { -0.0 } else { 0.0 };
        same(sub_f32(1.0, 1.0, round), zero);
        same(add_f32(0.0, -0.0, round), zero);
        same(fma_f32(1.0, 2.0, -2.0, round), zero);
        assert_eq!(add_f64(1.0, -1.0, round).to_bits(), f64::from(zero).to_bits());
        assert_eq!(fma_f64(f64::MAX, f64::MAX, f64::NEG_INFINITY, round), f64::NEG_INFINITY);
        assert_eq!(div_f64(-1.0, f64::INFINITY, round).to_bits(), 1 << 63);
        assert_eq!(sqrt_f64(-0.0, round).to_bits(), 1 << 63);
        assert_eq!(rcp_f64(0.0, round), f64::INFINITY);
        assert_eq!(mul_f64(-0.0, 2.0, round).to_bits(), 1 << 63);
    }
}

#[test]
fn overflow_and_underflow_follow_the_direction() {
    use Rounding::*;
    for (round, up, down) in
        [(Nearest, INF, -INF), (Zero, f32::MAX, f32::MIN), (Down, f32::MAX, -INF), (Up, INF, f32::MIN)]
    {
        same(add_f32(f32::MAX, f32::MAX, round), up);
        same(mul_f32(f32::MIN, 2.0, round), down);
    }
    for (round, above, below) in
        [(Nearest, 0.0, -0.0), (Zero, 0.0, -0.0), (Down, 0.0, -TINY), (Up, TINY, -0.0)]
    {
        same(mul_f32(TINY, 0.25, round), above);
        same(mul_f32(-TINY, 0.25, round), below);
        same(fma_f32(TINY, TINY, 0.0, round), above);
    }
}

#[test]
fn flushing_keeps_the_sign_and_all_other_numbers() {
    let largest = f32::from_bits(0x007f_ffff);
    for (x, expected) in [
        (TINY, 0.0),
        (-largest, -0.0),
        (-0.0, -0.0),
        (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
        (-INF, -INF),
        (1.5, 1.5),
    ] {
        same(flush_f32(x), expected);
    }
    same(flush_f32(NAN_F32), NAN_F32);
    // A result that rounds to the smallest normal number is not subnormal.
    same(flush_f32(mul_f32(f32::from_bits(0x00ff_ffff), 0.5, Rounding::Nearest)), f32::MIN_POSITIVE);
}

#[test]
fn saturation_limits_to_one_and_clears_nan() {
    for (x, expected) in [
        (-1.0, 0.0),
        (-0.0, 0.0),
        (0.0, 0.0),
        (TINY, TINY),
        (0.5, 0.5),
        (1.0, 1.0),
        (1.5, 1.0),
        (INF, 1.0),
        (-INF, 0.0),
        (f32::NAN, 0.0),
    ] {
        same(saturate_f32(x), expected);
        assert_eq!(saturate_f64(x.into()).to_bits(), f64::from(expected).to_bits());
    }
}

#[test]
fn minimum_and_maximum_prefer_numbers_and_order_zeros() {
    let nan = f32::from_bits(0x7f80_0001);
    for (a, b, min, max) in [
        (1.0, 2.0, 1.0, 2.0),
        (2.0, 1.0, 1.0, 2.0),
        (-0.0, 0.0, -0.0, 0.0),
        (0.0, -0.0, -0.0, 0.0),
        (nan, 1.0, 1.0, 1.0),
        (1.0, nan, 1.0, 1.0),
        (-INF, INF, -INF, INF),
        (nan, nan, NAN_F32, NAN_F32),
    ] {
        same(min_f32(a, b), min);
        same(max_f32(a, b), max);
        if !a.is_nan() || !b.is_nan() {
            assert_eq!(min_f64(a.into(), b.into()).to_bits(), f64::from(min).to_bits());
            assert_eq!(max_f64(a.into(), b.into()).to_bits(), f64::from(max).to_bits());
        }
        let has_nan = a.is_nan() || b.is_nan();
        same(min_nan_f32(a, b), if has_nan { NAN_F32 } else { min });
        same(max_nan_f32(a, b), if has_nan { NAN_F32 } else { max });
    }
    same(xor_sign_f32(min_f32(3.0, 2.0), -3.0, 2.0), -2.0);
    same(xor_sign_f32(max_f32(3.0, 2.0), -3.0, -2.0), 3.0);
    same(xor_sign_f32(NAN_F32, -3.0, 2.0), NAN_F32);
}

#[test]
fn signs_are_copied_from_the_first_operand() {
    same(copysign_f32(-1.0, 2.0), -2.0);
    same(copysign_f32(1.0, -0.0), 0.0);
    same(copysign_f32(-0.0, NAN_F32), f32::from_bits(u32::MAX));
    assert_eq!(copysign_f64(-1.0, 2.0), -2.0);
    same(abs_f32(-0.0), 0.0);
    same(neg_f32(0.0), -0.0);
    assert_eq!((abs_f64(-2.0), neg_f64(2.0)), (2.0, -2.0));
}

#[test]
fn properties_are_those_of_the_isa() {
    use Property::*;
    let all = [Finite, Infinite, Number, NotANumber, Normal, Subnormal];
    for (x, expected) in [
        (0.0, [true, false, true, false, true, false]),
        (-0.0, [true, false, true, false, true, false]),
        (1.0, [true, false, true, false, true, false]),
        (TINY, [true, false, true, false, false, true]),
        (INF, [false, true, true, false, false, false]),
        (f32::NAN, [false, false, false, true, false, false]),
    ] {
        assert_eq!(all.map(|property| testp_f32(x, property)), expected, "{x}");
        let wide = if x == TINY { f64::from_bits(1) } else { x.into() };
        assert_eq!(all.map(|property| testp_f64(wide, property)), expected, "{x}");
    }
}

#[test]
fn ordered_comparisons_are_false_and_unordered_ones_true_with_nan() {
    use Comparison::*;
    let ordered = [Eq, Ne, Lt, Le, Gt, Ge, Num];
    let unordered = [Equ, Neu, Ltu, Leu, Gtu, Geu, Nan];
    for (a, b, expected) in [
        (1.0, 2.0, [false, true, true, true, false, false]),
        (2.0, 1.0, [false, true, false, false, true, true]),
        (-0.0, 0.0, [true, false, false, true, false, true]),
        (INF, INF, [true, false, false, true, false, true]),
    ] {
        for index in 0..6 {
            for comparison in [ordered[index], unordered[index]] {
                assert_eq!(compare_f32(a, b, comparison), expected[index], "{a} {b} {comparison:?}");
                assert_eq!(compare_f64(a.into(), b.into(), comparison), expected[index]);
            }
        }
        assert!(compare_f32(a, b, Num) && !compare_f32(a, b, Nan));
        assert!(compare_f64(a.into(), b.into(), Num) && !compare_f64(a.into(), b.into(), Nan));
    }
    for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::NAN, f32::NAN)] {
        for index in 0..7 {
            assert!(!compare_f32(a, b, ordered[index]) && compare_f32(a, b, unordered[index]));
            assert!(!compare_f64(a.into(), b.into(), ordered[index]));
            assert!(compare_f64(a.into(), b.into(), unordered[index]));
        }
    }
}
