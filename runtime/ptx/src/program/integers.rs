//! Forms of instructions on integers and bits.

use super::form::{Form, Opcode, form};
use crate::number::integer::{self, Integer, Permutation, Widening};

/// Makes the form for the integer type `ty`, which is `T` in it.
macro_rules! all {
    ($ty:expr, |$($x:ident),*| $of:block) => {
        match $ty {
            "u16" => Some({ type T = u16; form!(|$($x: T),*| -> T $of) }),
            "s16" => Some({ type T = i16; form!(|$($x: T),*| -> T $of) }),
            "u32" => Some({ type T = u32; form!(|$($x: T),*| -> T $of) }),
            "s32" => Some({ type T = i32; form!(|$($x: T),*| -> T $of) }),
            "u64" => Some({ type T = u64; form!(|$($x: T),*| -> T $of) }),
            "s64" => Some({ type T = i64; form!(|$($x: T),*| -> T $of) }),
            _ => None,
        }
    };
}

/// Makes the form for the width `ty`.
macro_rules! bits {
    ($ty:expr, |$($x:ident),*| $of:block) => {
        match $ty {
            "b8" => Some(form!(|$($x: u8),*| -> u8 $of)),
            "b16" => Some(form!(|$($x: u16),*| -> u16 $of)),
            "b32" => Some(form!(|$($x: u32),*| -> u32 $of)),
            "b64" => Some(form!(|$($x: u64),*| -> u64 $of)),
            _ => None,
        }
    };
}

