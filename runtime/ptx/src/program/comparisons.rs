//! Forms of comparisons: `setp` and `set`. PTX ISA 9.7.6 and 9.3.1.

use super::form::{Form, Opcode, test};
use crate::number::float::{Comparison, Property, compare_f32, compare_f64, flush_f32, testp_f32, testp_f64};
use crate::number::half::{Bf16, F16, Half, flush};

/// Returns the form of the comparison of an opcode, for sources of its last type.
pub(super) fn form(op: &Opcode<'_>) -> Option<Form> {
    let ty = op.last();
    let comparison = *op.parts.first()?;
    macro_rules! integers {
        ($T:ty) => {
            match comparison {
                "eq" => test!(|a: $T, b| a == b),
                "ne" => test!(|a: $T, b| a != b),
                "lt" | "lo" => test!(|a: $T, b| a < b),
                "le" | "ls" => test!(|a: $T, b| a <= b),
                "gt" | "hi" => test!(|a: $T, b| a > b),
                "ge" | "hs" => test!(|a: $T, b| a >= b),
                _ => return None,
            }
        };
    }
    macro_rules! floats {
        ($T:ty, |$a:ident, $b:ident, $by:ident| $of:expr) => {{
            macro_rules! with {
                ($C:ident) => {
                    test!(|$a: $T, $b| {
                        let $by = Comparison::$C;
                        $of
                    })
                };
            }
            match comparison {
                "eq" => with!(Eq),
                "ne" => with!(Ne),
                "lt" => with!(Lt),
                "le" => with!(Le),
                "gt" => with!(Gt),
                "ge" => with!(Ge),
                "equ" => with!(Equ),
                "neu" => with!(Neu),
                "ltu" => with!(Ltu),
                "leu" => with!(Leu),
                "gtu" => with!(Gtu),
                "geu" => with!(Geu),
                "num" => with!(Num),
                "nan" => with!(Nan),
                _ => return None,
            }
        }};
    }
    Some(match ty {
        "b16" | "u16" => integers!(u16),
        "s16" => integers!(i16),
        "b32" | "u32" => integers!(u32),
        "s32" => integers!(i32),
        "b64" | "u64" => integers!(u64),
        "s64" => integers!(i64),
        "f32" if op.has("ftz") => {
            floats!(f32, |a, b, by| compare_f32(flush_f32(a), flush_f32(b), by))
        }
        "f32" => floats!(f32, |a, b, by| compare_f32(a, b, by)),
        "f64" => floats!(f64, |a, b, by| compare_f64(a, b, by)),
        "f16" if op.has("ftz") => {
            floats!(u16, |a, b, by| {
                compare_f32(F16::widen(flush::<F16>(a)), F16::widen(flush::<F16>(b)), by)
            })
        }
        "f16" => floats!(u16, |a, b, by| compare_f32(F16::widen(a), F16::widen(b), by)),
        "bf16" => floats!(u16, |a, b, by| compare_f32(Bf16::widen(a), Bf16::widen(b), by)),
        _ => return None,
    })
}

/// Returns the form of `testp`. PTX ISA 9.7.3.1. Its source is both sources of the form.
pub(super) fn property(op: &Opcode<'_>) -> Option<Form> {
    macro_rules! of {
        ($T:ty, $testp:ident) => {
            match op.parts.first().copied()? {
                "finite" => test!(|a: $T, _b| $testp(a, Property::Finite)),
                "infinite" => test!(|a: $T, _b| $testp(a, Property::Infinite)),
                "number" => test!(|a: $T, _b| $testp(a, Property::Number)),
                "notanumber" => test!(|a: $T, _b| $testp(a, Property::NotANumber)),
                "normal" => test!(|a: $T, _b| $testp(a, Property::Normal)),
                "subnormal" => test!(|a: $T, _b| $testp(a, Property::Subnormal)),
                _ => return None,
            }
        };
    }
    Some(match op.last() {
        "f32" => of!(f32, testp_f32),
        "f64" => of!(f64, testp_f64),
        _ => return None,
    })
}
