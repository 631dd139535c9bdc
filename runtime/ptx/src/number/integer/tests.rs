use super::*;
use proptest::prelude::*;

/// The pseudo code of PTX ISA 9.7.1.19.
fn bfe_model(a: u64, position: u32, length: u32, msb: u32, is_signed: bool) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let bit = |index: u32| a >> index & 1;
    let sign = if !is_signed || length == 0 { 0 } else { bit((position + length - 1).min(msb)) };
    (0..=msb)
        .map(|i| if i < length && position + i <= msb { bit(position + i) << i } else { sign << i })
        .sum()
}

/// The pseudo code of PTX ISA 9.7.1.20.
fn bfi_model(a: u64, b: u64, position: u32, length: u32, msb: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let mut result = b;
    let mut i = 0;
    while i < length && position + i <= msb {
        result = result & !(1 << (position + i)) | (a >> i & 1) << (position + i);
        i += 1;
    }
    result
}

/// The pseudo code of PTX ISA 9.7.1.17.
fn fns_model(mask: u32, base: u32, offset: i32) -> u32 {
    let bit = |position: i64| mask >> position & 1 == 1;
    if offset == 0 {
        return if bit(base.into()) { base } else { u32::MAX };
    }
    let mut position = i64::from(base);
    let mut count = i64::from(offset).abs() - 1;
    while (0..32).contains(&position) {
        if bit(position) {
            if count == 0 {
                return position as u32;
            }
            count -= 1;
        }
        position += i64::from(offset.signum());
    }
    u32::MAX
}

/// The pseudo code of PTX ISA 9.7.1.22.
fn bmsk_model(a: u32, b: u32, is_clamp: bool) -> u32 {
    let (a1, b1) = (a & 31, b & 31);
    let sum = a1 + b1;
    let mut mask0 = u32::MAX << a1;
    let mut is_over = sum >= 32;
    if is_clamp {
        if a >= 32 {
            is_over = true;
            mask0 = 0;
        }
        is_over |= b >= 32;
    }
    let mask1 = match is_over {
        true => 0,
        false if b1 == 0 => u32::MAX,
        false => u32::MAX << sum,
    };
    mask0 & !mask1
}

/// The pseudo code of PTX ISA 9.7.1.21.
fn szext_model(a: u32, b: u32, is_clamp: bool, is_signed: bool) -> u32 {
    let b1 = b & 31;
    let is_large = b >= 32 && is_clamp;
    let mask = if is_large { 0 } else { u32::MAX << b1 };
    let is_negative = b1 != 0 && !is_large && is_signed && a >> ((b1.wrapping_sub(1)) & 31) & 1 == 1;
    a & !mask | if is_negative { mask } else { 0 }
}

const AMOUNTS: [u32; 12] = [0, 1, 7, 15, 16, 31, 32, 33, 63, 64, 255, u32::MAX];

