//! Forms of instructions on floating-point numbers.

use super::form::{Form, Opcode, form};
use crate::number::float::{
    abs_f32, abs_f64, add_f32, add_f64, copysign_f32, copysign_f64, div_f32, div_f64, flush_f32, fma_f32,
    fma_f64, max_f32, max_f64, max_nan_f32, min_f32, min_f64, min_nan_f32, mul_f32, mul_f64, neg_f32,
    neg_f64, rcp_f32, rcp_f64, saturate_f32, sqrt_f32, sqrt_f64, sub_f32, sub_f64, xor_sign_f32,
};
use crate::number::half::{self, Bf16, F16};
use crate::number::{Rounding, approx};

/// Returns the rounding of an opcode. Without one, PTX may fuse `add` and `mul`, and rounds each as
/// `.rn` (PTX ISA 9.7.3.4, add).
fn rounding(op: &Opcode<'_>) -> Rounding {
    op.find(|part| match part {
        "rn" => Some(Rounding::Nearest),
        "rz" => Some(Rounding::Zero),
        "rm" => Some(Rounding::Down),
        "rp" => Some(Rounding::Up),
        _ => None,
    })
    .unwrap_or(Rounding::Nearest)
}

/// Returns whether arithmetic with a rounding is rare.
const fn is_rare(round: Rounding) -> bool {
    !matches!(round, Rounding::Nearest)
}

/// Makes a form of f32 for the rounding, the flush and the saturation of `op`. `R` is the rounding
/// in the expression.
macro_rules! f32_form {
    ($op:expr, |$($x:ident),*| $of:expr) => {{
        macro_rules! with {
            ($R:ident, false, false) => {
                form!(rare if is_rare(Rounding::$R), |$($x: f32),*| -> f32 {
                    const R: Rounding = Rounding::$R;
                    $of
                })
            };
            ($R:ident, true, false) => {
                form!(rare if is_rare(Rounding::$R), |$($x: f32),*| -> f32 {
                    const R: Rounding = Rounding::$R;
                    $(let $x = flush_f32($x);)*
                    flush_f32($of)
                })
            };
            ($R:ident, false, true) => {
                form!(rare if is_rare(Rounding::$R), |$($x: f32),*| -> f32 {
                    const R: Rounding = Rounding::$R;
                    saturate_f32($of)
                })
            };
            ($R:ident, true, true) => {
                form!(rare if is_rare(Rounding::$R), |$($x: f32),*| -> f32 {
                    const R: Rounding = Rounding::$R;
                    $(let $x = flush_f32($x);)*
                    saturate_f32(flush_f32($of))
                })
            };
        }
        let (ftz, sat) = ($op.has("ftz"), $op.has("sat"));
        match (rounding($op), ftz, sat) {
            (Rounding::Nearest, false, false) => with!(Nearest, false, false),
            (Rounding::Nearest, true, false) => with!(Nearest, true, false),
            (Rounding::Nearest, false, true) => with!(Nearest, false, true),
            (Rounding::Nearest, true, true) => with!(Nearest, true, true),
            (Rounding::Zero, false, false) => with!(Zero, false, false),
            (Rounding::Zero, true, false) => with!(Zero, true, false),
            (Rounding::Zero, false, true) => with!(Zero, false, true),
            (Rounding::Zero, true, true) => with!(Zero, true, true),
            (Rounding::Down, false, false) => with!(Down, false, false),
            (Rounding::Down, true, false) => with!(Down, true, false),
            (Rounding::Down, false, true) => with!(Down, false, true),
            (Rounding::Down, true, true) => with!(Down, true, true),
            (Rounding::Up, false, false) => with!(Up, false, false),
            (Rounding::Up, true, false) => with!(Up, true, false),
            (Rounding::Up, false, true) => with!(Up, false, true),
            (Rounding::Up, true, true) => with!(Up, true, true),
        }
    }};
}

/// Makes a form of f32 that does not round, for the flush of `op`.
macro_rules! f32_exact {
    ($op:expr, |$($x:ident),*| $of:expr) => {
        match $op.has("ftz") {
            false => form!(|$($x: f32),*| -> f32 { $of }),
            true => form!(|$($x: f32),*| -> f32 {
                $(let $x = flush_f32($x);)*
                flush_f32($of)
            }),
        }
    };
}

