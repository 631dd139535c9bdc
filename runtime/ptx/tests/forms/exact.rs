//! Floating-point numbers as exact fractions, and their rounding to a format.
//!
//! A finite number is an integer of any length times a power of two. Sums and products are exact;
//! quotients and roots have more bits than any format, and a bit for the rest.

use crate::driver;
use std::cmp::Ordering;

/// A format of IEEE 754: the bits of the fraction and of the exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) fraction: u32,
    pub(crate) exponent: u32,
}

pub(crate) const F16: Format = Format { fraction: 10, exponent: 5 };
pub(crate) const BF16: Format = Format { fraction: 7, exponent: 8 };
pub(crate) const TF32: Format = Format { fraction: 10, exponent: 8 };
pub(crate) const F32: Format = Format { fraction: 23, exponent: 8 };
pub(crate) const F64: Format = Format { fraction: 52, exponent: 11 };

impl Format {
    pub(crate) fn sign(self) -> u64 {
        1 << (self.fraction + self.exponent)
    }

    pub(crate) fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    pub(crate) fn one(self) -> u64 {
        self.bias() as u64 * (1 << self.fraction)
    }

    pub(crate) fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    /// Replaces a subnormal number by the zero with its sign.
    pub(crate) fn flush(self, bits: u64) -> u64 {
        if bits & self.infinity() == 0 { bits & self.sign() } else { bits }
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Returns the number with these bits.
    pub(crate) fn read(self, bits: u64) -> Real {
        let negative = bits & self.sign() != 0;
        let fraction = bits & ((1 << self.fraction) - 1);
        let field = (bits & self.infinity()) >> self.fraction;
        if bits & self.infinity() == self.infinity() {
            return if fraction == 0 { Real::Infinity(negative) } else { Real::Nan };
        }
        let (mantissa, field) =
            if field == 0 { (fraction, 1) } else { (fraction | 1 << self.fraction, field) };
        let exponent = field as i32 - self.bias() - self.fraction as i32;
        Real::Finite { negative, mantissa: Big::of(mantissa), exponent }
    }

    /// Returns the bits of a number, rounded. `None` is a NaN.
    pub(crate) fn round(self, number: &Real, mode: Mode) -> Option<u64> {
        let (negative, mantissa, exponent) = match number {
            Real::Nan => return None,
            Real::Infinity(negative) => {
                return Some(self.infinity() | if *negative { self.sign() } else { 0 });
            }
            Real::Finite { negative, mantissa, exponent } => (*negative, mantissa, *exponent),
        };
        let sign = if negative { self.sign() } else { 0 };
        if mantissa.len() == 0 {
            return Some(sign);
        }
        // The exponent of the last bit of the result: that of subnormal numbers, or higher.
        let lowest = 1 - self.bias() - self.fraction as i32;
        let last = (exponent + mantissa.len() as i32 - 1 - self.fraction as i32).max(lowest);
        let kept = mantissa.integer(exponent - last, negative, mode);
        // Bit `fraction` of `kept` adds 1 to the exponent's field.
        let magnitude = kept + (((last - lowest) as u64) << self.fraction);
        if magnitude < self.infinity() {
            return Some(sign | magnitude);
        }
        let stays_finite = match mode {
            Mode::Nearest | Mode::Away => false,
            Mode::Zero => true,
            Mode::Down => !negative,
            Mode::Up => negative,
        };
        Some(sign | (self.infinity() - u64::from(stays_finite)))
    }
}

impl Format {
    /// Returns the bits of a number, rounded, and then flushed if it is subnormal. An H100 flushes
    /// what would be below the smallest normal number if exponents had no bound, and was rounded:
    /// it detects tiny numbers *after rounding* (IEEE 754-2019, 7.5).
    pub(crate) fn round_and_flush(self, number: &Real, mode: Mode) -> Option<u64> {
        let bits = self.round(number, mode)?;
        let is_tiny = match number {
            Real::Finite { negative, mantissa, exponent } => {
                let last = exponent + mantissa.len() as i32 - 1 - self.fraction as i32;
                let kept = mantissa.integer(exponent - last, *negative, mode);
                let carries = i32::from(kept >> (self.fraction + 1) != 0);
                last + self.fraction as i32 + carries < 1 - self.bias()
            }
            Real::Nan | Real::Infinity(_) => false,
        };
        Some(if driver::is_gpu() && is_tiny { bits & self.sign() } else { self.flush(bits) })
    }
}

/// How a number is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Nearest,
    Zero,
    Down,
    Up,
    /// To nearest, ties away from zero.
    Away,
}