/// Returns the form of an instruction, if it is one of this file.
pub(super) fn form(op: &Opcode<'_>) -> Option<Form> {
    // Compilers write `max.s32.relu`, and the ISA `max.relu.s32`.
    let ty = op.parts.iter().rfind(|part| **part != "relu").copied().unwrap_or_default();
    // `.f4e` is a mode of `prmt`.
    let is_float = op.name != "prmt" && (ty.starts_with('f') || ty.starts_with("bf"));
    if is_float || op.has("cc") || (op.has("sat") || op.has("relu")) && ty != "s32" {
        return None;
    }
    match op.name {
        "add" if op.has("sat") => Some(form!(|a: i32, b: i32| -> i32 { integer::add_sat(a, b) })),
        "sub" if op.has("sat") => Some(form!(|a: i32, b: i32| -> i32 { integer::sub_sat(a, b) })),
        "add" => all!(ty, |a, b| { a.wrapping_add(b) }),
        "sub" => all!(ty, |a, b| { a.wrapping_sub(b) }),
        "mul" if op.has("hi") => all!(ty, |a, b| { T::mul_hi(a, b) }),
        "mul" if op.has("lo") => all!(ty, |a, b| { a.wrapping_mul(b) }),
        "mul" if op.has("wide") => match ty {
            "u16" => Some(form!(|a: u16, b: u16| -> u32 { u16::mul_wide(a, b) })),
            "s16" => Some(form!(|a: i16, b: i16| -> i32 { i16::mul_wide(a, b) })),
            "u32" => Some(form!(|a: u32, b: u32| -> u64 { u32::mul_wide(a, b) })),
            "s32" => Some(form!(|a: i32, b: i32| -> i64 { i32::mul_wide(a, b) })),
            _ => None,
        },
        "mad" if op.has("hi") && op.has("sat") => {
            Some(form!(|a: i32, b: i32, c: i32| -> i32 { integer::mad_hi_sat(a, b, c) }))
        }
        "mad" if op.has("hi") => all!(ty, |a, b, c| { T::mad_hi(a, b, c) }),
        "mad" if op.has("lo") => all!(ty, |a, b, c| { a.wrapping_mul(b).wrapping_add(c) }),
        "mad" if op.has("wide") => match ty {
            "u16" => Some(form!(|a: u16, b: u16, c: u32| -> u32 { u16::mad_wide(a, b, c) })),
            "s16" => Some(form!(|a: i16, b: i16, c: i32| -> i32 { i16::mad_wide(a, b, c) })),
            "u32" => Some(form!(|a: u32, b: u32, c: u64| -> u64 { u32::mad_wide(a, b, c) })),
            "s32" => Some(form!(|a: i32, b: i32, c: i64| -> i64 { i32::mad_wide(a, b, c) })),
            _ => None,
        },
        "mul24" => match (ty, op.has("hi")) {
            ("u32", false) => Some(form!(|a: u32, b: u32| -> u32 { integer::mul24_lo_u32(a, b) })),
            ("u32", true) => Some(form!(|a: u32, b: u32| -> u32 { integer::mul24_hi_u32(a, b) })),
            ("s32", false) => Some(form!(|a: i32, b: i32| -> i32 { integer::mul24_lo_s32(a, b) })),
            ("s32", true) => Some(form!(|a: i32, b: i32| -> i32 { integer::mul24_hi_s32(a, b) })),
            _ => None,
        },
        "mad24" => match (ty, op.has("hi"), op.has("sat")) {
            ("u32", false, _) => {
                Some(form!(|a: u32, b: u32, c: u32| -> u32 { integer::mul24_lo_u32(a, b).wrapping_add(c) }))
            }
            ("u32", true, _) => {
                Some(form!(|a: u32, b: u32, c: u32| -> u32 { integer::mul24_hi_u32(a, b).wrapping_add(c) }))
            }
            ("s32", false, _) => {
                Some(form!(|a: i32, b: i32, c: i32| -> i32 { integer::mul24_lo_s32(a, b).wrapping_add(c) }))
            }
            ("s32", true, false) => {
                Some(form!(|a: i32, b: i32, c: i32| -> i32 { integer::mul24_hi_s32(a, b).wrapping_add(c) }))
            }
            ("s32", true, true) => {
                Some(form!(|a: i32, b: i32, c: i32| -> i32 { integer::mad24_hi_sat(a, b, c) }))
            }
            _ => None,
        },
        "sad" => all!(ty, |a, b, c| { T::sad(a, b, c) }),
        "div" => all!(ty, |a, b| { T::div(a, b) }),
        "rem" => all!(ty, |a, b| { T::rem(a, b) }),
        "min" if op.has("relu") => {
            Some(form!(|a: i32, b: i32| -> i32 { integer::max(integer::min(a, b), 0) }))
        }
        "max" if op.has("relu") => {
            Some(form!(|a: i32, b: i32| -> i32 { integer::max(integer::max(a, b), 0) }))
        }
        "min" => all!(ty, |a, b| { integer::min(a, b) }),
        "max" => all!(ty, |a, b| { integer::max(a, b) }),
        "neg" => all!(ty, |a| { (0 as T).wrapping_sub(a) }),
        "abs" => match ty {
            "s16" => Some(form!(|a: i16| -> i16 { integer::abs_s16(a) })),
            "s32" => Some(form!(|a: i32| -> i32 { integer::abs_s32(a) })),
            "s64" => Some(form!(|a: i64| -> i64 { integer::abs_s64(a) })),
            _ => None,
        },
        "and" => bits!(ty, |a, b| { a & b }),
        "or" => bits!(ty, |a, b| { a | b }),
        "xor" => bits!(ty, |a, b| { a ^ b }),
        "not" => bits!(ty, |a| { !a }),
        "cnot" => match ty {
            "b16" => Some(form!(|a: u16| -> u16 { u16::from(a == 0) })),
            "b32" => Some(form!(|a: u32| -> u32 { u32::from(a == 0) })),
            "b64" => Some(form!(|a: u64| -> u64 { u64::from(a == 0) })),
            _ => None,
        },
        "shl" => match ty {
            "b16" => Some(form!(|a: u16, b: u32| -> u16 { u16::shl(a, b) })),
            "b32" => Some(form!(|a: u32, b: u32| -> u32 { u32::shl(a, b) })),
            "b64" => Some(form!(|a: u64, b: u32| -> u64 { u64::shl(a, b) })),
            _ => None,
        },
        "shr" => match ty {
            "b16" | "u16" => Some(form!(|a: u16, b: u32| -> u16 { u16::shr(a, b) })),
            "s16" => Some(form!(|a: i16, b: u32| -> i16 { i16::shr(a, b) })),
            "b32" | "u32" => Some(form!(|a: u32, b: u32| -> u32 { u32::shr(a, b) })),
            "s32" => Some(form!(|a: i32, b: u32| -> i32 { i32::shr(a, b) })),
            "b64" | "u64" => Some(form!(|a: u64, b: u32| -> u64 { u64::shr(a, b) })),
            "s64" => Some(form!(|a: i64, b: u32| -> i64 { i64::shr(a, b) })),
            _ => None,
        },
        "shf" => match (op.has("l"), op.has("clamp")) {
            (true, true) => Some(form!(|a: u32, b: u32, c: u32| -> u32 { integer::shf_l(a, b, c, true) })),
            (true, false) => Some(form!(|a: u32, b: u32, c: u32| -> u32 { integer::shf_l(a, b, c, false) })),
            (false, true) => Some(form!(|a: u32, b: u32, c: u32| -> u32 { integer::shf_r(a, b, c, true) })),
            (false, false) => Some(form!(|a: u32, b: u32, c: u32| -> u32 { integer::shf_r(a, b, c, false) })),
        },
        "popc" => match ty {
            "b32" => Some(form!(|a: u32| -> u32 { a.count_ones() })),
            "b64" => Some(form!(|a: u64| -> u32 { a.count_ones() })),
            _ => None,
        },
        "clz" => match ty {
            "b32" => Some(form!(|a: u32| -> u32 { a.leading_zeros() })),
            "b64" => Some(form!(|a: u64| -> u32 { a.leading_zeros() })),
            _ => None,
        },
        "brev" => match ty {
            "b32" => Some(form!(|a: u32| -> u32 { a.reverse_bits() })),
            "b64" => Some(form!(|a: u64| -> u64 { a.reverse_bits() })),
            _ => None,
        },
        "bfind" => match (ty, op.has("shiftamt")) {
            ("u32", false) => Some(form!(|a: u32| -> u32 { u32::bfind(a) })),
            ("s32", false) => Some(form!(|a: i32| -> u32 { i32::bfind(a) })),
            ("u64", false) => Some(form!(|a: u64| -> u32 { u64::bfind(a) })),
            ("s64", false) => Some(form!(|a: i64| -> u32 { i64::bfind(a) })),
            ("u32", true) => Some(form!(|a: u32| -> u32 { u32::bfind_shift(a) })),
            ("s32", true) => Some(form!(|a: i32| -> u32 { i32::bfind_shift(a) })),
            ("u64", true) => Some(form!(|a: u64| -> u32 { u64::bfind_shift(a) })),
            ("s64", true) => Some(form!(|a: i64| -> u32 { i64::bfind_shift(a) })),
            _ => None,
        },
        "bfe" => match ty {
            "u32" => Some(form!(|a: u32, b: u32, c: u32| -> u32 { u32::bfe(a, b, c) })),
            "s32" => Some(form!(|a: i32, b: u32, c: u32| -> i32 { i32::bfe(a, b, c) })),
            "u64" => Some(form!(|a: u64, b: u32, c: u32| -> u64 { u64::bfe(a, b, c) })),
            "s64" => Some(form!(|a: i64, b: u32, c: u32| -> i64 { i64::bfe(a, b, c) })),
            _ => None,
        },
        "fns" => Some(form!(|a: u32, b: u32, c: i32| -> u32 { integer::fns(a, b, c) })),
        "prmt" => {
            macro_rules! mode {
                ($mode:ident) => {
                    form!(|a: u32, b: u32, c: u32| -> u32 { integer::prmt(a, b, c, Permutation::$mode) })
                };
            }
            Some(match op.parts.iter().find(|part| **part != "b32").copied() {
                None => mode!(Generic),
                Some("f4e") => mode!(Forward),
                Some("b4e") => mode!(Backward),
                Some("rc8") => mode!(ReplicateByte),
                Some("ecl") => mode!(ClampLeft),
                Some("ecr") => mode!(ClampRight),
                Some("rc16") => mode!(ReplicateHalf),
                Some(_) => return None,
            })
        }
        "dp4a" => {
            macro_rules! signs {
                ($a:literal, $b:literal) => {
                    form!(|a: u32, b: u32, c: u32| -> u32 { integer::dp4a(a, b, c, $a, $b) })
                };
            }
            Some(match (op.parts.first() == Some(&"s32"), ty == "s32") {
                (false, false) => signs!(false, false),
                (false, true) => signs!(false, true),
                (true, false) => signs!(true, false),
                (true, true) => signs!(true, true),
            })
        }
        "dp2a" => {
            macro_rules! signs {
                ($a:literal, $b:literal, $hi:literal) => {
                    form!(|a: u32, b: u32, c: u32| -> u32 { integer::dp2a(a, b, c, $a, $b, $hi) })
                };
            }
            Some(match (op.has("hi"), op.parts.get(1) == Some(&"s32"), ty == "s32") {
                (false, false, false) => signs!(false, false, false),
                (false, false, true) => signs!(false, true, false),
                (false, true, false) => signs!(true, false, false),
                (false, true, true) => signs!(true, true, false),
                (true, false, false) => signs!(false, false, true),
                (true, false, true) => signs!(false, true, true),
                (true, true, false) => signs!(true, false, true),
                (true, true, true) => signs!(true, true, true),
            })
        }
        "szext" => Some(match (ty, op.has("clamp")) {
            ("s32", true) => form!(|a: i32, b: u32| -> i32 { integer::szext_s32(a, b, true) }),
            ("s32", false) => form!(|a: i32, b: u32| -> i32 { integer::szext_s32(a, b, false) }),
            ("u32", true) => form!(|a: u32, b: u32| -> u32 { integer::szext_u32(a, b, true) }),
            ("u32", false) => form!(|a: u32, b: u32| -> u32 { integer::szext_u32(a, b, false) }),
            _ => return None,
        }),
        "bmsk" => Some(match op.has("clamp") {
            true => form!(|a: u32, b: u32| -> u32 { integer::bmsk(a, b, true) }),
            false => form!(|a: u32, b: u32| -> u32 { integer::bmsk(a, b, false) }),
        }),
        // `mov` of a register or a constant. All types of a width are alike.
        "mov" => match ty {
            "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" => Some(form!(|a: u16| -> u16 { a })),
            "b32" | "u32" | "s32" => Some(form!(|a: u32| -> u32 { a })),
            "b64" | "u64" | "s64" => Some(form!(|a: u64| -> u64 { a })),
            _ => None,
        },
        _ => None,
    }
}