proptest! {
    #[test]
    fn bit_fields_follow_the_pseudo_code(a: u64, b: u64, position in 0u32..300, length in 0u32..300) {
        let low = a as u32;
        prop_assert_eq!(
            u64::from(u32::bfe(low, position, length)),
            bfe_model(low.into(), position, length, 31, false)
        );
        prop_assert_eq!(
            u64::from(i32::bfe(low as i32, position, length) as u32),
            bfe_model(low.into(), position, length, 31, true)
        );
        prop_assert_eq!(u64::bfe(a, position, length), bfe_model(a, position, length, 63, false));
        prop_assert_eq!(
            i64::bfe(a as i64, position, length) as u64,
            bfe_model(a, position, length, 63, true)
        );
        prop_assert_eq!(
            u64::from(bfi_b32(low, b as u32, position, length)),
            bfi_model(low.into(), b & 0xffff_ffff, position, length, 31)
        );
        prop_assert_eq!(bfi_b64(a, b, position, length), bfi_model(a, b, position, length, 63));
    }

    #[test]
    fn masks_and_extensions_follow_the_pseudo_code(a: u32, position in 0u32..70, width in 0u32..70) {
        for is_clamp in [false, true] {
            prop_assert_eq!(bmsk(position, width, is_clamp), bmsk_model(position, width, is_clamp));
            prop_assert_eq!(
                szext_s32(a as i32, width, is_clamp) as u32,
                szext_model(a, width, is_clamp, true)
            );
            prop_assert_eq!(szext_u32(a, width, is_clamp), szext_model(a, width, is_clamp, false));
        }
    }

    #[test]
    fn the_nth_set_bit_follows_the_pseudo_code(mask: u32, base in 0u32..32, offset in -34i32..35) {
        prop_assert_eq!(fns(mask, base, offset), fns_model(mask, base, offset));
    }

    #[test]
    fn quotients_and_remainders_are_those_of_rust(a: u64, b: u64, shift in 0u32..64) {
        let b = b.wrapping_shr(shift).max(1);
        prop_assert_eq!((u64::div(a, b), u64::rem(a, b)), (a / b, a % b));
        let (c, d) = (a as i64, b as i64);
        prop_assert_eq!((i64::div(c, d), i64::rem(c, d)), (c.wrapping_div(d), c.wrapping_rem(d)));
        let (a, b) = (a as u32, (b as u32).max(1));
        prop_assert_eq!((u32::div(a, b), u32::rem(a, b)), (a / b, a % b));
        // Multiples and their neighbours are those that a wrong rounding would get wrong.
        let multiple = a / b * b;
        for a in [multiple, multiple.wrapping_sub(1), multiple.wrapping_add(b - 1)] {
            prop_assert_eq!((u32::div(a, b), u32::rem(a, b)), (a / b, a % b));
        }
        let (c, d) = (a as i32, b as i32);
        prop_assert_eq!((i32::div(c, d), i32::rem(c, d)), (c.wrapping_div(d), c.wrapping_rem(d)));
        let (a, b) = (a as u16, (b as u16).max(1));
        prop_assert_eq!((u16::div(a, b), u16::rem(a, b)), (a / b, a % b));
        let (c, d) = (a as i16, b as i16);
        prop_assert_eq!((i16::div(c, d), i16::rem(c, d)), (c.wrapping_div(d), c.wrapping_rem(d)));
    }

    #[test]
    fn carries_compose_to_128_bits(a: u128, b: u128) {
        let words = |x: u128| [x as u32, (x >> 32) as u32, (x >> 64) as u32, (x >> 96) as u32];
        let (mut sum, mut difference) = ([0; 4], [0; 4]);
        let (mut carry, mut borrow) = (false, false);
        for (index, (&a, &b)) in words(a).iter().zip(&words(b)).enumerate() {
            (sum[index], carry) = u32::add_carry(a, b, carry);
            let (word, out) = i32::sub_borrow(a as i32, b as i32, borrow);
            (difference[index], borrow) = (word as u32, out);
        }
        prop_assert_eq!((sum, carry), (words(a.wrapping_add(b)), a.overflowing_add(b).1));
        prop_assert_eq!((difference, borrow), (words(a.wrapping_sub(b)), a < b));
    }

    #[test]
    fn the_extended_product_of_the_isa_is_right(a: u64, b: u64) {
        // The example of PTX ISA 9.7.2.6, with halves of 64 bits.
        let (r4, r5) = (a as u32, (a >> 32) as u32);
        let (r6, r7) = (b as u32, (b >> 32) as u32);
        let r0 = r4.wrapping_mul(r6);
        let r1 = u32::mul_hi(r4, r6);
        let (r1, carry) = u32::mad_lo_carry(r5, r6, r1, false);
        let (r2, _) = u32::mad_hi_carry(r5, r6, 0, carry);
        let (r1, carry) = u32::mad_lo_carry(r4, r7, r1, false);
        let (r2, carry) = u32::mad_hi_carry(r4, r7, r2, carry);
        let (r3, _) = u32::add_carry(0, 0, carry);
        let (r2, carry) = u32::mad_lo_carry(r5, r7, r2, false);
        let (r3, _) = u32::mad_hi_carry(r5, r7, r3, carry);
        let product = [r0, r1, r2, r3].iter().rev().fold(0, |all, &word| all << 32 | u128::from(word));
        prop_assert_eq!(product, u128::from(a) * u128::from(b));
    }

    #[test]
    fn products_have_the_bits_of_wider_ones(a: i64, b: i64, c: i64) {
        prop_assert_eq!(i64::mul_hi(a, b), ((i128::from(a) * i128::from(b)) >> 64) as i64);
        prop_assert_eq!(
            u64::mad_hi(a as u64, b as u64, c as u64),
            (((u128::from(a as u64) * u128::from(b as u64)) >> 64) as u64).wrapping_add(c as u64)
        );
        let (x, y) = (a as i32, b as i32);
        prop_assert_eq!(i32::mul_wide(x, y), i64::from(x) * i64::from(y));
        prop_assert_eq!(u32::mad_wide(x as u32, y as u32, c as u64),
            (u64::from(x as u32) * u64::from(y as u32)).wrapping_add(c as u64));
        let (x24, y24) = (x << 8 >> 8, y << 8 >> 8);
        let wide = i64::from(x24) * i64::from(y24);
        prop_assert_eq!(mul24_lo_s32(x, y), wide as i32);
        prop_assert_eq!(mul24_hi_s32(x, y), (wide >> 16) as i32);
        let wide = u64::from(x as u32 & 0xff_ffff) * u64::from(y as u32 & 0xff_ffff);
        prop_assert_eq!(mul24_lo_u32(x as u32, y as u32), wide as u32);
        prop_assert_eq!(mul24_hi_u32(x as u32, y as u32), (wide >> 16) as u32);
        let (x, y) = (a as i16, b as i16);
        prop_assert_eq!(i16::mul_hi(x, y), ((i32::from(x) * i32::from(y)) >> 16) as i16);
        prop_assert_eq!(u16::mul_wide(x as u16, y as u16), u32::from(x as u16) * u32::from(y as u16));
    }

    #[test]
    fn funnel_shifts_take_64_bits(low: u32, high: u32, amount in prop::sample::select(&AMOUNTS)) {
        let both = u64::from(high) << 32 | u64::from(low);
        for (is_clamp, n) in [(true, amount.min(32)), (false, amount & 31)] {
            prop_assert_eq!(shf_l(low, high, amount, is_clamp), (both << n >> 32) as u32);
            prop_assert_eq!(shf_r(low, high, amount, is_clamp), (both >> n) as u32);
        }
    }

    #[test]
    fn lookups_agree_with_the_functions_behind_their_tables(a: u32, b: u32, c: u32) {
        // The examples of PTX ISA 9.7.8.6.
        prop_assert_eq!(lop3(a, b, c, 0x80), a & b & c);
        prop_assert_eq!(lop3(a, b, c, 0xfe), a | b | c);
        prop_assert_eq!(lop3(a, b, c, 0x40), a & b & !c);
        prop_assert_eq!(lop3(a, b, c, 0x1a), (a & b | c) ^ a);
        prop_assert_eq!(lop3(a, b, c, 0xf0), a);
        prop_assert_eq!(lop3(a, b, c, 0xcc), b);
        prop_assert_eq!(lop3(a, b, c, 0xaa), c);
        prop_assert_eq!(lop3(a, b, c, 0x96), a ^ b ^ c);
    }

    #[test]
    fn sums_of_absolute_differences_wrap(a: i32, b: i32, c: i32) {
        let difference = (i64::from(a) - i64::from(b)).abs() as i32;
        prop_assert_eq!(i32::sad(a, b, c), difference.wrapping_add(c));
        let difference = (i64::from(a as u32) - i64::from(b as u32)).unsigned_abs() as u32;
        prop_assert_eq!(u32::sad(a as u32, b as u32, c as u32), difference.wrapping_add(c as u32));
    }

    #[test]
    fn dot_products_extend_bytes_by_their_sign(a: [u8; 4], b: [u8; 4], c: u32) {
        let extend = |byte: u8, is_signed| if is_signed { i64::from(byte as i8) } else { byte.into() };
        let (wide_a, wide_b) = (u32::from_le_bytes(a), u32::from_le_bytes(b));
        for (is_a_signed, is_b_signed) in [(false, false), (false, true), (true, false), (true, true)] {
            let dot = (0..4).map(|i| extend(a[i], is_a_signed) * extend(b[i], is_b_signed)).sum::<i64>();
            prop_assert_eq!(dp4a(wide_a, wide_b, c, is_a_signed, is_b_signed), c.wrapping_add(dot as u32));
            for is_hi in [false, true] {
                let dot = (0..2).map(|i| {
                    let half = u16::from_le_bytes([a[2 * i], a[2 * i + 1]]);
                    let half = if is_a_signed { i64::from(half as i16) } else { half.into() };
                    half * extend(b[i + 2 * usize::from(is_hi)], is_b_signed)
                }).sum::<i64>();
                prop_assert_eq!(
                    dp2a(wide_a, wide_b, c, is_a_signed, is_b_signed, is_hi),
                    c.wrapping_add(dot as u32)
                );
            }
        }
    }
}

