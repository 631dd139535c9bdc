//! Instructions that select, and those of which a lane needs more than three sources or a flag.

use super::context::Context;
use super::op::{Flow, Op};
use super::registers::{Cell, LANES, Mask, Value, for_each_lane};
use super::warp::Lanes;
use crate::number::float::flush_f32;
use crate::number::integer::{self, Integer};

/// `slct`: `d` is `a` where `c` is not negative, else `b`. `c` is an `i32`, or an `f32` if `extra`
/// is 1 or, with `.ftz`, 2. PTX ISA 9.7.6.4, slct: -0 counts as 0, and NaN as negative.
pub(crate) fn by_sign<C: Cell + Value<Cell = C>>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    _: &Context<'_>,
) -> Flow {
    let (a, b) = (lanes.registers.get::<C>(op.a), lanes.registers.get::<C>(op.b));
    let c = lanes.registers.get::<u32>(op.c);
    let of = |lane: usize| if takes_first(c[lane], op.extra) { a[lane] } else { b[lane] };
    lanes.registers.set::<C>(op.d, mask, of);
    Flow::Next
}

/// Returns whether `slct` takes its first source, by its last one and the `extra` of the op.
#[inline(always)]
pub(crate) fn takes_first(c: u32, extra: u64) -> bool {
    let number = f32::from_bits(c);
    match extra {
        0 => c as i32 >= 0,
        1 => number >= 0.0,
        _ => flush_f32(number) >= 0.0,
    }
}

/// An operation on predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Logic {
    Move,
    Not,
    And,
    Or,
    Xor,
}

/// `and.pred` and the like: predicate `d` from `a` and `b`. `extra` is a [`Logic`].
pub(crate) fn predicates(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let a = lanes.registers.predicates[op.a as usize];
    let b = lanes.registers.predicates[op.b as usize];
    let bits = match op.extra {
        0 => a,
        1 => !a,
        2 => a & b,
        3 => a | b,
        _ => a ^ b,
    };
    lanes.registers.set_predicate(op.d, mask, bits);
    Flow::Next
}

/// Sets predicate `d` to whether `extra` is not 0.
pub(crate) fn set_predicate(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    lanes.registers.set_predicate(op.d, mask, if op.extra == 0 { 0 } else { Mask::MAX });
    Flow::Next
}

/// `bfi`: `d` from `a`, `b`, position `c` and length `e`.
pub(crate) fn insert_b32(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let [a, b, c, e] = [op.a, op.b, op.c, op.e].map(|row| lanes.registers.get::<u32>(row));
    lanes.registers.set::<u32>(op.d, mask, |lane| integer::bfi_b32(a[lane], b[lane], c[lane], e[lane]));
    Flow::Next
}

/// `bfi.b64`
pub(crate) fn insert_b64(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let [a, b] = [op.a, op.b].map(|row| lanes.registers.get::<u64>(row));
    let [c, e] = [op.c, op.e].map(|row| lanes.registers.get::<u32>(row));
    lanes.registers.set::<u64>(op.d, mask, |lane| integer::bfi_b64(a[lane], b[lane], c[lane], e[lane]));
    Flow::Next
}

/// `lop3`, whose table is `extra`.
pub(crate) fn lookup(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let [a, b, c] = [op.a, op.b, op.c].map(|row| lanes.registers.get::<u32>(row));
    let table = op.extra as u8;
    lanes.registers.set::<u32>(op.d, mask, |lane| integer::lop3(a[lane], b[lane], c[lane], table));
    Flow::Next
}

/// Packs the narrow rows `a` and `b` into the wide row `d`, `a` in the lower half.
pub(crate) fn pack_64(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let [a, b] = [op.a, op.b].map(|row| lanes.registers.get::<u32>(row));
    lanes.registers.set::<u64>(op.d, mask, |lane| u64::from(b[lane]) << 32 | u64::from(a[lane]));
    Flow::Next
}

/// Packs halves of 16 bits: the narrow rows `a` and `b` into the narrow row `d`.
pub(crate) fn pack_32(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let [a, b] = [op.a, op.b].map(|row| lanes.registers.get::<u32>(row));
    lanes.registers.set::<u32>(op.d, mask, |lane| b[lane] << 16 | a[lane] & 0xffff);
    Flow::Next
}

/// Packs bytes: the narrow rows `a` and `b` into the lower half of the narrow row `d`.
pub(crate) fn pack_2_of_8(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let [a, b] = [op.a, op.b].map(|row| lanes.registers.get::<u32>(row));
    lanes.registers.set::<u32>(op.d, mask, |lane| (b[lane] & 0xff) << 8 | a[lane] & 0xff);
    Flow::Next
}

