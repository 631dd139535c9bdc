//! Integer arithmetic, extended precision, bit fields, shifts and byte permutation.
//!
//! `add`, `sub`, `mul.lo`, `mad.lo`, `and`, `or`, `xor`, `not`, `popc`, `clz` and `brev` are
//! methods of Rust's integers: `wrapping_add`, `count_ones`, `leading_zeros`, `reverse_bits`. They
//! agree with PTX ISA 9.7.1 and 9.7.8 for all values.

/// The integers of PTX instructions.
pub(crate) trait Integer: Copy + Ord {
    /// Returns the upper half of the product. PTX ISA 9.7.1.3, mul.hi.
    fn mul_hi(a: Self, b: Self) -> Self;

    /// Returns the upper half of `a` × `b`, plus `c`. PTX ISA 9.7.1.4, mad.hi.
    fn mad_hi(a: Self, b: Self, c: Self) -> Self;

    /// Returns |`a` - `b`| + `c`. PTX ISA 9.7.1.7, sad.
    fn sad(a: Self, b: Self, c: Self) -> Self;

    /// Returns the quotient, rounded toward zero. PTX ISA 9.7.1.8, div.
    ///
    /// The ISA leaves division by zero open. As on NVIDIA's GPUs, all bits of the result are 1. The
    /// smallest integer divided by -1 is itself.
    fn div(a: Self, b: Self) -> Self;

    /// Returns the remainder, with the sign of `a`. PTX ISA 9.7.1.9, rem.
    ///
    /// The ISA leaves division by zero open, and the sign of the remainder. As on NVIDIA's GPUs,
    /// all bits of the remainder of a division by zero are 1.
    fn rem(a: Self, b: Self) -> Self;

    /// Shifts left. Amounts beyond the width give 0. PTX ISA 9.7.8.8, shl.
    fn shl(a: Self, amount: u32) -> Self;

    /// Shifts right, and fills signed integers with the sign. An amount beyond the width acts as
    /// the width. PTX ISA 9.7.8.9, shr.
    fn shr(a: Self, amount: u32) -> Self;

    /// Returns `a` + `b` + `carry`, and whether this carries out. PTX ISA 9.7.2.1, add.cc, and
    /// 9.7.2.2, addc.
    ///
    /// Signed and unsigned integers carry alike. `add.cc` passes false.
    fn add_carry(a: Self, b: Self, carry: bool) -> (Self, bool);

    /// Returns `a` - (`b` + `borrow`), and whether this borrows. PTX ISA 9.7.2.3, sub.cc, and
    /// 9.7.2.4, subc.
    ///
    /// `sub.cc` passes false.
    fn sub_borrow(a: Self, b: Self, borrow: bool) -> (Self, bool);

    /// Returns the lower half of `a` × `b`, plus `c` and `carry`, and the carry of this sum.
    /// PTX ISA 9.7.2.5, mad.lo.cc, and 9.7.2.6, madc.lo.
    fn mad_lo_carry(a: Self, b: Self, c: Self, carry: bool) -> (Self, bool);

    /// Returns the upper half of `a` × `b`, plus `c` and `carry`, and the carry of this sum.
    /// PTX ISA 9.7.2.5, mad.hi.cc, and 9.7.2.6, madc.hi.
    fn mad_hi_carry(a: Self, b: Self, c: Self, carry: bool) -> (Self, bool);

    /// Returns the position of the highest bit that differs from the sign, which is 0 for unsigned
    /// integers, or `u32::MAX` if there is none. PTX ISA 9.7.1.16, bfind.
    fn bfind(a: Self) -> u32;

    /// Returns the amount that shifts the bit of [`bfind`](Self::bfind) to the highest position, or
    /// `u32::MAX`. PTX ISA 9.7.1.16, bfind.shiftamt.
    fn bfind_shift(a: Self) -> u32;

    /// Extracts `length` bits from `position` upward, and fills signed integers with the highest
    /// bit of the field. PTX ISA 9.7.1.19, bfe.
    ///
    /// The lowest 8 bits of `position` and `length` count. A signed field beyond the highest bit of
    /// `a` is filled with the sign of `a`. A field of length 0 is 0.
    fn bfe(a: Self, position: u32, length: u32) -> Self;
}