/// Makes a form of f64 for the rounding of `op`.
macro_rules! f64_form {
    ($op:expr, |$($x:ident),*| $of:expr) => {{
        macro_rules! with {
            ($R:ident) => {
                form!(rare if is_rare(Rounding::$R), |$($x: f64),*| -> f64 {
                    const R: Rounding = Rounding::$R;
                    $of
                })
            };
        }
        match rounding($op) {
            Rounding::Nearest => with!(Nearest),
            Rounding::Zero => with!(Zero),
            Rounding::Down => with!(Down),
            Rounding::Up => with!(Up),
        }
    }};
}

/// Returns the form of an instruction, if it is one of this file.
pub(super) fn form(op: &Opcode<'_>) -> Option<Form> {
    // Mixed precision has two types; `.oob` is a rule of later GPUs.
    let types = op.parts.iter().filter(|part| matches!(**part, "f32" | "f64" | "f16" | "bf16"));
    if types.count() > 1 || op.has("oob") {
        return None;
    }
    match op.last() {
        "f32" => of_f32(op),
        "f64" => of_f64(op),
        "f16" => of_half(op, false),
        "bf16" => of_half(op, true),
        "f16x2" => of_pair(op, false),
        "bf16x2" => of_pair(op, true),
        _ => None,
    }
}

fn of_f32(op: &Opcode<'_>) -> Option<Form> {
    let is_approximate = op.has("approx");
    Some(match op.name {
        "add" => f32_form!(op, |a, b| add_f32(a, b, R)),
        "sub" => f32_form!(op, |a, b| sub_f32(a, b, R)),
        "mul" => f32_form!(op, |a, b| mul_f32(a, b, R)),
        "fma" | "mad" => f32_form!(op, |a, b, c| fma_f32(a, b, c, R)),
        "div" if is_approximate => f32_exact!(op, |a, b| approx::div(a, b)),
        "div" if op.has("full") => f32_exact!(op, |a, b| approx::div_full(a, b)),
        "div" => f32_form!(op, |a, b| div_f32(a, b, R)),
        "rcp" if is_approximate => f32_exact!(op, |a| approx::rcp(a)),
        "rcp" => f32_form!(op, |a| rcp_f32(a, R)),
        "sqrt" if is_approximate => f32_exact!(op, |a| approx::sqrt(a)),
        "sqrt" => f32_form!(op, |a| sqrt_f32(a, R)),
        "rsqrt" => f32_exact!(op, |a| approx::rsqrt(a)),
        "sin" => f32_exact!(op, |a| approx::sin(a)),
        "cos" => f32_exact!(op, |a| approx::cos(a)),
        "lg2" => f32_exact!(op, |a| approx::lg2(a)),
        "ex2" => f32_exact!(op, |a| approx::ex2(a)),
        "tanh" => form!(|a: f32| -> f32 { approx::tanh(a) }),
        "neg" => f32_exact!(op, |a| neg_f32(a)),
        "abs" => f32_exact!(op, |a| abs_f32(a)),
        "copysign" => form!(|a: f32, b: f32| -> f32 { copysign_f32(a, b) }),
        "min" | "max" => return extremum(op),
        "mov" => form!(|a: f32| -> f32 { a }),
        _ => return None,
    })
}

/// `min` and `max` of two or three values. PTX ISA 9.7.3.11, min.
fn extremum(op: &Opcode<'_>) -> Option<Form> {
    let is_min = op.name == "min";
    let (keeps_nan, has_sign) = (op.has("NaN"), op.has("xorsign"));
    // Without `.xorsign`, `.abs` is for three values. Two steps of magnitudes give their extremum.
    if op.has("abs") && !has_sign {
        return Some(match (is_min, keeps_nan) {
            (true, false) => f32_exact!(op, |a, b| min_f32(abs_f32(a), abs_f32(b))),
            (false, false) => f32_exact!(op, |a, b| max_f32(abs_f32(a), abs_f32(b))),
            (true, true) => f32_exact!(op, |a, b| min_nan_f32(abs_f32(a), abs_f32(b))),
            (false, true) => f32_exact!(op, |a, b| max_nan_f32(abs_f32(a), abs_f32(b))),
        });
    }
    Some(match (is_min, keeps_nan, has_sign) {
        (true, false, false) => f32_exact!(op, |a, b| min_f32(a, b)),
        (false, false, false) => f32_exact!(op, |a, b| max_f32(a, b)),
        (true, true, false) => f32_exact!(op, |a, b| min_nan_f32(a, b)),
        (false, true, false) => f32_exact!(op, |a, b| max_nan_f32(a, b)),
        (true, false, true) => f32_exact!(op, |a, b| xor_sign_f32(min_f32(abs_f32(a), abs_f32(b)), a, b)),
        (false, false, true) => f32_exact!(op, |a, b| xor_sign_f32(max_f32(abs_f32(a), abs_f32(b)), a, b)),
        (true, true, true) => f32_exact!(op, |a, b| xor_sign_f32(min_nan_f32(abs_f32(a), abs_f32(b)), a, b)),
        (false, true, true) => {
            f32_exact!(op, |a, b| xor_sign_f32(max_nan_f32(abs_f32(a), abs_f32(b)), a, b))
        }
    })
}

