//! Atomic operations on memory: `atom` and `red`.
//!
//! The address is given as for a load, in `a` and `extra`. `b` and `c` are the operands, and `d`
//! receives the old value if `e` is 1. All are sequentially consistent, whatever the instruction
//! asks for.

use super::access::addresses;
use super::context::Context;
use super::memory::{Access, Element};
use super::op::{Flow, Op, Run};
use super::registers::{Cell, Mask, for_each_lane};
use super::warp::Lanes;
use crate::number::{Rounding, float, half, integer};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};

/// An atomic operation: the new value from the old one and the operands.
trait Atomic {
    type T: Word;

    fn of(old: Self::T, b: Self::T, c: Self::T) -> Self::T;
}

/// A word that the processor changes atomically.
trait Word: Element + Copy {
    type Cell: Cell;

    /// Replaces the word at an address by what `change` returns for it. Returns the old one.
    ///
    /// # Safety
    /// The conditions are those of [`Element::store`].
    unsafe fn update(address: u64, change: impl FnMut(Self) -> Self) -> Self;
}

macro_rules! words {
    ($($word:ident, $cell:ident, $atomic:ident;)*) => {$(
        impl Word for $word {
            type Cell = $cell;

            #[inline(always)]
            unsafe fn update(address: u64, mut change: impl FnMut(Self) -> Self) -> Self {
                let place = std::ptr::with_exposed_provenance_mut::<$word>(address as usize);
                // SAFETY: from_ptr needs an aligned pointer to valid memory that is accessed by
                // atomic operations alone, which the caller promises.
                let word = unsafe { $atomic::from_ptr(place) };
                match word.fetch_update(SeqCst, SeqCst, |old| Some(change(old))) {
                    Ok(old) | Err(old) => old,
                }
            }
        }
    )*};
}

words! {
    u16, u32, AtomicU16;
    u32, u32, AtomicU32;
    u64, u64, AtomicU64;
}

fn run<O: Atomic>(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let Some(addresses) = addresses(lanes, op, mask, context, O::T::BYTES, Access::Write) else {
        return Flow::Fault;
    };
    let b = lanes.registers.get::<<O::T as Word>::Cell>(op.b);
    let c = lanes.registers.get::<<O::T as Word>::Cell>(op.c);
    let mut old = b;
    for_each_lane(mask, |lane| {
        let of = |cell: <O::T as Word>::Cell| <O::T as Element>::of_u64(cell.to_u64());
        let (b, c) = (of(b[lane]), of(c[lane]));
        // SAFETY: update needs an aligned address in memory that is valid for writes, which
        // `addresses` has checked.
        let was = unsafe { O::T::update(addresses[lane], |old| O::of(old, b, c)) };
        old[lane] = Cell::of_u64(was.extended());
    });
    if op.e == 1 {
        let row = <O::T as Word>::Cell::row_mut(&mut lanes.registers, op.d);
        for_each_lane(mask, |lane| row[lane] = old[lane]);
    }
    Flow::Next
}

macro_rules! atomic {
    ($word:ty, |$old:ident, $b:ident, $c:pat_param| $new:expr) => {{
        struct It;
        impl Atomic for It {
            type T = $word;

            #[inline(always)]
            fn of($old: $word, $b: $word, $c: $word) -> $word {
                $new
            }
        }
        run::<It> as Run
    }};
}

/// Applies a function of halves to both halves of a word.
#[inline(always)]
fn both(a: u32, b: u32, of: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(of(a as u16, b as u16)) | u32::from(of((a >> 16) as u16, (b >> 16) as u16)) << 16
}

/// Returns the loop for an operation on a type, and whether its cells are wide.
pub(crate) fn atomic_of(operation: &str, ty: &str) -> Option<(Run, bool)> {
    let nearest = Rounding::Nearest;
    let _ = nearest;
    macro_rules! integers {
        ($word:ty, $signed:ty) => {
            match operation {
                "exch" => atomic!($word, |_old, b, _| b),
                "cas" => atomic!($word, |old, b, c| if old == b { c } else { old }),
                "and" => atomic!($word, |old, b, _| old & b),
                "or" => atomic!($word, |old, b, _| old | b),
                "xor" => atomic!($word, |old, b, _| old ^ b),
                "add" => atomic!($word, |old, b, _| old.wrapping_add(b)),
                // PTX ISA 9.7.13.5, atom: inc is ((old >= b) ? 0 : old + 1), dec is
                // ((old == 0 || old > b) ? b : old - 1).
                "inc" => atomic!($word, |old, b, _| if old >= b { 0 } else { old + 1 }),
                "dec" => atomic!($word, |old, b, _| if old == 0 || old > b { b } else { old - 1 }),
                "min" if ty.starts_with('s') => {
                    atomic!($word, |old, b, _| integer::min(old as $signed, b as $signed) as $word)
                }
                "max" if ty.starts_with('s') => {
                    atomic!($word, |old, b, _| integer::max(old as $signed, b as $signed) as $word)
                }
                "min" => atomic!($word, |old, b, _| old.min(b)),
                "max" => atomic!($word, |old, b, _| old.max(b)),
                _ => return None,
            }
        };
    }
    Some(match ty {
        "b16" if operation == "cas" => (atomic!(u16, |old, b, c| if old == b { c } else { old }), false),
        "b16" if operation == "exch" => (atomic!(u16, |_old, b, _| b), false),
        "b32" | "u32" | "s32" => (integers!(u32, i32), false),
        "b64" | "u64" | "s64" => (integers!(u64, i64), true),
        "f32" if operation == "add" => {
            let run = atomic!(u32, |old, b, _| {
                // PTX ISA 9.7.13.5, atom: on global memory, atom.add.f32 flushes subnormals on some
                // GPUs; here it does not.
                float::add_f32(f32::from_bits(old), f32::from_bits(b), Rounding::Nearest).to_bits()
            });
            (run, false)
        }
        "f64" if operation == "add" => {
            let run = atomic!(u64, |old, b, _| {
                float::add_f64(f64::from_bits(old), f64::from_bits(b), Rounding::Nearest).to_bits()
            });
            (run, true)
        }
        "f16" if operation == "add" => (atomic!(u16, |old, b, _| half::add::<half::F16>(old, b)), false),
        "bf16" if operation == "add" => (atomic!(u16, |old, b, _| half::add::<half::Bf16>(old, b)), false),
        "f16x2" if operation == "add" => {
            (atomic!(u32, |old, b, _| both(old, b, half::add::<half::F16>)), false)
        }
        "bf16x2" if operation == "add" => {
            (atomic!(u32, |old, b, _| both(old, b, half::add::<half::Bf16>)), false)
        }
        _ => return None,
    })
}