macro_rules! impl_unsigned {
    ($unsigned:ty, $wide:ty, $divide:path) => {
        impl Integer for $unsigned {
            #[inline(always)]
            fn mul_hi(a: Self, b: Self) -> Self {
                ((a as $wide * b as $wide) >> Self::BITS) as Self
            }

            #[inline(always)]
            fn mad_hi(a: Self, b: Self, c: Self) -> Self {
                Self::mul_hi(a, b).wrapping_add(c)
            }

            #[inline(always)]
            fn sad(a: Self, b: Self, c: Self) -> Self {
                a.abs_diff(b).wrapping_add(c)
            }

            #[inline(always)]
            fn div(a: Self, b: Self) -> Self {
                $divide(a, b)
            }

            #[inline(always)]
            fn rem(a: Self, b: Self) -> Self {
                let rest = a.wrapping_sub($divide(a, b).wrapping_mul(b));
                if b == 0 { Self::MAX } else { rest }
            }

            #[inline(always)]
            fn shl(a: Self, amount: u32) -> Self {
                if amount < Self::BITS { a << amount } else { 0 }
            }

            #[inline(always)]
            fn shr(a: Self, amount: u32) -> Self {
                if amount < Self::BITS { a >> amount } else { 0 }
            }

            #[inline(always)]
            fn add_carry(a: Self, b: Self, carry: bool) -> (Self, bool) {
                let (sum, is_over) = a.overflowing_add(b);
                let (sum, is_over_again) = sum.overflowing_add(Self::from(carry));
                (sum, is_over | is_over_again)
            }

            #[inline(always)]
            fn sub_borrow(a: Self, b: Self, borrow: bool) -> (Self, bool) {
                let (difference, is_under) = a.overflowing_sub(b);
                let (difference, is_under_again) = difference.overflowing_sub(Self::from(borrow));
                (difference, is_under | is_under_again)
            }

            #[inline(always)]
            fn mad_lo_carry(a: Self, b: Self, c: Self, carry: bool) -> (Self, bool) {
                Self::add_carry(a.wrapping_mul(b), c, carry)
            }

            #[inline(always)]
            fn mad_hi_carry(a: Self, b: Self, c: Self, carry: bool) -> (Self, bool) {
                Self::add_carry(Self::mul_hi(a, b), c, carry)
            }

            #[inline(always)]
            fn bfind(a: Self) -> u32 {
                // No bit is found at BITS leading zeros: BITS - 1 - BITS wraps to the result.
                (Self::BITS - 1).wrapping_sub(a.leading_zeros())
            }

            #[inline(always)]
            fn bfind_shift(a: Self) -> u32 {
                if a == 0 { u32::MAX } else { a.leading_zeros() }
            }

            #[inline(always)]
            fn bfe(a: Self, position: u32, length: u32) -> Self {
                Self::shr(a, position & 0xff) & !Self::shl(Self::MAX, length & 0xff)
            }
        }
    };
}

impl_unsigned!(u16, u32, divide_u16);
impl_unsigned!(u32, u64, divide_u32);
impl_unsigned!(u64, u128, divide_u64);

