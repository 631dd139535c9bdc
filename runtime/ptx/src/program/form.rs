//! The form of an instruction: its loop, and the kinds of its operands.

use crate::exec::lanes::Loops;
use crate::exec::registers::{Cell, Kind, Literal, Value};

/// An instruction that computes each lane alone, from up to three sources.
#[derive(Clone)]
pub(super) struct Form {
    pub(super) loops: Loops,
    pub(super) result: Kind,
    pub(super) sources: Vec<Source>,
}

/// A source of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) kind: Kind,
    pub(super) literal: Literal,
}

impl Source {
    pub(super) const fn of<V: Value>() -> Self {
        Source { kind: <V::Cell as Cell>::KIND, literal: V::LITERAL }
    }
}

/// The opcode of an instruction, in parts: `add.rn.ftz.f32` is `add` with `rn`, `ftz` and `f32`.
#[derive(Debug)]
pub(super) struct Opcode<'a> {
    pub(super) whole: &'a str,
    pub(super) name: &'a str,
    pub(super) parts: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    pub(super) fn of(whole: &'a str) -> Self {
        let mut parts = whole.split('.');
        let name = parts.next().unwrap_or_default();
        Opcode { whole, name, parts: parts.collect() }
    }

    pub(super) fn has(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }

    /// Returns the last part, which is mostly the type.
    pub(super) fn last(&self) -> &'a str {
        self.parts.last().copied().unwrap_or_default()
    }

    /// Returns the first part that `of` knows.
    pub(super) fn find<T>(&self, of: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.parts.iter().find_map(|part| of(part))
    }
}

/// Returns the kind of a register for a type.
pub(super) fn kind_of(ty: &str) -> Option<Kind> {
    Some(match ty {
        "pred" => Kind::Predicate,
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" => Kind::Narrow,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" | "tf32" => Kind::Narrow,
        "b64" | "u64" | "s64" | "f64" => Kind::Wide,
        _ => return None,
    })
}

/// Returns the meaning of a number as a source of a type.
pub(super) fn literal_of(ty: &str) -> Literal {
    match ty {
        "f32" => Literal::F32,
        "f64" => Literal::F64,
        _ => Literal::Integer,
    }
}

/// Makes the form of an instruction from a function of its values. `rare if` is true for forms
/// that ordinary kernels hardly use: their loops are slow, and fast to compile.
macro_rules! form {
    (|$($x:ident: $X:ty),+| -> $D:ty $of:block) => {
        form!(rare if false, |$($x: $X),+| -> $D $of)
    };
    (rare if $is_rare:expr, |$($x:ident: $X:ty),+| -> $D:ty $of:block) => {{
        struct It;
        form!(impl It, $is_rare, |$($x: $X),+| -> $D $of);
        crate::program::form::Form {
            loops: form!(loops It, $($x),+),
            result: <<$D as crate::exec::registers::Value>::Cell as crate::exec::registers::Cell>::KIND,
            sources: vec![$(crate::program::form::Source::of::<$X>()),+],
        }
    }};
    (impl $It:ty, $is_rare:expr, |$a:ident: $A:ty| -> $D:ty $of:block) => {
        impl crate::exec::lanes::Unary for $It {
            type A = $A;
            type D = $D;
            const IS_RARE: bool = $is_rare;

            #[inline(always)]
            fn of($a: $A) -> $D $of
        }
    };
    (impl $It:ty, $is_rare:expr, |$a:ident: $A:ty, $b:ident: $B:ty| -> $D:ty $of:block) => {
        impl crate::exec::lanes::Binary for $It {
            type A = $A;
            type B = $B;
            type D = $D;
            const IS_RARE: bool = $is_rare;

            #[inline(always)]
            fn of($a: $A, $b: $B) -> $D $of
        }
    };
    (impl $It:ty, $is_rare:expr, |$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| -> $D:ty $of:block) => {
        impl crate::exec::lanes::Ternary for $It {
            type A = $A;
            type B = $B;
            type C = $C;
            type D = $D;
            const IS_RARE: bool = $is_rare;

            #[inline(always)]
            fn of($a: $A, $b: $B, $c: $C) -> $D $of
        }
    };
    (loops $It:ty, $a:ident) => { crate::exec::lanes::unaries::loops::<$It>() };
    (loops $It:ty, $a:ident, $b:ident) => { crate::exec::lanes::binaries::loops::<$It>() };
    (loops $It:ty, $a:ident, $b:ident, $c:ident) => { crate::exec::lanes::ternaries::loops::<$It>() };
}

/// Makes the form of a comparison. Its result is a predicate.
macro_rules! test {
    (|$a:ident: $A:ty, $b:ident| $of:expr) => {{
        struct It;
        impl crate::exec::lanes::Test for It {
            type A = $A;

            #[inline(always)]
            fn of($a: $A, $b: $A) -> bool {
                $of
            }
        }
        crate::program::form::Form {
            loops: crate::exec::lanes::tests::loops::<It>(),
            result: crate::exec::registers::Kind::Predicate,
            sources: vec![crate::program::form::Source::of::<$A>(), crate::program::form::Source::of::<$A>()],
        }
    }};
}

pub(super) use {form, test};