/// The roundings with their modifiers, and those to an integer.
pub(crate) const MODES: [(&str, Mode); 4] =
    [("rn", Mode::Nearest), ("rz", Mode::Zero), ("rm", Mode::Down), ("rp", Mode::Up)];

/// A number, or none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Real {
    Nan,
    Infinity(bool),
    Finite { negative: bool, mantissa: Big, exponent: i32 },
}

impl Real {
    pub(crate) fn of_integer(x: i128) -> Real {
        Real::Finite { negative: x < 0, mantissa: Big::of_u128(x.unsigned_abs()), exponent: 0 }
    }

    pub(crate) fn is_zero(&self) -> bool {
        matches!(self, Real::Finite { mantissa, .. } if mantissa.len() == 0)
    }

    fn is_negative(&self) -> bool {
        match self {
            Real::Nan => false,
            Real::Infinity(negative) | Real::Finite { negative, .. } => *negative,
        }
    }

    pub(crate) fn negated(self) -> Real {
        match self {
            Real::Nan => Real::Nan,
            Real::Infinity(negative) => Real::Infinity(!negative),
            Real::Finite { negative, mantissa, exponent } => {
                Real::Finite { negative: !negative, mantissa, exponent }
            }
        }
    }

    pub(crate) fn times(&self, other: &Real) -> Real {
        let sign = self.is_negative() != other.is_negative();
        match (self, other) {
            (Real::Nan, _) | (_, Real::Nan) => Real::Nan,
            (Real::Infinity(_), x) | (x, Real::Infinity(_)) => {
                if x.is_zero() {
                    Real::Nan
                } else {
                    Real::Infinity(sign)
                }
            }
            (
                Real::Finite { mantissa: a, exponent: i, .. },
                Real::Finite { mantissa: b, exponent: j, .. },
            ) => Real::Finite { negative: sign, mantissa: a.times(b), exponent: i + j },
        }
    }

    /// IEEE 754, 6.3: a sum of zero is -0 if both are -0, or if it is rounded down and the signs
    /// differ.
    pub(crate) fn plus(&self, other: &Real, mode: Mode) -> Real {
        match (self, other) {
            (Real::Nan, _) | (_, Real::Nan) => Real::Nan,
            (Real::Infinity(a), Real::Infinity(b)) if a != b => Real::Nan,
            (Real::Infinity(a), _) | (_, Real::Infinity(a)) => Real::Infinity(*a),
            (
                Real::Finite { negative: s, mantissa: a, exponent: i },
                Real::Finite { negative: t, mantissa: b, exponent: j },
            ) => {
                let exponent = *i.min(j);
                let (a, b) = (a.shifted((i - exponent) as u32), b.shifted((j - exponent) as u32));
                let (negative, mantissa) = if s == t {
                    (*s, a.plus(&b))
                } else {
                    match a.compare(&b) {
                        Ordering::Greater => (*s, a.minus(&b)),
                        Ordering::Less => (*t, b.minus(&a)),
                        Ordering::Equal => (mode == Mode::Down, Big::of(0)),
                    }
                };
                Real::Finite { negative, mantissa, exponent }
            }
        }
    }

