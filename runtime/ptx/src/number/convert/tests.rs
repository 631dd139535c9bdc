use super::*;
use crate::number::exact::{
    BFLOAT16, BINARY16, BINARY32, BINARY64, Exact, ROUNDINGS, any_f32, any_f64, expect_f32, expect_f64,
};
use crate::number::half::{Bf16, F16};
use proptest::prelude::*;

fn exact(x: i128) -> Exact {
    Exact::from_integer(x < 0, x.unsigned_abs())
}

fn check_integer<T: AnyInteger>(x: T, value: i128) -> Result<(), TestCaseError> {
    for round in ROUNDINGS {
        expect_f32(integer_to_f32(x, round), exact(value).round(BINARY32, round))?;
        expect_f64(integer_to_f64(x, round), exact(value).round(BINARY64, round))?;
        prop_assert_eq!(u64::from(integer_to_half::<F16, T>(x, round)), exact(value).round(BINARY16, round));
        prop_assert_eq!(u64::from(integer_to_half::<Bf16, T>(x, round)), exact(value).round(BFLOAT16, round));
    }
    Ok(())
}

/// Rounds to an integer as IEEE 754 defines it, with integers only.
fn round_to_i128(x: f64, round: Rounding) -> i128 {
    let field = (x.to_bits() >> 52 & 0x7ff) as i32;
    let fraction = x.to_bits() & 0xf_ffff_ffff_ffff;
    let mantissa = i128::from(if field == 0 { fraction } else { fraction | 1 << 52 });
    let exponent = field.max(1) - 1075;
    let sign = if x < 0.0 { -1 } else { 1 };
    if exponent >= 0 {
        return sign * (mantissa << exponent.min(70));
    }
    let shift = (-exponent).min(100);
    let (kept, rest, half) = (mantissa >> shift, mantissa & ((1 << shift) - 1), 1i128 << (shift - 1));
    let is_away = match round {
        Rounding::Nearest => rest > half || rest == half && kept % 2 == 1,
        Rounding::Zero => false,
        Rounding::Down => sign < 0 && rest != 0,
        Rounding::Up => sign > 0 && rest != 0,
    };
    sign * (kept + i128::from(is_away))
}

macro_rules! check_to_integer {
    ($x:expr, $convert:ident, $($integer:ty),*) => {$(
        for round in ROUNDINGS {
            let value = round_to_i128($x.into(), round);
            let expected = value.clamp(<$integer>::MIN.into(), <$integer>::MAX.into()) as $integer;
            prop_assert_eq!($convert::<$integer>($x, round), expected, "{:e} {:?}", $x, round);
        }
    )*};
}

proptest! {
    #[test]
    fn integers_become_floats_as_in_the_exact_model(bits: u64, zeros in 0u32..64, ones in 0u32..64) {
        let x = bits >> zeros | ((1 << (ones / 2)) - 1);
        check_integer(x, x.into())?;
        check_integer(x as i64, (x as i64).into())?;
        check_integer((x as i64).wrapping_neg(), (x as i64).wrapping_neg().into())?;
        check_integer(x as u32, (x as u32).into())?;
        check_integer(x as i32, (x as i32).into())?;
        check_integer(x as u16, (x as u16).into())?;
        check_integer(x as i8, (x as i8).into())?;
        // The neighbours of numbers halfway between those of f64.
        let halfway = (x | 1 << 63) & !0x7ff | 0x400;
        for x in [halfway - 1, halfway, halfway + 1, u64::MAX] {
            check_integer(x, x.into())?;
            check_integer(x as i64, (x as i64).into())?;
        }
    }

    #[test]
    fn floats_become_integers_as_in_the_exact_model(x in any_f32(), y in any_f64(), small in -400i32..400) {
        for x in [x, small as f32 / 2.0, small as f32 * 1.0e7] {
            check_to_integer!(x, f32_to_integer, u8, u16, u32, u64, i8, i16, i32, i64);
        }
        for y in [y, f64::from(small) / 2.0, f64::from(small) * 1.0e17, f64::from(small) * 1.0e7 + 0.5] {
            check_to_integer!(y, f64_to_integer, u8, u16, u32, u64, i8, i16, i32, i64);
        }
    }

    #[test]
    fn narrowing_an_f64_rounds_once(x in any_f64()) {
        for round in ROUNDINGS {
            expect_f32(f64_to_f32(x, round), Exact::from_f64(x).round(BINARY32, round))?;
        }
    }

    #[test]
    fn integral_values_are_the_rounded_ones(x in any_f32(), small in -400i32..400) {
        for x in [x, small as f32 / 4.0] {
            for round in ROUNDINGS {
                let integral = integral_f32(x, round);
                if x.abs() < 1e30 {
                    prop_assert_eq!(f64::from(integral), round_to_i128(x.into(), round) as f64);
                } else {
                    prop_assert_eq!(integral, x);
                }
                prop_assert_eq!(integral.is_sign_negative(), x.is_sign_negative());
                prop_assert_eq!(integral_f64(x.into(), round), f64::from(integral));
            }
        }
    }

    #[test]
    fn saturating_conversions_clamp(x: i64, shift in 0u32..64) {
        let x = x >> shift;
        prop_assert_eq!(signed_to_signed::<8>(x), x.clamp(-128, 127));
        prop_assert_eq!(signed_to_signed::<64>(x), x);
        prop_assert_eq!(signed_to_unsigned::<16>(x), x.clamp(0, 0xffff) as u64);
        prop_assert_eq!(signed_to_unsigned::<64>(x), x.max(0) as u64);
        let x = x as u64;
        prop_assert_eq!(unsigned_to_signed::<32>(x), x.min(0x7fff_ffff) as i64);
        prop_assert_eq!(unsigned_to_signed::<64>(x), x.min(i64::MAX as u64) as i64);
        prop_assert_eq!(unsigned_to_unsigned::<8>(x), x.min(255));
        prop_assert_eq!(unsigned_to_unsigned::<64>(x), x);
    }

    #[test]
    fn tf32_keeps_ten_bits(x in any_f32()) {
        // .tf32 has the exponents of f32: its numbers are those of f32 with 13 bits of 0.
        let bits = x.to_bits();
        let (below, rest) = (bits & !0x1fff, bits & 0x1fff);
        let up = below.wrapping_add(0x2000);
        prop_assert_eq!(f32_to_tf32_away(x), if rest >= 0x1000 { up } else { below });
        prop_assert_eq!(f32_to_tf32(x, Rounding::Zero), below);
        let is_up = rest > 0x1000 || rest == 0x1000 && below & 0x2000 != 0;
        prop_assert_eq!(f32_to_tf32(x, Rounding::Nearest), if is_up { up } else { below });
    }
}