macro_rules! impl_signed {
    ($signed:ty, $unsigned:ty, $wide:ty) => {
        impl Integer for $signed {
            #[inline(always)]
            fn mul_hi(a: Self, b: Self) -> Self {
                ((a as $wide * b as $wide) >> Self::BITS) as Self
            }

            #[inline(always)]
            fn mad_hi(a: Self, b: Self, c: Self) -> Self {
                Self::mul_hi(a, b).wrapping_add(c)
            }

            #[inline(always)]
            fn sad(a: Self, b: Self, c: Self) -> Self {
                (a.abs_diff(b) as Self).wrapping_add(c)
            }

            #[inline(always)]
            fn div(a: Self, b: Self) -> Self {
                let magnitude = <$unsigned>::div(a.unsigned_abs(), b.unsigned_abs()) as Self;
                let quotient = if (a ^ b) < 0 { magnitude.wrapping_neg() } else { magnitude };
                if b == 0 { -1 } else { quotient }
            }

            #[inline(always)]
            fn rem(a: Self, b: Self) -> Self {
                let rest = a.wrapping_sub(Self::div(a, b).wrapping_mul(b));
                if b == 0 { -1 } else { rest }
            }

            #[inline(always)]
            fn shl(a: Self, amount: u32) -> Self {
                <$unsigned>::shl(a as $unsigned, amount) as Self
            }

            #[inline(always)]
            fn shr(a: Self, amount: u32) -> Self {
                a >> Ord::min(amount, Self::BITS - 1)
            }

            #[inline(always)]
            fn add_carry(a: Self, b: Self, carry: bool) -> (Self, bool) {
                let (sum, carry) = <$unsigned>::add_carry(a as $unsigned, b as $unsigned, carry);
                (sum as Self, carry)
            }

            #[inline(always)]
            fn sub_borrow(a: Self, b: Self, borrow: bool) -> (Self, bool) {
                let (difference, borrow) = <$unsigned>::sub_borrow(a as $unsigned, b as $unsigned, borrow);
                (difference as Self, borrow)
            }

            #[inline(always)]
            fn mad_lo_carry(a: Self, b: Self, c: Self, carry: bool) -> (Self, bool) {
                Self::add_carry(a.wrapping_mul(b), c, carry)
            }

            #[inline(always)]
            fn mad_hi_carry(a: Self, b: Self, c: Self, carry: bool) -> (Self, bool) {
                Self::add_carry(Self::mul_hi(a, b), c, carry)
            }

            #[inline(always)]
            fn bfind(a: Self) -> u32 {
                <$unsigned>::bfind((a ^ (a >> (Self::BITS - 1))) as $unsigned)
            }

            #[inline(always)]
            fn bfind_shift(a: Self) -> u32 {
                <$unsigned>::bfind_shift((a ^ (a >> (Self::BITS - 1))) as $unsigned)
            }

            #[inline(always)]
            fn bfe(a: Self, position: u32, length: u32) -> Self {
                let (position, length) = (position & 0xff, length & 0xff);
                // The field ends below the highest bit, moves there, and back with its sign.
                let above = Self::BITS - Ord::min(position + length, Self::BITS);
                let field = Self::shr(Self::shl(a, above), above + position);
                if length == 0 { 0 } else { field }
            }
        }
    };
}

impl_signed!(i16, u16, i32);
impl_signed!(i32, u32, i64);
impl_signed!(i64, u64, i128);

#[inline(always)]
fn divide_u16(a: u16, b: u16) -> u16 {
    // A quotient by zero is all ones in 32 bits, and so in 16.
    divide_u32(a.into(), b.into()) as u16
}

#[inline(always)]
fn divide_u32(a: u32, b: u32) -> u32 {
    // Hosts divide vectors of floats only. In `f64`, the nearest quotient never reaches an integer
    // above the exact one: that is at least 1/b away, and half the last bit of a/b is less, because
    // a < 2^53.
    let quotient = (f64::from(a) / f64::from(b)).floor();
    let quotient = if b == 0 { u32::MAX.into() } else { quotient };
    low_bits_of_integer(quotient)
}

/// Returns the lowest 32 bits of an integer of less than 2^51.
///
/// Rust's `as` cuts and limits, for which hosts have no vector instructions.
#[inline(always)]
pub(super) fn low_bits_of_integer(x: f64) -> u32 {
    // 1.5 × 2^52: the last bit of the sum is 1.
    (x + 6_755_399_441_055_744.0).to_bits() as u32
}

#[inline(always)]
fn divide_u64(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(u64::MAX)
}

/// The integers of `mul.wide` and `mad.wide`.
pub(crate) trait Widening: Integer {
    /// The integers of twice the width.
    type Wide;

    /// Returns the whole product. PTX ISA 9.7.1.3, mul.wide.
    fn mul_wide(a: Self, b: Self) -> Self::Wide;

    /// Returns the whole product, plus `c`. PTX ISA 9.7.1.4, mad.wide.
    fn mad_wide(a: Self, b: Self, c: Self::Wide) -> Self::Wide;
}

macro_rules! impl_widening {
    ($narrow:ty, $wide:ty) => {
        impl Widening for $narrow {
            type Wide = $wide;

            #[inline(always)]
            fn mul_wide(a: Self, b: Self) -> $wide {
                <$wide>::from(a) * <$wide>::from(b)
            }

            #[inline(always)]
            fn mad_wide(a: Self, b: Self, c: $wide) -> $wide {
                Self::mul_wide(a, b).wrapping_add(c)
            }
        }
    };
}

