//! Forms of `cvt`. PTX ISA 9.7.9.21.

use super::form::{Form, Opcode, form};
use crate::number::Rounding;
use crate::number::convert::{
    f32_to_f64, f32_to_integer, f32_to_tf32, f32_to_tf32_away, f64_to_f32, f64_to_integer, integer_to_f32,
    integer_to_f64, integer_to_half, integral_f32, integral_f64, integral_half, relu_tf32, satfinite_tf32,
    signed_to_signed, signed_to_unsigned, unsigned_to_signed, unsigned_to_unsigned,
};
use crate::number::float::{flush_f32, saturate_f32, saturate_f64};
use crate::number::half::{self, Bf16, F16, Half};

/// Returns the rounding of an opcode, and whether it rounds to an integer.
fn rounding(op: &Opcode<'_>) -> (Option<Rounding>, bool) {
    let of = |part: &str| {
        Some(match part {
            "rn" => (Rounding::Nearest, false),
            "rz" => (Rounding::Zero, false),
            "rm" => (Rounding::Down, false),
            "rp" => (Rounding::Up, false),
            "rni" => (Rounding::Nearest, true),
            "rzi" => (Rounding::Zero, true),
            "rmi" => (Rounding::Down, true),
            "rpi" => (Rounding::Up, true),
            _ => return None,
        })
    };
    op.find(of).map_or((None, false), |(round, is_integral)| (Some(round), is_integral))
}

/// Makes a form for a rounding, which is `R` in the expression. It is rare for the roundings that
/// NVRTC does not use by itself, and if `rare` is written before it. It is not if `common` is.
macro_rules! rounded {
    (common $round:expr, |$x:ident: $A:ty| -> $D:ty $of:block) => {
        rounded!([false, false], $round, |$x: $A| -> $D $of)
    };
    (rare $round:expr, |$x:ident: $A:ty| -> $D:ty $of:block) => {
        rounded!([true, true], $round, |$x: $A| -> $D $of)
    };
    ([$usual:expr, $unusual:expr], $round:expr, |$x:ident: $A:ty| -> $D:ty $of:block) => {{
        macro_rules! with {
            ($R:ident, $is_rare:expr) => {
                form!(rare if $is_rare, |$x: $A| -> $D {
                    #[allow(dead_code, reason = "some expressions are exact")]
                    const R: Rounding = Rounding::$R;
                    $of
                })
            };
        }
        match $round {
            Rounding::Nearest => with!(Nearest, $usual),
            Rounding::Zero => with!(Zero, $usual),
            Rounding::Down => with!(Down, $unusual),
            Rounding::Up => with!(Up, $unusual),
        }
    }};
    ($round:expr, |$x:ident: $A:ty| -> $D:ty $of:block) => {
        rounded!([false, true], $round, |$x: $A| -> $D $of)
    };
}

/// Makes a form for a rounding, and for the flush and the saturation of a result of f32.
macro_rules! to_f32 {
    ($op:expr, $round:expr, |$x:ident: $A:ty| $of:expr) => {
        match ($op.has("ftz"), $op.has("sat")) {
            (false, false) => rounded!(common $round, |$x: $A| -> f32 { $of }),
            (true, false) => rounded!(common $round, |$x: $A| -> f32 { flush_f32($of) }),
            (false, true) => rounded!(rare $round, |$x: $A| -> f32 { saturate_f32($of) }),
            (true, true) => rounded!(rare $round, |$x: $A| -> f32 { saturate_f32(flush_f32($of)) }),
        }
    };
}