    /// The quotient of numbers with at most 53 bits, with at least 70 bits and a rest.
    pub(crate) fn over(&self, other: &Real) -> Real {
        let sign = self.is_negative() != other.is_negative();
        match (self, other) {
            (Real::Nan, _) | (_, Real::Nan) => Real::Nan,
            (Real::Infinity(_), Real::Infinity(_)) => Real::Nan,
            (Real::Infinity(_), _) => Real::Infinity(sign),
            (_, Real::Infinity(_)) => Real::Finite { negative: sign, mantissa: Big::of(0), exponent: 0 },
            (a, b) if a.is_zero() && b.is_zero() => Real::Nan,
            (_, b) if b.is_zero() => Real::Infinity(sign),
            (
                Real::Finite { mantissa: a, exponent: i, .. },
                Real::Finite { mantissa: b, exponent: j, .. },
            ) => {
                let (a, b) = (a.to_u128(), b.to_u128());
                let shift = a.leading_zeros().min(127);
                let dividend = a << shift;
                let sticky = u128::from(dividend % b != 0);
                let mantissa = Big::of_u128(dividend / b).shifted(1).plus(&Big::of_u128(sticky));
                Real::Finite { negative: sign, mantissa, exponent: i - j - shift as i32 - 1 }
            }
        }
    }

    /// The square root, with about 63 bits and a rest.
    pub(crate) fn root(&self) -> Real {
        match self {
            zero if zero.is_zero() => zero.clone(),
            Real::Nan | Real::Infinity(true) | Real::Finite { negative: true, .. } => Real::Nan,
            Real::Infinity(false) => Real::Infinity(false),
            Real::Finite { mantissa, exponent, .. } => {
                let mantissa = mantissa.to_u128();
                let mut shift = mantissa.leading_zeros() - 1;
                if (exponent - shift as i32) % 2 != 0 {
                    shift -= 1;
                }
                let square = mantissa << shift;
                let mut root = 0u128;
                for bit in (0..64).rev() {
                    let more = root | 1 << bit;
                    if more * more <= square {
                        root = more;
                    }
                }
                let sticky = u128::from(root * root != square);
                let mantissa = Big::of_u128(root << 1 | sticky);
                Real::Finite { negative: false, mantissa, exponent: (exponent - shift as i32) / 2 - 1 }
            }
        }
    }

    /// Rounds to an integer. `None` is a NaN; beyond 100 bits the result is some integer with its
    /// sign that no type holds.
    pub(crate) fn to_integer(&self, mode: Mode) -> Option<i128> {
        let huge = |negative: bool| if negative { i128::MIN / 2 } else { i128::MAX / 2 };
        Some(match self {
            Real::Nan => return None,
            Real::Infinity(negative) => huge(*negative),
            Real::Finite { negative, mantissa, exponent } => {
                if mantissa.len() as i32 + exponent > 70 {
                    return Some(huge(*negative));
                }
                let whole = match mantissa.len() as i32 + exponent {
                    65.. => return Some(huge(*negative)),
                    64 if *exponent >= 0 => (mantissa.to_u128() << exponent) as i128,
                    _ => i128::from(mantissa.integer(*exponent, *negative, mode)),
                };
                if *negative { -whole } else { whole }
            }
        })
    }

    /// The number as an `f64`, for numbers that are exact in it.
    pub(crate) fn to_f64(&self) -> f64 {
        F64.round(self, Mode::Nearest).map_or(f64::NAN, f64::from_bits)
    }
}

/// A natural number of any length, the lowest 32 bits first, without zeros at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Big(Vec<u32>);

impl Big {
    pub(crate) fn of(x: u64) -> Big {
        Big::of_u128(x.into())
    }

    pub(crate) fn of_u128(x: u128) -> Big {
        Big::trimmed((0..4).map(|at| (x >> (32 * at)) as u32).collect())
    }

    fn trimmed(mut words: Vec<u32>) -> Big {
        while words.last() == Some(&0) {
            words.pop();
        }
        Big(words)
    }

    fn to_u128(&self) -> u128 {
        self.0.iter().rev().fold(0, |sum, word| sum << 32 | u128::from(*word))
    }