#[test]
fn division_by_zero_gives_all_ones() {
    for a in [0, 1, 7, u32::MAX] {
        assert_eq!((u32::div(a, 0), u32::rem(a, 0)), (u32::MAX, u32::MAX));
        assert_eq!((i32::div(a as i32, 0), i32::rem(a as i32, 0)), (-1, -1));
        assert_eq!((u16::div(a as u16, 0), u16::rem(a as u16, 0)), (u16::MAX, u16::MAX));
        assert_eq!((i16::div(a as i16, 0), i16::rem(a as i16, 0)), (-1, -1));
        assert_eq!((u64::div(a.into(), 0), u64::rem(a.into(), 0)), (u64::MAX, u64::MAX));
        assert_eq!((i64::div(a.into(), 0), i64::rem(a.into(), 0)), (-1, -1));
    }
}

#[test]
fn smallest_integer_divided_by_minus_one_is_itself() {
    assert_eq!((i16::div(i16::MIN, -1), i16::rem(i16::MIN, -1)), (i16::MIN, 0));
    assert_eq!((i32::div(i32::MIN, -1), i32::rem(i32::MIN, -1)), (i32::MIN, 0));
    assert_eq!((i64::div(i64::MIN, -1), i64::rem(i64::MIN, -1)), (i64::MIN, 0));
    assert_eq!((i32::div(-7, 2), i32::rem(-7, 2)), (-3, -1));
}