fn of_f64(op: &Opcode<'_>) -> Option<Form> {
    let is_approximate = op.has("approx");
    Some(match op.name {
        "add" => f64_form!(op, |a, b| add_f64(a, b, R)),
        "sub" => f64_form!(op, |a, b| sub_f64(a, b, R)),
        "mul" => f64_form!(op, |a, b| mul_f64(a, b, R)),
        "fma" | "mad" => f64_form!(op, |a, b, c| fma_f64(a, b, c, R)),
        "div" => f64_form!(op, |a, b| div_f64(a, b, R)),
        "rcp" if is_approximate => form!(|a: f64| -> f64 { approx::rcp_ftz_f64(a) }),
        "rcp" => f64_form!(op, |a| rcp_f64(a, R)),
        "sqrt" => f64_form!(op, |a| sqrt_f64(a, R)),
        "rsqrt" if op.has("ftz") => form!(|a: f64| -> f64 { approx::rsqrt_ftz_f64(a) }),
        "rsqrt" => form!(|a: f64| -> f64 { approx::rsqrt_f64(a) }),
        "neg" => form!(|a: f64| -> f64 { neg_f64(a) }),
        "abs" => form!(|a: f64| -> f64 { abs_f64(a) }),
        "copysign" => form!(|a: f64, b: f64| -> f64 { copysign_f64(a, b) }),
        "min" => form!(|a: f64, b: f64| -> f64 { min_f64(a, b) }),
        "max" => form!(|a: f64, b: f64| -> f64 { max_f64(a, b) }),
        "mov" => form!(|a: f64| -> f64 { a }),
        _ => return None,
    })
}

/// Makes a form of one half or, if `pair`, of two in a word. `$finish` is applied to each result.
macro_rules! half_form {
    ($pair:expr, $H:ty, |$($x:ident),*| $of:expr, $finish:expr) => {
        half_form!(rare if false, $pair, $H, |$($x),*| $of, $finish)
    };
    (rare if $is_rare:expr, $pair:expr, $H:ty, |$($x:ident),*| $of:expr, $finish:expr) => {
        match $pair {
            false => form!(rare if $is_rare, |$($x: u16),*| -> u16 { $finish($of) }),
            true => form!(rare if $is_rare, |$($x: u32),*| -> u32 {
                let low = { $(let $x = $x as u16;)* $finish($of) };
                let high = { $(let $x = ($x >> 16) as u16;)* $finish($of) };
                u32::from(high) << 16 | u32::from(low)
            }),
        }
    };
}

/// Makes a form of halves for the flush, saturation and rectification of `op`.
macro_rules! half_arithmetic {
    ($op:expr, $pair:expr, $H:ident, |$($x:ident),*| $of:expr) => {
        match ($op.has("ftz"), $op.has("sat"), $op.has("relu")) {
            (false, false, false) => half_form!($pair, $H, |$($x),*| $of, |x| x),
            (true, false, false) => half_form!($pair, $H, |$($x),*| {
                $(let $x = half::flush::<$H>($x);)*
                half::flush::<$H>($of)
            }, |x| x),
            (false, true, false) => half_form!(rare if true, $pair, $H, |$($x),*| $of, half::saturate::<$H>),
            (true, true, false) => half_form!(rare if true, $pair, $H, |$($x),*| {
                $(let $x = half::flush::<$H>($x);)*
                half::flush::<$H>($of)
            }, half::saturate::<$H>),
            (false, _, true) => half_form!(rare if true, $pair, $H, |$($x),*| $of, half::relu::<$H>),
            (true, _, true) => half_form!(rare if true, $pair, $H, |$($x),*| {
                $(let $x = half::flush::<$H>($x);)*
                half::flush::<$H>($of)
            }, half::relu::<$H>),
        }
    };
}