impl_widening!(u16, u32);
impl_widening!(u32, u64);
impl_widening!(i16, i32);
impl_widening!(i32, i64);

/// Returns the smaller integer. PTX ISA 9.7.1.12, min.
#[inline(always)]
pub(crate) fn min<T: Integer>(a: T, b: T) -> T {
    Ord::min(a, b)
}

/// Returns the larger integer. PTX ISA 9.7.1.13, max. `min.relu` and `max.relu` are a `max` with 0.
#[inline(always)]
pub(crate) fn max<T: Integer>(a: T, b: T) -> T {
    Ord::max(a, b)
}

/// Returns |`a`|. PTX ISA 9.7.1.10, abs. The smallest integer stays, which the ISA leaves open.
#[inline(always)]
pub(crate) fn abs_s16(a: i16) -> i16 {
    a.wrapping_abs()
}

/// Returns |`a`|. PTX ISA 9.7.1.10, abs. The smallest integer stays, which the ISA leaves open.
#[inline(always)]
pub(crate) fn abs_s32(a: i32) -> i32 {
    a.wrapping_abs()
}

/// Returns |`a`|. PTX ISA 9.7.1.10, abs. The smallest integer stays, which the ISA leaves open.
#[inline(always)]
pub(crate) fn abs_s64(a: i64) -> i64 {
    a.wrapping_abs()
}

/// Returns the sum, limited to the range of `i32`. PTX ISA 9.7.1.1, add.sat.s32.
#[inline(always)]
pub(crate) fn add_sat(a: i32, b: i32) -> i32 {
    a.saturating_add(b)
}

/// Returns the difference, limited to the range of `i32`. PTX ISA 9.7.1.2, sub.sat.s32.
#[inline(always)]
pub(crate) fn sub_sat(a: i32, b: i32) -> i32 {
    a.saturating_sub(b)
}

/// Returns the upper half of `a` × `b`, plus `c`, limited to the range of `i32`. PTX ISA 9.7.1.4,
/// mad.hi.sat.s32.
#[inline(always)]
pub(crate) fn mad_hi_sat(a: i32, b: i32, c: i32) -> i32 {
    i32::mul_hi(a, b).saturating_add(c)
}

/// Returns the lower 32 bits of the product of the lower 24 bits. PTX ISA 9.7.1.5, mul24.lo.
///
/// The ISA leaves operands of more than 24 bits open. Their upper bits are ignored.
#[inline(always)]
pub(crate) fn mul24_lo_u32(a: u32, b: u32) -> u32 {
    (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)
}

/// Returns bits 16 to 47 of the product of the lower 24 bits. PTX ISA 9.7.1.5, mul24.hi.
#[inline(always)]
pub(crate) fn mul24_hi_u32(a: u32, b: u32) -> u32 {
    ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32
}

/// Returns the lower 32 bits of the product of the lower 24 bits, which are signed. PTX ISA
/// 9.7.1.5, mul24.lo.
#[inline(always)]
pub(crate) fn mul24_lo_s32(a: i32, b: i32) -> i32 {
    extend_24(a).wrapping_mul(extend_24(b))
}

/// Returns bits 16 to 47 of the product of the lower 24 bits, which are signed. PTX ISA 9.7.1.5,
/// mul24.hi.
#[inline(always)]
pub(crate) fn mul24_hi_s32(a: i32, b: i32) -> i32 {
    ((i64::from(extend_24(a)) * i64::from(extend_24(b))) >> 16) as i32
}

/// Returns [`mul24_hi_s32`] plus `c`, limited to the range of `i32`. PTX ISA 9.7.1.6,
/// mad24.hi.sat.s32. The other forms of `mad24` wrap: the executor adds.
#[inline(always)]
pub(crate) fn mad24_hi_sat(a: i32, b: i32, c: i32) -> i32 {
    mul24_hi_s32(a, b).saturating_add(c)
}

#[inline(always)]
fn extend_24(a: i32) -> i32 {
    a << 8 >> 8
}