#[test]
fn shifts_beyond_the_width_leave_zero_or_the_sign() {
    for amount in AMOUNTS {
        let n = amount.min(64);
        assert_eq!(u32::shl(0x8000_0001, amount), (u128::from(0x8000_0001u32) << n) as u32);
        assert_eq!(u16::shr(0x8001, amount), (0x8001u128 >> n) as u16);
        assert_eq!(u64::shr(u64::MAX, amount), (u128::from(u64::MAX) >> n) as u64);
        assert_eq!(i16::shr(i16::MIN, amount), (i128::from(i16::MIN) >> n) as i16);
        assert_eq!(i32::shr(-5, amount), (-5i128 >> n) as i32);
        assert_eq!(i64::shr(i64::MIN, amount), (i128::from(i64::MIN) >> n) as i64);
        assert_eq!(i64::shl(3, amount), (3i128 << n) as i64);
    }
}

#[test]
fn highest_bits_are_found_as_the_isa_states() {
    let cases = [(0u32, u32::MAX, u32::MAX), (1, 0, 31), (0x8000_0000, 31, 0), (0x00ff_0000, 23, 8)];
    for (a, position, shift) in cases {
        assert_eq!((u32::bfind(a), u32::bfind_shift(a)), (position, shift));
    }
    for (a, position) in [(0, u32::MAX), (-1, u32::MAX), (1, 0), (-2, 0), (i32::MIN, 30), (-256, 7)] {
        assert_eq!(i32::bfind(a), position, "{a}");
        let shift = if position == u32::MAX { position } else { 31 - position };
        assert_eq!(i32::bfind_shift(a), shift, "{a}");
    }
    assert_eq!((u64::bfind(1 << 40), u64::bfind_shift(1 << 40)), (40, 23));
    assert_eq!((i64::bfind(i64::MIN), i64::bfind(-1)), (62, u32::MAX));
}