#[test]
fn nan_becomes_the_integer_of_the_isa() {
    let (nan, wide) = (f32::NAN, f64::NAN);
    for round in ROUNDINGS {
        assert_eq!(f32_to_integer::<u8>(nan, round), 0);
        assert_eq!(f32_to_integer::<i16>(nan, round), 0);
        assert_eq!(f32_to_integer::<u32>(nan, round), 0);
        assert_eq!(f32_to_integer::<i32>(nan, round), 0);
        assert_eq!(f32_to_integer::<u64>(nan, round), 1 << 63);
        assert_eq!(f32_to_integer::<i64>(nan, round), i64::MIN);
        assert_eq!(f64_to_integer::<u8>(wide, round), 0x80);
        assert_eq!(f64_to_integer::<i8>(wide, round), i8::MIN);
        assert_eq!(f64_to_integer::<u16>(wide, round), 0x8000);
        assert_eq!(f64_to_integer::<u32>(wide, round), 1 << 31);
        assert_eq!(f64_to_integer::<i32>(wide, round), i32::MIN);
        assert_eq!(f64_to_integer::<u64>(wide, round), 1 << 63);
        assert_eq!(f64_to_integer::<i64>(wide, round), i64::MIN);
    }
}

#[test]
fn infinities_become_the_limits_of_integers() {
    for round in ROUNDINGS {
        assert_eq!(f32_to_integer::<i8>(f32::INFINITY, round), i8::MAX);
        assert_eq!(f32_to_integer::<i64>(f32::NEG_INFINITY, round), i64::MIN);
        assert_eq!(f32_to_integer::<u64>(f32::NEG_INFINITY, round), 0);
        assert_eq!(f64_to_integer::<u32>(f64::INFINITY, round), u32::MAX);
        assert_eq!(f64_to_integer::<i32>(-1e300, round), i32::MIN);
        assert_eq!(integral_f32(f32::NEG_INFINITY, round), f32::NEG_INFINITY);
        assert_eq!(f64_to_f32(f64::INFINITY, round), f32::INFINITY);
    }
}

#[test]
fn nan_stays_nan_between_floats() {
    let nan = f32::from_bits(0xff80_1234);
    assert_eq!(f32_to_f64(nan).to_bits(), 0xfff8_0246_8000_0000);
    assert_eq!(f32_to_f64(NAN_F32).to_bits(), 0x7fff_ffff_e000_0000);
    for round in ROUNDINGS {
        assert_eq!(f64_to_f32(f64::from_bits(0xfff0_0000_0000_0001), round).to_bits(), 0x7fff_ffff);
        assert_eq!(F16::narrow(nan, round), 0x7fff);
        assert_eq!(Bf16::narrow(nan, round), 0x7fff);
        assert_eq!(integral_f32(nan, round).to_bits(), 0x7fff_ffff);
        assert_eq!(integral_half::<F16>(0xfc01, round), 0x7fff);
    }
    assert_eq!(f32_to_tf32_away(nan), 0x7fff_ffff);
    assert_eq!(f32_to_tf32(nan, Rounding::Zero), 0x7fff_ffff);
}

#[test]
fn every_half_is_rounded_to_the_integer_of_its_f32() {
    for x in 0..=u16::MAX {
        for round in ROUNDINGS {
            let expected = integral_f32(F16::widen(x), round);
            assert!(expected.is_nan() || F16::widen(integral_half::<F16>(x, round)) == expected);
            let expected = integral_f32(Bf16::widen(x), round);
            assert!(expected.is_nan() || Bf16::widen(integral_half::<Bf16>(x, round)) == expected);
        }
    }
}

#[test]
fn limits_of_tf32_and_packing_follow_the_isa() {
    assert_eq!(f32_to_tf32_away(f32::MAX), f32::INFINITY.to_bits());
    assert_eq!(satfinite_tf32(f32_to_tf32_away(f32::MIN)), 0xff7f_e000);
    assert_eq!(f32_to_tf32_away(f32::INFINITY), f32::INFINITY.to_bits());
    assert_eq!(relu_tf32((-1.0f32).to_bits()), 0);
    assert_eq!(relu_tf32(0x7fff_ffff), 0x7fff_ffff);
    // The first operand is the upper half.
    assert_eq!(pack(0x3c00, 0x4000), 0x3c00_4000);
}