/// Makes a form of halves that does not round, for the flush of `op`.
macro_rules! half_exact {
    ($op:expr, $pair:expr, $H:ident, |$($x:ident),*| $of:expr) => {
        match $op.has("ftz") {
            false => half_form!($pair, $H, |$($x),*| $of, |x| x),
            true => half_form!($pair, $H, |$($x),*| {
                $(let $x = half::flush::<$H>($x);)*
                $of
            }, |x| x),
        }
    };
}

macro_rules! halves {
    ($op:expr, $pair:expr, $H:ident) => {{
        let op: &Opcode<'_> = $op;
        Some(match op.name {
            "add" => half_arithmetic!(op, $pair, $H, |a, b| half::add::<$H>(a, b)),
            "sub" => half_arithmetic!(op, $pair, $H, |a, b| half::sub::<$H>(a, b)),
            "mul" => half_arithmetic!(op, $pair, $H, |a, b| half::mul::<$H>(a, b)),
            "fma" => half_arithmetic!(op, $pair, $H, |a, b, c| half::fma::<$H>(a, b, c)),
            "neg" => half_exact!(op, $pair, $H, |a| half::neg::<$H>(a)),
            "abs" => half_exact!(op, $pair, $H, |a| half::abs::<$H>(a)),
            "min" | "max" if op.has("xorsign") => {
                macro_rules! of_magnitudes {
                    ($of:ident) => {
                        half_exact!(op, $pair, $H, |a, b| {
                            half::xor_sign::<$H>(
                                half::$of::<$H>(half::abs::<$H>(a), half::abs::<$H>(b)),
                                a,
                                b,
                            )
                        })
                    };
                }
                match (op.name, op.has("NaN")) {
                    ("min", false) => of_magnitudes!(min),
                    ("min", true) => of_magnitudes!(min_nan),
                    (_, false) => of_magnitudes!(max),
                    (_, true) => of_magnitudes!(max_nan),
                }
            }
            "min" if op.has("NaN") => half_exact!(op, $pair, $H, |a, b| half::min_nan::<$H>(a, b)),
            "max" if op.has("NaN") => half_exact!(op, $pair, $H, |a, b| half::max_nan::<$H>(a, b)),
            "min" => half_exact!(op, $pair, $H, |a, b| half::min::<$H>(a, b)),
            "max" => half_exact!(op, $pair, $H, |a, b| half::max::<$H>(a, b)),
            _ => return None,
        })
    }};
}

fn of_half(op: &Opcode<'_>, is_bf16: bool) -> Option<Form> {
    match (op.name, is_bf16) {
        ("ex2", false) => Some(form!(|a: u16| -> u16 { approx::ex2_f16(a) })),
        ("ex2", true) => Some(form!(|a: u16| -> u16 { approx::ex2_ftz_bf16(a) })),
        ("tanh", false) => Some(form!(|a: u16| -> u16 { approx::tanh_f16(a) })),
        ("tanh", true) => Some(form!(|a: u16| -> u16 { approx::tanh_bf16(a) })),
        (_, false) => halves!(op, false, F16),
        (_, true) => halves!(op, false, Bf16),
    }
}

fn of_pair(op: &Opcode<'_>, is_bf16: bool) -> Option<Form> {
    match (op.name, is_bf16) {
        ("ex2", false) => Some(half_form!(true, F16, |a| approx::ex2_f16(a), |x| x)),
        ("ex2", true) => Some(half_form!(true, Bf16, |a| approx::ex2_ftz_bf16(a), |x| x)),
        ("tanh", false) => Some(half_form!(true, F16, |a| approx::tanh_f16(a), |x| x)),
        ("tanh", true) => Some(half_form!(true, Bf16, |a| approx::tanh_bf16(a), |x| x)),
        ("mov", _) => Some(form!(|a: u32| -> u32 { a })),
        (_, false) => halves!(op, true, F16),
        (_, true) => halves!(op, true, Bf16),
    }
}