#[test]
fn examples_of_the_isa_hold_for_fns_and_bmsk() {
    assert_eq!(fns(0xaaaa_aaaa, 3, 1), 3);
    assert_eq!(fns(0xaaaa_aaaa, 3, -1), 3);
    assert_eq!(fns(0xaaaa_aaaa, 2, 1), 3);
    assert_eq!(fns(0xaaaa_aaaa, 2, -1), 1);
    assert_eq!(fns(u32::MAX, 32, 1), u32::MAX);
    assert_eq!(fns(u32::MAX, 31, i32::MIN), u32::MAX);
    assert_eq!(bmsk(1, 2, false), 6);
    assert_eq!(szext_u32(u32::MAX, 0, false), 0);
}

#[test]
fn saturating_sums_stop_at_the_limits() {
    assert_eq!(add_sat(i32::MAX, 1), i32::MAX);
    assert_eq!(sub_sat(i32::MIN, 1), i32::MIN);
    assert_eq!(sub_sat(0, i32::MIN), i32::MAX);
    assert_eq!(mad_hi_sat(i32::MIN, i32::MIN, i32::MAX), i32::MAX);
    assert_eq!(mad_hi_sat(i32::MIN, i32::MAX, i32::MIN), i32::MIN);
    assert_eq!(mad24_hi_sat(0x7f_ffff, 0x7f_ffff, i32::MAX), i32::MAX);
    assert_eq!((abs_s16(i16::MIN), abs_s32(-3), abs_s64(i64::MIN)), (i16::MIN, 3, i64::MIN));
    assert_eq!((min(-1, 0), max(u64::MAX, 0)), (-1, u64::MAX));
}

#[test]
fn bytes_are_permuted_as_the_tables_of_the_isa() {
    let (a, b) = (0x8302_8100, 0x0706_8504);
    assert_eq!(prmt(a, b, 0x7531, Permutation::Generic), 0x0785_8381);
    // Selectors with bit 3 replicate signs: of bytes 7, 5, 3 and 0.
    assert_eq!(prmt(a, b, 0xfdb8, Permutation::Generic), 0x00ff_ff00);
    let plain = |control, mode| prmt(0x3322_1100, 0x7766_5544, control, mode);
    // Table of PTX ISA 9.7.9.7: digits are bytes, from the highest.
    let cases = [
        (Permutation::Forward, ["3210", "4321", "5432", "6543"]),
        (Permutation::Backward, ["5670", "6701", "7012", "0123"]),
        (Permutation::ReplicateByte, ["0000", "1111", "2222", "3333"]),
        (Permutation::ClampLeft, ["3210", "3211", "3222", "3333"]),
        (Permutation::ClampRight, ["0000", "1110", "2210", "3210"]),
        (Permutation::ReplicateHalf, ["1010", "3232", "1010", "3232"]),
    ];
    for (mode, rows) in cases {
        for (control, row) in rows.iter().enumerate() {
            let byte = |digit: char| digit.to_digit(16).unwrap() * 0x11;
            let expected = row.chars().fold(0, |word, digit| word << 8 | byte(digit));
            assert_eq!(plain(control as u32, mode), expected, "{mode:?} {control}");
            assert_eq!(plain(control as u32 + 0xfffc, mode), expected, "{mode:?} {control}");
        }
    }
}
