//! Loops over the lanes of a warp, for instructions that compute each lane alone.
//!
//! An instruction is a type that implements [`Unary`] and so on. Its loop is compiled for several
//! sets of processor instructions, so that the compiler vectorises it with the widest registers,
//! and the lowering picks one when the program is loaded.

use super::context::Context;
use super::op::{Flow, Op, Run};
use super::registers::{Cell, LANES, Mask, PART, Registers, Value, for_each_lane};
use super::warp::Lanes;

/// The instructions that the processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Those that every processor of the target has.
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// Returns the best level of this processor.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 {
                return Level::Avx512;
            }
            if avx2 {
                return Level::Avx2;
            }
        }
        Level::Plain
    }

    /// Returns the name of the instructions.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "AVX-512",
        }
    }
}

/// One loop, compiled for each level.
#[derive(Clone, Copy)]
pub(crate) struct Loops {
    pub(crate) plain: Run,
    #[cfg(target_arch = "x86_64")]
    pub(crate) avx2: Run,
    #[cfg(target_arch = "x86_64")]
    pub(crate) avx512: Run,
}

impl Loops {
    /// Returns one loop for all levels.
    pub(crate) const fn all(run: Run) -> Self {
        Loops {
            plain: run,
            #[cfg(target_arch = "x86_64")]
            avx2: run,
            #[cfg(target_arch = "x86_64")]
            avx512: run,
        }
    }

    pub(crate) fn at(self, level: Level) -> Run {
        match level {
            Level::Plain => self.plain,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => self.avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => self.avx512,
        }
    }
}

/// An instruction with one source.
pub(crate) trait Unary {
    type A: Value;
    type D: Value;
    /// True if the loop is compiled once, for one lane after the other.
    const IS_RARE: bool = false;

    fn of(a: Self::A) -> Self::D;
}

/// An instruction with two sources.
pub(crate) trait Binary {
    type A: Value;
    type B: Value;
    type D: Value;
    /// True if the loop is compiled once, for one lane after the other.
    const IS_RARE: bool = false;

    fn of(a: Self::A, b: Self::B) -> Self::D;
}

/// An instruction with three sources.
pub(crate) trait Ternary {
    type A: Value;
    type B: Value;
    type C: Value;
    type D: Value;
    /// True if the loop is compiled once, for one lane after the other.
    const IS_RARE: bool = false;