/// Inserts the lowest `length` bits of `a` into `b` from `position` upward. PTX ISA 9.7.1.20, bfi.
///
/// The lowest 8 bits of `position` and `length` count. Bits beyond the highest are lost.
#[inline(always)]
pub(crate) fn bfi_b32(a: u32, b: u32, position: u32, length: u32) -> u32 {
    let (position, length) = (position & 0xff, length & 0xff);
    let mask = u32::shl(!u32::shl(u32::MAX, length), position);
    b & !mask | u32::shl(a, position) & mask
}

/// Inserts the lowest `length` bits of `a` into `b` from `position` upward. PTX ISA 9.7.1.20, bfi.
///
/// The lowest 8 bits of `position` and `length` count. Bits beyond the highest are lost.
#[inline(always)]
pub(crate) fn bfi_b64(a: u64, b: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let mask = u64::shl(!u64::shl(u64::MAX, length), position);
    b & !mask | u64::shl(a, position) & mask
}

/// Returns the position of the `offset`-th bit of 1 in `mask`, from bit `base` upward, or downward
/// for negative offsets, or `u32::MAX`. PTX ISA 9.7.1.17, fns.
///
/// Bit `base` counts as first. Offset 0 asks for bit `base` itself. The ISA leaves `base` > 31
/// open. It finds nothing here.
#[inline(always)]
pub(crate) fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    // Both directions look for the bit from below.
    let is_up = offset >= 0;
    let mut rest = if is_up { mask >> base } else { (mask << (31 - base)).reverse_bits() };
    if offset == 0 {
        rest &= 1;
    }
    for _ in 1..offset.unsigned_abs().min(33) {
        rest &= rest.wrapping_sub(1);
    }
    match rest.trailing_zeros() {
        32 => u32::MAX,
        distance if is_up => base + distance,
        distance => base - distance,
    }
}

/// Extends the lowest `bits` bits of `a` to 32 by their sign. PTX ISA 9.7.1.21, szext.s32.
///
/// 0 bits give 0. If `bits` is 32 or more, the result is `a` with `.clamp`, and `.wrap` takes the
/// lowest 5 bits of `bits`.
#[inline(always)]
pub(crate) fn szext_s32(a: i32, bits: u32, is_clamp: bool) -> i32 {
    let wrapped = bits & 31;
    let unused = (32 - wrapped) & 31;
    let extended = if wrapped == 0 { 0 } else { a << unused >> unused };
    if is_clamp && bits > 31 { a } else { extended }
}

/// Extends the lowest `bits` bits of `a` to 32 by 0. PTX ISA 9.7.1.21, szext.u32. `bits` acts as in
/// [`szext_s32`].
#[inline(always)]
pub(crate) fn szext_u32(a: u32, bits: u32, is_clamp: bool) -> u32 {
    let extended = a & !(u32::MAX << (bits & 31));
    if is_clamp && bits > 31 { a } else { extended }
}

/// Returns a mask of `width` bits from `position` upward. PTX ISA 9.7.1.22, bmsk.
///
/// `.wrap` takes the lowest 5 bits of both operands. With `.clamp`, a position of 32 or more gives
/// 0, and a width of 32 or more reaches to bit 31.
#[inline(always)]
pub(crate) fn bmsk(position: u32, width: u32, is_clamp: bool) -> u32 {
    if is_clamp {
        u32::shl(!u32::shl(u32::MAX, width), position)
    } else {
        !(u32::MAX << (width & 31)) << (position & 31)
    }
}

/// Returns the product of four pairs of bytes, summed up, plus `c`. PTX ISA 9.7.1.23, dp4a.
#[inline(always)]
pub(crate) fn dp4a(a: u32, b: u32, c: u32, is_a_signed: bool, is_b_signed: bool) -> u32 {
    let mut sum = c;
    for index in 0..4 {
        let product = extract_byte(a, index, is_a_signed).wrapping_mul(extract_byte(b, index, is_b_signed));
        sum = sum.wrapping_add(product);
    }
    sum
}

/// Returns the product of the halves of `a` with the lower two bytes of `b`, or with the upper two
/// if `is_hi`, summed up, plus `c`. PTX ISA 9.7.1.24, dp2a.
#[inline(always)]
pub(crate) fn dp2a(a: u32, b: u32, c: u32, is_a_signed: bool, is_b_signed: bool, is_hi: bool) -> u32 {
    let mut sum = c;
    for index in 0..2 {
        let half = (a >> (16 * index)) as u16;
        let half = if is_a_signed { half as i16 as u32 } else { half.into() };
        let byte = extract_byte(b, index + if is_hi { 2 } else { 0 }, is_b_signed);
        sum = sum.wrapping_add(half.wrapping_mul(byte));
    }
    sum
}

