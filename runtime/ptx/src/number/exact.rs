//! Exact numbers, as the model that tests compare results with.
//!
//! A number is ± an integer of any size × 2^exponent, and a mark for lost bits that are less than
//! the last one. Formats are described by their parameters, and results are their bits.

use super::Rounding;
use proptest::prelude::*;

/// The parameters of a floating-point format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// Bits of the mantissa, with the first.
    precision: i32,
    /// The exponent of the largest number.
    max_exponent: i32,
}

pub(super) const BINARY16: Format = Format { precision: 11, max_exponent: 15 };
pub(super) const BFLOAT16: Format = Format { precision: 8, max_exponent: 127 };
pub(super) const BINARY32: Format = Format { precision: 24, max_exponent: 127 };
pub(super) const BINARY64: Format = Format { precision: 53, max_exponent: 1023 };

pub(super) const ROUNDINGS: [Rounding; 4] = [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up];

/// An exact number, or one of which less than the last bit is lost.
#[derive(Clone, Debug)]
pub(super) struct Exact {
    is_negative: bool,
    /// Words of 32 bits, the lowest first, without leading zeros.
    words: Vec<u32>,
    exponent: i32,
    is_cut: bool,
}

impl Exact {
    /// Returns ±`value`.
    pub(super) fn from_integer(is_negative: bool, value: u128) -> Exact {
        let words = (0..4).map(|index| (value >> (32 * index)) as u32).collect();
        Exact { is_negative, words: trim(words), exponent: 0, is_cut: false }
    }

    /// Returns the value of a finite `x`.
    pub(super) fn from_f64(x: f64) -> Exact {
        assert!(x.is_finite());
        let field = x.to_bits() >> 52 & 0x7ff;
        let fraction = x.to_bits() & 0xf_ffff_ffff_ffff;
        let mantissa = if field == 0 { fraction } else { fraction + 0x10_0000_0000_0000 };
        let exponent = if field == 0 { -1074 } else { field as i32 - 1075 };
        Exact::from_integer(x.is_sign_negative(), mantissa.into()).times_power_of_two(exponent)
    }

    pub(super) fn times_power_of_two(mut self, exponent: i32) -> Exact {
        self.exponent += exponent;
        self
    }

    pub(super) fn is_zero(&self) -> bool {
        self.words.is_empty()
    }

    fn with_exponent(&self, exponent: i32) -> Vec<u32> {
        shift_left(&self.words, (self.exponent - exponent) as u32)
    }

    pub(super) fn plus(&self, other: &Exact) -> Exact {
        let exponent = self.exponent.min(other.exponent);
        let (a, b) = (self.with_exponent(exponent), other.with_exponent(exponent));
        let (is_negative, words) = if self.is_negative == other.is_negative {
            (self.is_negative, add(&a, &b))
        } else if is_less(&a, &b) {
            (other.is_negative, subtract(&b, &a))
        } else {
            (self.is_negative, subtract(&a, &b))
        };
        Exact { is_negative, words, exponent, is_cut: false }
    }

    pub(super) fn times(&self, other: &Exact) -> Exact {
        let mut words = vec![0; self.words.len() + other.words.len()];
        for (i, &a) in self.words.iter().enumerate() {
            let mut carry = 0;
            for (j, &b) in other.words.iter().enumerate() {
                let sum = u64::from(a) * u64::from(b) + u64::from(words[i + j]) + carry;
                words[i + j] = sum as u32;
                carry = sum >> 32;
            }
            words[i + other.words.len()] = carry as u32;
        }
        Exact {
            is_negative: self.is_negative != other.is_negative,
            words: trim(words),
            exponent: self.exponent + other.exponent,
            is_cut: false,
        }
    }

    /// Divides by a number that is not zero, to at least 64 bits.
    pub(super) fn over(&self, other: &Exact) -> Exact {
        let extra = 128 + 32 * other.words.len() as u32;
        let dividend = shift_left(&self.words, extra);
        let (words, rest) = divide(&dividend, &other.words);
        Exact {
            is_negative: self.is_negative != other.is_negative,
            words,
            exponent: self.exponent - extra as i32 - other.exponent,
            is_cut: !rest.is_empty(),
        }
    }

    /// Returns the square root of a positive number, to at least 64 bits.
    pub(super) fn root(&self) -> Exact {
        let extra = 192 + (self.exponent & 1) as u32;
        let square = shift_left(&self.words, extra);
        // Bit by bit from above: the largest root whose square is not larger.
        let mut root = Vec::new();
        for bit in (0..square.len() as u32 * 16 + 1).rev() {
            let candidate = add(&root, &shift_left(&[1], bit));
            let exact = Exact { is_negative: false, words: candidate.clone(), exponent: 0, is_cut: false };
            if !is_less(&square, &exact.times(&exact).words) {
                root = candidate;
            }
        }
        let exact = Exact { is_negative: false, words: root.clone(), exponent: 0, is_cut: false };
        let is_cut = exact.times(&exact).words != square;
        let exponent = (self.exponent - extra as i32) / 2;
        Exact { is_negative: false, words: root, exponent, is_cut }
    }