    fn of(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// A comparison of two sources.
pub(crate) trait Test {
    type A: Value;

    fn of(a: Self::A, b: Self::A) -> bool;
}

/// Returns the cells of the values that `of` returns for the lanes of a part.
#[inline(always)]
fn cells<V: Value>(of: impl Fn(usize) -> V) -> [V::Cell; PART] {
    // A loop, because the compiler does not inline all calls of `from_fn`.
    let mut cells = [<V::Cell as Cell>::of_u64(0); PART];
    for (lane, cell) in cells.iter_mut().enumerate() {
        *cell = of(lane).cell();
    }
    cells
}

#[inline(always)]
fn unary<O: Unary>(registers: &mut Registers, op: &Op, mask: Mask) -> Flow {
    let a = registers.source(op.a);
    let part = |first| {
        // SAFETY: part needs registers that exist and are not borrowed: `set_parts` calls this
        // while it holds no reference to a row.
        let a = unsafe { a.part(first) };
        cells::<O::D>(|lane| O::of(O::A::of(a[lane])))
    };
    // SAFETY: the source is a register of these.
    unsafe { registers.set_parts::<O::D>(op.d, mask, part) };
    Flow::Next
}

#[inline(always)]
fn binary<O: Binary>(registers: &mut Registers, op: &Op, mask: Mask) -> Flow {
    let (a, b) = (registers.source(op.a), registers.source(op.b));
    let part = |first| {
        // SAFETY: as in `unary`.
        let a = unsafe { a.part(first) };
        // SAFETY: as in `unary`.
        let b = unsafe { b.part(first) };
        cells::<O::D>(|lane| O::of(O::A::of(a[lane]), O::B::of(b[lane])))
    };
    // SAFETY: the sources are registers of these.
    unsafe { registers.set_parts::<O::D>(op.d, mask, part) };
    Flow::Next
}

#[inline(always)]
fn ternary<O: Ternary>(registers: &mut Registers, op: &Op, mask: Mask) -> Flow {
    let (a, b, c) = (registers.source(op.a), registers.source(op.b), registers.source(op.c));
    let part = |first| {
        // SAFETY: as in `unary`.
        let a = unsafe { a.part(first) };
        // SAFETY: as in `unary`.
        let b = unsafe { b.part(first) };
        // SAFETY: as in `unary`.
        let c = unsafe { c.part(first) };
        cells::<O::D>(|lane| O::of(O::A::of(a[lane]), O::B::of(b[lane]), O::C::of(c[lane])))
    };
    // SAFETY: the sources are registers of these.
    unsafe { registers.set_parts::<O::D>(op.d, mask, part) };
    Flow::Next
}

/// Runs a rare instruction with one source.
fn unary_rare<O: Unary>(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let a = lanes.registers.get::<<O::A as Value>::Cell>(op.a);
    let d = <O::D as Value>::Cell::row_mut(&mut lanes.registers, op.d);
    for_each_lane(mask, |lane| d[lane] = O::of(O::A::of(a[lane])).cell());
    Flow::Next
}

/// Runs a rare instruction with two sources.
fn binary_rare<O: Binary>(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let a = lanes.registers.get::<<O::A as Value>::Cell>(op.a);
    let b = lanes.registers.get::<<O::B as Value>::Cell>(op.b);
    let d = <O::D as Value>::Cell::row_mut(&mut lanes.registers, op.d);
    for_each_lane(mask, |lane| d[lane] = O::of(O::A::of(a[lane]), O::B::of(b[lane])).cell());
    Flow::Next
}

/// Runs a rare instruction with three sources.
fn ternary_rare<O: Ternary>(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let a = lanes.registers.get::<<O::A as Value>::Cell>(op.a);
    let b = lanes.registers.get::<<O::B as Value>::Cell>(op.b);
    let c = lanes.registers.get::<<O::C as Value>::Cell>(op.c);
    let d = <O::D as Value>::Cell::row_mut(&mut lanes.registers, op.d);
    for_each_lane(mask, |lane| {
        d[lane] = O::of(O::A::of(a[lane]), O::B::of(b[lane]), O::C::of(c[lane])).cell();
    });
    Flow::Next
}

/// `extra` holds how the result and its negation are combined with predicate `c`; see
/// [`Combination`].
#[inline(always)]
fn test<O: Test>(registers: &mut Registers, op: &Op, mask: Mask) -> Flow {
    let (a, b) = (<O::A as Value>::Cell::row(registers, op.a), <O::A as Value>::Cell::row(registers, op.b));
    let mut flags = [0; LANES];
    for lane in 0..LANES {
        // Both values are written, because the compiler makes branches of a store that may not be.
        flags[lane] = if O::of(O::A::of(a[lane]), O::A::of(b[lane])) { u8::MAX } else { 0 };
    }
    Combination::of(op.extra).store(registers, op, mask, bits_of(flags));
    Flow::Next
}

/// Returns the lanes whose byte is not 0. The other bytes are `u8::MAX`.
#[inline(always)]
pub(crate) fn bits_of(flags: [u8; LANES]) -> Mask {
    // The compiler turns comparisons into these instructions, but not into shifts of single bits.
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_movemask_epi8};
        // SAFETY: transmute needs types of one size, of which any bits are valid.
        let [low, high] = unsafe { std::mem::transmute::<[u8; LANES], [__m128i; 2]>(flags) };
        // SAFETY: every x86-64 processor has SSE2.
        let low = unsafe { _mm_movemask_epi8(low) };
        // SAFETY: as above.
        let high = unsafe { _mm_movemask_epi8(high) };
        low as Mask | (high as Mask) << 16
    }
    #[cfg(not(target_arch = "x86_64"))]
    (0..LANES).fold(0, |bits, lane| bits | Mask::from(flags[lane] & 1) << lane)
}