/// Packs four of 16 bits into the wide row `d`.
pub(crate) fn pack_4_of_16(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let parts = [op.a, op.b, op.c, op.e].map(|row| lanes.registers.get::<u32>(row));
    lanes.registers.set::<u64>(op.d, mask, |lane| {
        let of = |part: usize| u64::from(parts[part][lane] as u16) << (16 * part);
        of(0) | of(1) | of(2) | of(3)
    });
    Flow::Next
}

/// Packs four bytes into the narrow row `d`.
pub(crate) fn pack_4_of_8(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let parts = [op.a, op.b, op.c, op.e].map(|row| lanes.registers.get::<u32>(row));
    lanes.registers.set::<u32>(op.d, mask, |lane| {
        let of = |part: usize| u32::from(parts[part][lane] as u8) << (8 * part);
        of(0) | of(1) | of(2) | of(3)
    });
    Flow::Next
}

/// Sets the narrow row `d` to bits of the wide row `a`: `b` of them, from bit `c` on.
pub(crate) fn part_of_wide(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let a = lanes.registers.get::<u64>(op.a);
    let keep = if op.b >= 32 { u32::MAX } else { (1 << op.b) - 1 };
    lanes.registers.set::<u32>(op.d, mask, |lane| (a[lane] >> op.c) as u32 & keep);
    Flow::Next
}

/// Sets the narrow row `d` to bits of the narrow row `a`: `b` of them, from bit `c` on.
pub(crate) fn part_of_narrow(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let a = lanes.registers.get::<u32>(op.a);
    let keep = if op.b >= 32 { u32::MAX } else { (1 << op.b) - 1 };
    lanes.registers.set::<u32>(op.d, mask, |lane| (a[lane] >> op.c) & keep);
    Flow::Next
}

/// Extends the narrow row `a` to the wide row `d`, with the sign of bit `b` − 1, or with zeros if
/// `extra` is 0.
pub(crate) fn extend(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let a = lanes.registers.get::<u32>(op.a);
    let (unused, is_signed) = (64 - op.b, op.extra == 1);
    lanes.registers.set::<u64>(op.d, mask, |lane| {
        let shifted = u64::from(a[lane]) << unused;
        if is_signed { (shifted as i64 >> unused) as u64 } else { shifted >> unused }
    });
    Flow::Next
}

/// An operation with a carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    Add,
    Subtract,
    MultiplyLow,
    MultiplyHigh,
}

/// Returns the `extra` of an op with a carry.
pub(crate) fn carry_extra(sum: Sum, takes: bool, gives: bool) -> u64 {
    sum as u64 | u64::from(takes) << 2 | u64::from(gives) << 3
}

/// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`: `d` from `a`, `b` and `c`.
///
/// A subtraction is the sum of `a`, the complement of `b`, and a carry. So after `sub.cc` and
/// `subc.cc` the flag is 1 where nothing was borrowed. PTX ISA 9.7.2.3 calls it the borrow and
/// leaves open how 0 and 1 encode it. The division of 128-bit integers that NVRTC emits reads it
/// by `addc`, and needs this encoding.
pub(crate) fn with_carry<T: Integer + Value>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    _: &Context<'_>,
) -> Flow {
    let [a, b, c] = [op.a, op.b, op.c].map(|row| lanes.registers.get::<T::Cell>(row));
    let (takes, gives) = (op.extra & 4 != 0, op.extra & 8 != 0);
    let mut carries: Mask = 0;
    let before = lanes.carry;
    let mut results = [None; LANES];
    for_each_lane(mask, |lane| {
        let flag = before >> lane & 1 == 1;
        let carry = takes && flag;
        let (a, b, c) = (T::of(a[lane]), T::of(b[lane]), T::of(c[lane]));
        let (result, carries_out) = match op.extra & 3 {
            0 => T::add_carry(a, b, carry),
            1 => {
                let (difference, borrows) = T::sub_borrow(a, b, takes && !flag);
                (difference, !borrows)
            }
            2 => T::mad_lo_carry(a, b, c, carry),
            _ => T::mad_hi_carry(a, b, c, carry),
        };
        results[lane] = Some(result);
        carries |= Mask::from(carries_out) << lane;
    });
    let row = T::Cell::row_mut(&mut lanes.registers, op.d);
    for_each_lane(mask, |lane| {
        if let Some(result) = results[lane] {
            row[lane] = result.cell();
        }
    });
    if gives {
        lanes.carry = lanes.carry & !mask | carries;
    }
    Flow::Next
}