    /// Returns the bits of the number in `format`. The sign of an exact zero is `is_negative`.
    pub(super) fn round(&self, format: Format, round: Rounding) -> u64 {
        let Format { precision, max_exponent } = format;
        let fraction_bits = precision - 1;
        let bits_above_fraction = (max_exponent + 1).ilog2() as i32 + 1;
        let sign = u64::from(self.is_negative) << (fraction_bits + bits_above_fraction);
        if self.is_zero() && !self.is_cut {
            return sign;
        }
        let min_last = 1 - max_exponent - fraction_bits;
        let length = bit_length(&self.words);
        let last = (self.exponent + length - precision).max(min_last);
        // The part above 2^last, and twice the part below it, compared with 2^last.
        let (kept, rest) = if last <= self.exponent {
            (self.with_exponent(last), Vec::new())
        } else {
            split(&self.words, (last - self.exponent) as u32)
        };
        let mut kept = to_u64(&kept);
        let is_inexact = !rest.is_empty() || self.is_cut;
        let half = if last > self.exponent {
            shift_left(&[1], (last - self.exponent - 1) as u32)
        } else {
            Vec::new()
        };
        let is_half = !half.is_empty() && rest == half && !self.is_cut;
        let is_more = !half.is_empty() && !is_less(&rest, &half) && !is_half;
        let is_away = match round {
            Rounding::Nearest => is_more || (is_half && kept % 2 == 1),
            Rounding::Zero => false,
            Rounding::Down => self.is_negative && is_inexact,
            Rounding::Up => !self.is_negative && is_inexact,
        };
        kept += u64::from(is_away);
        let infinity = ((2 * max_exponent + 1) as u64) << fraction_bits;
        let fits = kept < 1 << precision && last <= max_exponent - fraction_bits
            || kept == 1 << precision && last < max_exponent - fraction_bits;
        let magnitude = if fits {
            (((last - min_last) as u64) << fraction_bits) + kept
        } else {
            let stays_finite = match round {
                Rounding::Nearest => false,
                Rounding::Zero => true,
                Rounding::Down => !self.is_negative,
                Rounding::Up => self.is_negative,
            };
            infinity - u64::from(stays_finite)
        };
        sign | magnitude
    }
}

/// Returns the bits of an exact sum, with the sign of a zero sum. IEEE 754-2019, 6.3: the sum of
/// numbers with different signs is +0, or -0 if rounded down.
pub(super) fn round_sum(a: &Exact, b: &Exact, format: Format, round: Rounding) -> u64 {
    let mut sum = a.plus(b);
    if sum.is_zero() {
        sum.is_negative = match a.is_negative == b.is_negative {
            true => a.is_negative,
            false => round == Rounding::Down,
        };
        sum.exponent = 0;
    }
    sum.round(format, round)
}

fn trim(mut words: Vec<u32>) -> Vec<u32> {
    while words.last() == Some(&0) {
        words.pop();
    }
    words
}

fn bit_length(words: &[u32]) -> i32 {
    words.last().map_or(0, |top| words.len() as i32 * 32 - top.leading_zeros() as i32)
}

fn to_u64(words: &[u32]) -> u64 {
    assert!(words.len() <= 2);
    words.iter().rev().fold(0, |value, &word| value << 32 | u64::from(word))
}

fn shift_left(words: &[u32], amount: u32) -> Vec<u32> {
    let mut shifted = vec![0; (amount / 32) as usize];
    let bits = amount % 32;
    let mut carry = 0;
    for &word in words {
        let wide = u64::from(word) << bits | carry;
        shifted.push(wide as u32);
        carry = wide >> 32;
    }
    shifted.push(carry as u32);
    trim(shifted)
}

/// Returns `words` / 2^`amount` and the remainder.
fn split(words: &[u32], amount: u32) -> (Vec<u32>, Vec<u32>) {
    let whole = (amount / 32) as usize;
    let bits = amount % 32;
    if whole >= words.len() {
        return (Vec::new(), words.to_vec());
    }
    let mut rest = words[..whole].to_vec();
    rest.push(words[whole] & ((1u64 << bits) - 1) as u32);
    let kept = (whole..words.len())
        .map(|index| {
            let above = words.get(index + 1).copied().unwrap_or(0);
            ((u64::from(above) << 32 | u64::from(words[index])) >> bits) as u32
        })
        .collect();
    (trim(kept), trim(rest))
}