    /// The number of bits.
    fn len(&self) -> u32 {
        self.0.last().map_or(0, |last| self.0.len() as u32 * 32 - last.leading_zeros())
    }

    fn bit(&self, at: u32) -> bool {
        self.0.get(at as usize / 32).is_some_and(|word| word >> (at % 32) & 1 == 1)
    }

    fn shifted(&self, by: u32) -> Big {
        let mut words = vec![0; by as usize / 32];
        let mut carry = 0u64;
        for word in &self.0 {
            let sum = u64::from(*word) << (by % 32) | carry;
            words.push(sum as u32);
            carry = sum >> 32;
        }
        words.push(carry as u32);
        Big::trimmed(words)
    }

    fn plus(&self, other: &Big) -> Big {
        let mut words = Vec::new();
        let mut carry = 0u64;
        for at in 0..self.0.len().max(other.0.len()) + 1 {
            let of = |big: &Big| u64::from(big.0.get(at).copied().unwrap_or(0));
            let sum = of(self) + of(other) + carry;
            words.push(sum as u32);
            carry = sum >> 32;
        }
        Big::trimmed(words)
    }

    /// `other` is not larger.
    fn minus(&self, other: &Big) -> Big {
        let mut words = Vec::new();
        let mut borrow = 0i64;
        for (at, word) in self.0.iter().enumerate() {
            let difference = i64::from(*word) - i64::from(other.0.get(at).copied().unwrap_or(0)) - borrow;
            words.push(difference as u32);
            borrow = i64::from(difference < 0);
        }
        Big::trimmed(words)
    }

    fn times(&self, other: &Big) -> Big {
        let mut words = vec![0u32; self.0.len() + other.0.len()];
        for (i, a) in self.0.iter().enumerate() {
            let mut carry = 0u64;
            for (j, b) in other.0.iter().enumerate() {
                let sum = u64::from(*a) * u64::from(*b) + u64::from(words[i + j]) + carry;
                words[i + j] = sum as u32;
                carry = sum >> 32;
            }
            words[i + other.0.len()] = carry as u32;
        }
        Big::trimmed(words)
    }

    fn compare(&self, other: &Big) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Rounds this number times 2^`exponent` to an integer of at most 64 bits.
    fn integer(&self, exponent: i32, negative: bool, mode: Mode) -> u64 {
        if exponent >= 0 {
            return (self.to_u128() << exponent) as u64;
        }
        let cut = exponent.unsigned_abs();
        let kept = (0..64).fold(0u64, |sum, at| sum | u64::from(self.bit(cut + at)) << at);
        let half = self.bit(cut - 1);
        let below = (0..(cut - 1).min(self.len())).any(|at| self.bit(at));
        let rest = half || below;
        let up = match mode {
            Mode::Nearest => half && (below || kept & 1 == 1),
            Mode::Away => half,
            Mode::Zero => false,
            Mode::Down => negative && rest,
            Mode::Up => !negative && rest,
        };
        kept + u64::from(up)
    }
}

#[test]
fn exact_arithmetic_agrees_with_the_host() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        f64::from_bits(state ^ state >> 29)
    };
    for _ in 0..2000 {
        let (a, b, c) = (next(), next(), next());
        let [x, y, z] = [a, b, c].map(|x| F64.read(x.to_bits()));
        let check = |found: Real, expected: f64| {
            let found = F64.round(&found, Mode::Nearest);
            assert_eq!(found, (!expected.is_nan()).then_some(expected.to_bits()), "{a:e} {b:e} {c:e}");
        };
        check(x.plus(&y, Mode::Nearest), a + b);
        check(x.times(&y), a * b);
        check(x.over(&y), a / b);
        check(x.root(), a.sqrt());
        check(x.times(&y).plus(&z, Mode::Nearest), a.mul_add(b, c));
        let single = F32.round(&x, Mode::Nearest);
        let expected = a as f32;
        assert_eq!(single, (!expected.is_nan()).then_some(expected.to_bits().into()), "{a:e}");
    }
}