/// `selp`: `d` is `a` where predicate `c` is true, else `b`. `extra` is all ones if `c` is negated.
#[inline(always)]
fn select<C: Cell + Value<Cell = C>>(registers: &mut Registers, op: &Op, mask: Mask) -> Flow {
    let (a, b) = (registers.source::<C>(op.a), registers.source::<C>(op.b));
    let c = registers.predicates[op.c as usize] ^ op.extra as u32;
    let part = |first| {
        // SAFETY: as in `unary`.
        let a = unsafe { a.part(first) };
        // SAFETY: as in `unary`.
        let b = unsafe { b.part(first) };
        C::choose(c >> first, a, b)
    };
    // SAFETY: the sources are registers of these.
    unsafe { registers.set_parts::<C>(op.d, mask, part) };
    Flow::Next
}

/// The destinations of a comparison's result. PTX ISA 9.7.6, setp: `p = cmp op c; q = !cmp op c`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Combination {
    pub(crate) with: Option<Bool>,
    /// True if `c` is negated.
    pub(crate) is_negated: bool,
    /// The second result.
    pub(crate) second: Option<u32>,
}

/// How a comparison is combined with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bool {
    And = 1,
    Or = 2,
    Xor = 3,
}

impl Combination {
    const NO_SECOND: u64 = 0xffff_ffff;

    /// Returns the form in which an op holds it.
    pub(crate) fn extra(self) -> u64 {
        let with = self.with.map_or(0, |with| with as u64);
        let second = self.second.map_or(Self::NO_SECOND, u64::from);
        with | u64::from(self.is_negated) << 2 | second << 32
    }

    #[inline(always)]
    fn of(extra: u64) -> Self {
        let with = match extra & 3 {
            1 => Some(Bool::And),
            2 => Some(Bool::Or),
            3 => Some(Bool::Xor),
            _ => None,
        };
        let second = extra >> 32;
        let second = (second != Self::NO_SECOND).then_some(second as u32);
        Combination { with, is_negated: extra & 4 != 0, second }
    }

    #[inline(always)]
    fn store(self, registers: &mut Registers, op: &Op, mask: Mask, bits: Mask) {
        let c = match self.with {
            None => 0,
            Some(_) => registers.predicates[op.c as usize],
        };
        let c = if self.is_negated { !c } else { c };
        let combined = |bits: Mask| match self.with {
            None => bits,
            Some(Bool::And) => bits & c,
            Some(Bool::Or) => bits | c,
            Some(Bool::Xor) => bits ^ c,
        };
        registers.set_predicate(op.d, mask, combined(bits));
        if let Some(second) = self.second {
            registers.set_predicate(second, mask, combined(!bits));
        }
    }
}

/// Compiles a loop for each level. Rare instructions have one that is compiled once.
macro_rules! compiled {
    ($($module:ident, $body:ident, [$($kind:tt)+] $(, $rare:ident)?;)*) => {$(
        pub(crate) mod $module {
            use super::*;

            #[inline(always)]
            fn plain<O: $($kind)+>(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
                $body::<O>(&mut lanes.registers, op, mask)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2<O: $($kind)+>(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
                $body::<O>(&mut lanes.registers, op, mask)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(
                enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
            )]
            fn avx512<O: $($kind)+>(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
                $body::<O>(&mut lanes.registers, op, mask)
            }

            /// Returns the loop over an instruction, compiled for each level.
            pub(crate) const fn loops<O: $($kind)+>() -> Loops {
                $(if O::IS_RARE {
                    return Loops::all($rare::<O>);
                })?
                // The unit tests run no loop, so they compile one where the library compiles three.
                if cfg!(test) {
                    return Loops::all(plain::<O>);
                }
                Loops {
                    plain: plain::<O>,
                    #[cfg(target_arch = "x86_64")]
                    avx2: avx2::<O>,
                    #[cfg(target_arch = "x86_64")]
                    avx512: avx512::<O>,
                }
            }
        }
    )*};
}

compiled! {
    unaries, unary, [Unary], unary_rare;
    binaries, binary, [Binary], binary_rare;
    ternaries, ternary, [Ternary], ternary_rare;
    tests, test, [Test];
    selects, select, [Cell + Value<Cell = O>];
}