/// Returns the form of a conversion.
pub(super) fn form(op: &Opcode<'_>) -> Option<Form> {
    let [.., to, from] = op.parts[..] else { return None };
    // The stochastic rounding of later GPUs takes random bits.
    if op.has("rs") || !assembles(op, to, from) {
        return None;
    }
    let (round, is_integral) = rounding(op);
    let nearest = round.unwrap_or(Rounding::Nearest);
    match (to, from) {
        (_, "f32" | "f64" | "f16" | "bf16") if is_integer(to) => from_float(op, to, from),
        ("f32" | "f64" | "f16" | "bf16", _) if is_integer(from) => to_float(op, to, from, nearest),
        (to, from) if is_integer(to) && is_integer(from) => integers(op, to, from),
        ("f32", "f32") if is_integral => Some(match op.has("ftz") {
            false => to_f32!(op, nearest, |x: f32| integral_f32(x, R)),
            true => to_f32!(op, nearest, |x: f32| integral_f32(flush_f32(x), R)),
        }),
        ("f32", "f32") => Some(match op.has("ftz") {
            false => to_f32!(op, Rounding::Nearest, |x: f32| x),
            true => to_f32!(op, Rounding::Nearest, |x: f32| flush_f32(x)),
        }),
        ("f64", "f64") if is_integral => Some(match op.has("sat") {
            false => rounded!(common nearest, |x: f64| -> f64 { integral_f64(x, R) }),
            true => rounded!(rare nearest, |x: f64| -> f64 { saturate_f64(integral_f64(x, R)) }),
        }),
        ("f64", "f64") => Some(match op.has("sat") {
            false => form!(|x: f64| -> f64 { x }),
            true => form!(|x: f64| -> f64 { saturate_f64(x) }),
        }),
        ("f64", "f32") => Some(match (op.has("ftz"), op.has("sat")) {
            (false, false) => form!(|x: f32| -> f64 { f32_to_f64(x) }),
            (true, false) => form!(|x: f32| -> f64 { f32_to_f64(flush_f32(x)) }),
            (false, true) => form!(|x: f32| -> f64 { saturate_f64(f32_to_f64(x)) }),
            (true, true) => form!(|x: f32| -> f64 { saturate_f64(f32_to_f64(flush_f32(x))) }),
        }),
        ("f32", "f64") => Some(to_f32!(op, nearest, |x: f64| f64_to_f32(x, R))),
        ("f32", "f16") => Some(to_f32!(op, Rounding::Nearest, |x: u16| F16::widen(x))),
        ("f32", "bf16") => Some(to_f32!(op, Rounding::Nearest, |x: u16| Bf16::widen(x))),
        ("f64", "f16") if op.has("sat") => {
            Some(form!(|x: u16| -> f64 { saturate_f64(f32_to_f64(F16::widen(x))) }))
        }
        ("f64", "f16") => Some(form!(|x: u16| -> f64 { f32_to_f64(F16::widen(x)) })),
        ("f64", "bf16") => Some(form!(|x: u16| -> f64 { f32_to_f64(Bf16::widen(x)) })),
        ("f16", _) => half::<F16>(op, from, nearest, is_integral),
        ("bf16", _) => half::<Bf16>(op, from, nearest, is_integral),
        ("f16x2", "f32") => pair::<F16>(op, nearest),
        ("bf16x2", "f32") => pair::<Bf16>(op, nearest),
        ("tf32", "f32") => {
            let relu = op.has("relu");
            Some(match (op.has("rna"), op.has("satfinite"), relu) {
                (true, false, _) => form!(|x: f32| -> u32 { f32_to_tf32_away(x) }),
                (true, true, _) => form!(|x: f32| -> u32 { satfinite_tf32(f32_to_tf32_away(x)) }),
                (false, false, false) => rounded!(nearest, |x: f32| -> u32 { f32_to_tf32(x, R) }),
                (false, false, true) => {
                    rounded!(rare nearest, |x: f32| -> u32 { relu_tf32(f32_to_tf32(x, R)) })
                }
                (false, true, false) => {
                    rounded!(rare nearest, |x: f32| -> u32 { satfinite_tf32(f32_to_tf32(x, R)) })
                }
                (false, true, true) => {
                    rounded!(rare nearest, |x: f32| -> u32 { relu_tf32(satfinite_tf32(f32_to_tf32(x, R))) })
                }
            })
        }
        _ => None,
    }
}

/// Returns false for what ptxas refuses: a saturation that can change no value, a saturation of
/// bf16, and conversions between bf16 and bytes.
fn assembles(op: &Opcode<'_>, to: &str, from: &str) -> bool {
    let has_bf16 = to == "bf16" || from == "bf16";
    let has_bytes = [to, from].iter().any(|ty| matches!(*ty, "u8" | "s8"));
    let is_lossless = || {
        let (is_signed, was_signed) = (to.starts_with('s'), from.starts_with('s'));
        let bits_of = |ty: &str| ty[1..].parse::<u32>().unwrap_or_default();
        match (bits_of(to), bits_of(from)) {
            (bits, of) if is_signed == was_signed => bits >= of,
            (bits, of) => is_signed && bits > of,
        }
    };
    let is_needless = is_integer(to) && is_integer(from) && is_lossless();
    !(has_bf16 && has_bytes || op.has("sat") && (has_bf16 || is_needless))
}

fn is_integer(ty: &str) -> bool {
    matches!(ty, "u8" | "u16" | "u32" | "u64" | "s8" | "s16" | "s32" | "s64")
}