fn is_less(a: &[u32], b: &[u32]) -> bool {
    (a.len(), a.iter().rev().collect::<Vec<_>>()) < (b.len(), b.iter().rev().collect())
}

fn add(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut carry = 0;
    let mut sum = Vec::new();
    for index in 0..=a.len().max(b.len()) {
        let word = |words: &[u32]| u64::from(words.get(index).copied().unwrap_or(0));
        let wide = word(a) + word(b) + carry;
        sum.push(wide as u32);
        carry = wide >> 32;
    }
    trim(sum)
}

/// Returns `a` - `b`, which is not negative.
fn subtract(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut borrow = 0;
    let difference = (0..a.len())
        .map(|index| {
            let wide = i64::from(a[index]) - i64::from(b.get(index).copied().unwrap_or(0)) - borrow;
            borrow = i64::from(wide < 0);
            wide as u32
        })
        .collect();
    trim(difference)
}

/// Returns quotient and remainder, bit by bit.
fn divide(a: &[u32], b: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut quotient = vec![0; a.len()];
    let mut rest = Vec::new();
    for bit in (0..bit_length(a) as usize).rev() {
        rest = shift_left(&rest, 1);
        if a[bit / 32] >> (bit % 32) & 1 == 1 {
            rest = add(&rest, &[1]);
        }
        if !is_less(&rest, b) {
            rest = subtract(&rest, b);
            quotient[bit / 32] |= 1 << (bit % 32);
        }
    }
    (trim(quotient), rest)
}

/// Compares bits, for messages with the numbers.
pub(super) fn expect_f64(actual: f64, expected: u64) -> Result<(), TestCaseError> {
    let number = f64::from_bits(expected);
    prop_assert_eq!(actual.to_bits(), expected, "{:e}, expected {:e}", actual, number);
    Ok(())
}

/// Compares bits, for messages with the numbers.
pub(super) fn expect_f32(actual: f32, expected: u64) -> Result<(), TestCaseError> {
    let number = f32::from_bits(expected as u32);
    prop_assert_eq!(actual.to_bits(), expected as u32, "{:e}, expected {:e}", actual, number);
    Ok(())
}

/// Finite numbers: any bits, bits with long runs of 0 or 1, and numbers of a small range.
pub(super) fn any_f64() -> impl Strategy<Value = f64> {
    let bits = prop_oneof![
        any::<u64>(),
        (any::<u64>(), 0u32..53, any::<bool>()).prop_map(|(bits, run, ones)| {
            let mask = (1u64 << run) - 1;
            if ones { bits | mask } else { bits & !mask }
        }),
        (any::<bool>(), 1015u64..1032, any::<u64>(), 0u32..53).prop_map(|(is_negative, field, bits, run)| {
            u64::from(is_negative) << 63 | field << 52 | bits >> 12 >> run << run
        }),
        (any::<bool>(), prop_oneof![0u64..120, 1900u64..2047], any::<u64>())
            .prop_map(|(is_negative, field, bits)| u64::from(is_negative) << 63 | field << 52 | bits >> 12),
        // Near the range of `f32` and the halves of its last bits.
        (any::<bool>(), 860u64..1160, any::<u32>(), any::<bool>()).prop_map(
            |(is_negative, field, bits, is_next)| {
                let fraction = u64::from(bits) >> 7 << 27;
                (u64::from(is_negative) << 63 | field << 52 | fraction) + u64::from(is_next)
            }
        ),
    ];
    bits.prop_map(f64::from_bits).prop_filter("finite", |x| x.is_finite())
}

/// Finite numbers: any bits, bits with long runs of 0 or 1, and numbers of a small range.
pub(super) fn any_f32() -> impl Strategy<Value = f32> {
    let bits = prop_oneof![
        any::<u32>(),
        (any::<u32>(), 0u32..24, any::<bool>()).prop_map(|(bits, run, ones)| {
            let mask = (1u32 << run) - 1;
            if ones { bits | mask } else { bits & !mask }
        }),
        (any::<bool>(), 120u32..134, any::<u32>(), 0u32..24).prop_map(|(is_negative, field, bits, run)| {
            u32::from(is_negative) << 31 | field << 23 | bits >> 9 >> run << run
        }),
        (any::<bool>(), prop_oneof![0u32..30, 225u32..255], any::<u32>())
            .prop_map(|(is_negative, field, bits)| u32::from(is_negative) << 31 | field << 23 | bits >> 9),
    ];
    bits.prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite())
}