#[inline(always)]
fn extract_byte(a: u32, index: u32, is_signed: bool) -> u32 {
    let byte = (a >> (8 * index)) as u8;
    if is_signed { byte as i8 as u32 } else { byte.into() }
}

/// Shifts the 64 bits of `high` and `low` left, and returns the upper half. PTX ISA 9.7.8.7, shf.l.
///
/// `.clamp` takes amounts over 32 as 32, and `.wrap` takes their lowest 5 bits.
#[inline(always)]
pub(crate) fn shf_l(low: u32, high: u32, amount: u32, is_clamp: bool) -> u32 {
    let amount = if is_clamp { Ord::min(amount, 32) } else { amount & 31 };
    u32::shl(high, amount) | u32::shr(low, 32 - amount)
}

/// Shifts the 64 bits of `high` and `low` right, and returns the lower half. PTX ISA 9.7.8.7,
/// shf.r.
///
/// `.clamp` takes amounts over 32 as 32, and `.wrap` takes their lowest 5 bits.
#[inline(always)]
pub(crate) fn shf_r(low: u32, high: u32, amount: u32, is_clamp: bool) -> u32 {
    let amount = if is_clamp { Ord::min(amount, 32) } else { amount & 31 };
    u32::shr(low, amount) | u32::shl(high, 32 - amount)
}

/// A mode of `prmt`. PTX ISA 9.7.9.7, prmt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Permutation {
    /// No mode: the control has four selectors of 4 bits.
    Generic,
    /// `.f4e`: four bytes from the selected one upward.
    Forward,
    /// `.b4e`: four bytes from the selected one downward, around the eight bytes.
    Backward,
    /// `.rc8`: the selected byte, four times.
    ReplicateByte,
    /// `.ecl`: the bytes 3 to 0, those below the selected one replaced by it.
    ClampLeft,
    /// `.ecr`: the bytes 3 to 0, those above the selected one replaced by it.
    ClampRight,
    /// `.rc16`: the selected half, twice.
    ReplicateHalf,
}

/// Picks four of the eight bytes of `b` and `a`, where byte 0 is the lowest of `a`. PTX ISA
/// 9.7.9.7, prmt.
///
/// A generic selector has the number of the byte in its lower 3 bits. Its bit 3 replaces the byte
/// by eight copies of the sign of the byte.
#[inline(always)]
pub(crate) fn prmt(a: u32, b: u32, control: u32, mode: Permutation) -> u32 {
    let which = control & 3;
    let pick = |selectors: [u32; 4]| selectors[which as usize];
    let selectors = match mode {
        Permutation::Generic => control,
        Permutation::Forward => 0x3210 + 0x1111 * which,
        Permutation::Backward => pick([0x5670, 0x6701, 0x7012, 0x0123]),
        Permutation::ReplicateByte => 0x1111 * which,
        Permutation::ClampLeft => pick([0x3210, 0x3211, 0x3222, 0x3333]),
        Permutation::ClampRight => pick([0x0000, 0x1110, 0x2210, 0x3210]),
        Permutation::ReplicateHalf => pick([0x1010, 0x3232, 0x1010, 0x3232]),
    };
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut result = 0;
    for index in 0..4 {
        let selector = selectors >> (4 * index);
        let byte = (bytes >> (8 * (selector & 7))) as u8;
        let byte = if selector & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 };
        result |= u32::from(byte) << (8 * index);
    }
    result
}

/// Looks up each bit of the result in `table`, at the bits of `a`, `b` and `c` there: `a` counts 4,
/// `b` 2 and `c` 1. PTX ISA 9.7.8.6, lop3.
#[inline(always)]
pub(crate) fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    let entry = |index: u32| 0u32.wrapping_sub(u32::from(table) >> index & 1);
    let choose = |bit: u32, one: u32, zero: u32| bit & one | !bit & zero;
    let pair = |index: u32| choose(c, entry(index + 1), entry(index));
    choose(a, choose(b, pair(6), pair(4)), choose(b, pair(2), pair(0)))
}

#[cfg(test)]
mod tests;