/// Makes a form from an integer type to an integer type, both with their bits. Signed results of
/// less than 32 bits fill a narrow row with their sign.
macro_rules! integer_forms {
    ($sat:expr, $to:expr, $from:expr) => {{
        macro_rules! with_source {
            ($S:ty, $Wide:ty, $to_signed:ident, $to_unsigned:ident) => {
                match ($to, $sat) {
                    ("u8", false) => form!(|x: $S| -> u32 { (x as u8).into() }),
                    ("u16", false) => form!(|x: $S| -> u32 { (x as u16).into() }),
                    ("u32", false) => form!(|x: $S| -> u32 { x as u32 }),
                    ("u64", false) => form!(|x: $S| -> u64 { x as u64 }),
                    ("s8", false) => form!(|x: $S| -> i32 { (x as i8).into() }),
                    ("s16", false) => form!(|x: $S| -> i32 { (x as i16).into() }),
                    ("s32", false) => form!(|x: $S| -> i32 { x as i32 }),
                    ("s64", false) => form!(|x: $S| -> i64 { x as i64 }),
                    ("u8", true) => form!(rare if true, |x: $S| -> u32 { $to_unsigned::<8>(x as $Wide) as u32 }),
                    ("u16", true) => form!(rare if true, |x: $S| -> u32 { $to_unsigned::<16>(x as $Wide) as u32 }),
                    ("u32", true) => form!(rare if true, |x: $S| -> u32 { $to_unsigned::<32>(x as $Wide) as u32 }),
                    ("u64", true) => form!(rare if true, |x: $S| -> u64 { $to_unsigned::<64>(x as $Wide) as u64 }),
                    ("s8", true) => form!(rare if true, |x: $S| -> i32 { $to_signed::<8>(x as $Wide) as i32 }),
                    ("s16", true) => form!(rare if true, |x: $S| -> i32 { $to_signed::<16>(x as $Wide) as i32 }),
                    ("s32", true) => form!(rare if true, |x: $S| -> i32 { $to_signed::<32>(x as $Wide) as i32 }),
                    ("s64", true) => form!(rare if true, |x: $S| -> i64 { $to_signed::<64>(x as $Wide) as i64 }),
                    _ => return None,
                }
            };
        }
        match $from {
            "u8" => with_source!(u8, u64, unsigned_to_signed, unsigned_to_unsigned),
            "u16" => with_source!(u16, u64, unsigned_to_signed, unsigned_to_unsigned),
            "u32" => with_source!(u32, u64, unsigned_to_signed, unsigned_to_unsigned),
            "u64" => with_source!(u64, u64, unsigned_to_signed, unsigned_to_unsigned),
            "s8" => with_source!(i8, i64, signed_to_signed, signed_to_unsigned),
            "s16" => with_source!(i16, i64, signed_to_signed, signed_to_unsigned),
            "s32" => with_source!(i32, i64, signed_to_signed, signed_to_unsigned),
            "s64" => with_source!(i64, i64, signed_to_signed, signed_to_unsigned),
            _ => return None,
        }
    }};
}

fn integers(op: &Opcode<'_>, to: &str, from: &str) -> Option<Form> {
    Some(integer_forms!(op.has("sat"), to, from))
}

/// Conversions from a floating-point number to an integer. They always saturate.
fn from_float(op: &Opcode<'_>, to: &str, from: &str) -> Option<Form> {
    let round = rounding(op).0.unwrap_or(Rounding::Zero);
    macro_rules! to_integer {
        ($T:ty, $D:ty) => {
            match (from, op.has("ftz")) {
                ("f32", false) => rounded!(round, |x: f32| -> $D { f32_to_integer::<$T>(x, R).into() }),
                ("f32", true) => {
                    rounded!(round, |x: f32| -> $D { f32_to_integer::<$T>(flush_f32(x), R).into() })
                }
                ("f64", _) => rounded!(round, |x: f64| -> $D { f64_to_integer::<$T>(x, R).into() }),
                ("f16", _) => {
                    rounded!(round, |x: u16| -> $D { f32_to_integer::<$T>(F16::widen(x), R).into() })
                }
                ("bf16", _) => {
                    rounded!(round, |x: u16| -> $D { f32_to_integer::<$T>(Bf16::widen(x), R).into() })
                }
                _ => return None,
            }
        };
    }
    Some(match to {
        "u8" => to_integer!(u8, u32),
        "u16" => to_integer!(u16, u32),
        "u32" => to_integer!(u32, u32),
        "u64" => to_integer!(u64, u64),
        "s8" => to_integer!(i8, i32),
        "s16" => to_integer!(i16, i32),
        "s32" => to_integer!(i32, i32),
        "s64" => to_integer!(i64, i64),
        _ => return None,
    })
}

fn to_float(op: &Opcode<'_>, to: &str, from: &str, round: Rounding) -> Option<Form> {
    macro_rules! of_integer {
        ($T:ty) => {
            match to {
                "f32" => to_f32!(op, round, |x: $T| integer_to_f32::<$T>(x, R)),
                "f64" if op.has("sat") => {
                    rounded!(rare round, |x: $T| -> f64 { saturate_f64(integer_to_f64::<$T>(x, R)) })
                }
                "f64" => rounded!(round, |x: $T| -> f64 { integer_to_f64::<$T>(x, R) }),
                "f16" if op.has("sat") => {
                    rounded!(rare round, |x: $T| -> u16 {
                        half::saturate::<F16>(integer_to_half::<F16, $T>(x, R))
                    })
                }
                "f16" => rounded!(round, |x: $T| -> u16 { integer_to_half::<F16, $T>(x, R) }),
                "bf16" => rounded!(round, |x: $T| -> u16 { integer_to_half::<Bf16, $T>(x, R) }),
                _ => return None,
            }
        };
    }
    Some(match from {
        "u8" => of_integer!(u8),
        "u16" => of_integer!(u16),
        "u32" => of_integer!(u32),
        "u64" => of_integer!(u64),
        "s8" => of_integer!(i8),
        "s16" => of_integer!(i16),
        "s32" => of_integer!(i32),
        "s64" => of_integer!(i64),
        _ => return None,
    })
}

/// Makes a form for what is applied to a result of 16 bits.
macro_rules! finished {
    ($op:expr, $round:expr, $H:ident, |$x:ident: $A:ty| $of:expr) => {
        match ($op.has("relu"), $op.has("satfinite"), $op.has("sat")) {
            (false, false, false) => rounded!($round, |$x: $A| -> u16 { $of }),
            (true, false, _) => rounded!(rare $round, |$x: $A| -> u16 { half::relu::<$H>($of) }),
            (false, true, _) => rounded!(rare $round, |$x: $A| -> u16 { half::satfinite::<$H>($of) }),
            (true, true, _) => {
                rounded!(rare $round, |$x: $A| -> u16 { half::relu::<$H>(half::satfinite::<$H>($of)) })
            }
            (false, false, true) => rounded!(rare $round, |$x: $A| -> u16 { half::saturate::<$H>($of) }),
        }
    };
}

/// Conversions to a format of 16 bits from floating-point numbers. `is_f16` and the like cannot be
/// generic in [`form!`], so each format has its own arm.
fn half<H: Half>(op: &Opcode<'_>, from: &str, round: Rounding, is_integral: bool) -> Option<Form> {
    let is_f16 = H::ONE == F16::ONE;
    Some(match (is_f16, from) {
        (true, "f16") if is_integral => finished!(op, round, F16, |x: u16| integral_half::<F16>(x, R)),
        (false, "bf16") if is_integral => finished!(op, round, Bf16, |x: u16| integral_half::<Bf16>(x, R)),
        (true, "f16") => finished!(op, Rounding::Nearest, F16, |x: u16| x),
        (false, "bf16") => finished!(op, Rounding::Nearest, Bf16, |x: u16| x),
        (true, "bf16") => finished!(op, round, F16, |x: u16| F16::narrow(Bf16::widen(x), R)),
        (false, "f16") => finished!(op, round, Bf16, |x: u16| Bf16::narrow(F16::widen(x), R)),
        (true, "f32") if op.has("ftz") => {
            finished!(op, round, F16, |x: f32| F16::narrow(flush_f32(x), R))
        }
        (true, "f32") => finished!(op, round, F16, |x: f32| F16::narrow(x, R)),
        (false, "f32") => finished!(op, round, Bf16, |x: f32| Bf16::narrow(x, R)),
        (true, "f64") => finished!(op, round, F16, |x: f64| F16::narrow_f64(x, R)),
        (false, "f64") => finished!(op, round, Bf16, |x: f64| Bf16::narrow_f64(x, R)),
        _ => return None,
    })
}

/// Conversions of two numbers to two halves: the first source becomes the upper one.
fn pair<H: Half>(op: &Opcode<'_>, round: Rounding) -> Option<Form> {
    let is_f16 = H::ONE == F16::ONE;
    macro_rules! packed {
        ($H:ident, $R:ident, |$x:ident| $finish:expr) => {
            form!(|a: f32, b: f32| -> u32 {
                let of = |x: f32| {
                    let $x = <$H as Half>::narrow(x, Rounding::$R);
                    $finish
                };
                u32::from(of(a)) << 16 | u32::from(of(b))
            })
        };
    }
    macro_rules! finish {
        ($H:ident, $R:ident) => {
            match (op.has("relu"), op.has("satfinite")) {
                (false, false) => packed!($H, $R, |x| x),
                (true, false) => packed!($H, $R, |x| half::relu::<$H>(x)),
                (false, true) => packed!($H, $R, |x| half::satfinite::<$H>(x)),
                (true, true) => packed!($H, $R, |x| half::relu::<$H>(half::satfinite::<$H>(x))),
            }
        };
    }
    Some(match (is_f16, round) {
        (true, Rounding::Nearest) => finish!(F16, Nearest),
        (true, Rounding::Zero) => finish!(F16, Zero),
        (false, Rounding::Nearest) => finish!(Bf16, Nearest),
        (false, Rounding::Zero) => finish!(Bf16, Zero),
        _ => return None,
    })
}
