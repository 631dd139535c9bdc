//! Conversions: PTX ISA 9.7.9.21, cvt.

use crate::exact::{BF16, F16, F32, F64, Format, MODES, Mode, Real, TF32};
use crate::floats::{self, saturate};
use crate::halves;
use crate::integers::{Int, S8, S16, S32, S64, U8, U16, U32, U64, register};
use crate::program::ISA_8_6;
use crate::table::{Form, Want, check};

const INTEGERS: [Int; 8] = [U8, S8, U16, S16, U32, S32, U64, S64];
const FLOATS: [(&str, Format, u32); 4] =
    [("f16", F16, 16), ("bf16", BF16, 16), ("f32", F32, 32), ("f64", F64, 64)];

fn edges(format: Format) -> Vec<u64> {
    let mut edges = match format {
        F16 | BF16 => halves::edges(format).to_vec(),
        F32 => floats::EDGES_F32.to_vec(),
        _ => floats::EDGES_F64.to_vec(),
    };
    // Numbers around halves and around the limits of the integers.
    let numbers = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        -2.5,
        0.499_999_97,
        127.5,
        128.0,
        -128.5,
        -129.0,
        255.5,
        256.0,
        32767.5,
        32768.0,
        65535.5,
        65536.0,
        2147483647.5,
        2147483648.0,
        -2147483648.5,
        -2147483904.0,
        4294967295.5,
        4294967296.0,
        9.223372036854775e18,
        9.223372036854776e18,
        -9.3e18,
        1.844674407370955e19,
        1.8446744073709552e19,
        -1.0,
        1e30,
        65504.0,
        65519.9,
        65520.0,
        1.000_488_3,
        5.9e-8,
        2.9e-8,
        3.4028236e38,
    ];
    let exact =
        numbers.map(|x: f64| format.round(&F64.read(x.to_bits()), Mode::Nearest).expect("it is a number"));
    edges.extend(exact);
    edges
}

/// The register for a type; a wider one is allowed too.
fn wider(bits: u32) -> Vec<&'static str> {
    match bits {
        64 => vec!["b64"],
        32 => vec!["b32", "b64"],
        _ => vec!["b16", "b32", "b64"],
    }
}

fn bits_of(register: &str) -> u32 {
    register[1..].parse().expect("a register has a size")
}

/// Integers to integers. A signed result fills a wider register with its sign, and of a wider
/// source only the lowest bits count.
pub(crate) fn integers() -> Vec<Form> {
    let mut forms = Vec::new();
    for to in INTEGERS {
        for from in INTEGERS {
            // ".sat is illegal in cases where saturation is not possible".
            let is_lossless = to.min() <= from.min() && from.max() <= to.max();
            for sat in if is_lossless { vec![""] } else { vec!["", ".sat"] } {
                for result in wider(to.bits) {
                    for source in wider(from.bits) {
                        if result != register(to.bits) && source != register(from.bits) {
                            continue;
                        }
                        let (width, wide) = (bits_of(result), bits_of(source));
                        let mut edges = from.edges();
                        edges.extend([to.max() as u64, to.max() as u64 ^ 1, 0x80, 0x7f]);
                        // Bits above the type are noise.
                        let noise = if wide > from.bits { 0xdead_beef_0bad_f00d << from.bits } else { 0 };
                        let edges: Vec<u64> =
                            edges.iter().map(|x| (x | noise) & (u64::MAX >> (64 - wide))).collect();
                        let is_sat = !sat.is_empty();
                        let opcode = format!("cvt{sat}.{}.{}", to.name, from.name);
                        forms.push(Form::new(opcode, result, &[(source, &edges)], move |x| {
                            let x = from.read(x[0] & (u64::MAX >> (64 - from.bits)));
                            let x = if is_sat { x.clamp(to.min(), to.max()) } else { x };
                            let x = to.read(to.write(x));
                            Want::Bits(Int { bits: width, ..to }.write(x))
                        }));
                    }
                }
            }
        }
    }
    forms
}

/// Floats to integers. "NaN: zero if source is not .f64, and destination is not .s64, .u64.
/// Otherwise 1 << (BitWidth(dst) - 1)".
pub(crate) fn to_integers() -> Vec<Form> {
    let mut forms = Vec::new();
    for to in INTEGERS {
        for (from, format, bits) in FLOATS {
            // Of bf16 there is no conversion to 8 bits.
            if from == "bf16" && to.bits == 8 {
                continue;
            }
            let edges = edges(format);
            for (rounding, mode) in MODES {
                for flush in if from == "f32" { vec!["", ".ftz"] } else { vec![""] } {
                    for sat in if from == "bf16" { vec![""] } else { vec!["", ".sat"] } {
                        let of_nan = if from != "f64" && to.bits != 64 { 0 } else { 1u64 << (to.bits - 1) };
                        let opcode = format!("cvt.{rounding}i{flush}{sat}.{}.{from}", to.name);
                        let is_flushed = !flush.is_empty();
                        forms.push(Form::new(
                            opcode,
                            register(to.bits),
                            &[(register(bits), &edges)],
                            move |x| {
                                let bits = if is_flushed { format.flush(x[0]) } else { x[0] };
                                let Some(whole) = format.read(bits).to_integer(mode) else {
                                    // A signed result fills its register.
                                    let width = Int { bits: to.bits.max(16), ..to };
                                    return Want::Bits(width.write(to.read(of_nan)));
                                };
                                let width = Int { bits: to.bits.max(16), ..to };
                                Want::Bits(width.write(whole.clamp(to.min(), to.max())))
                            },
                        ));
                    }
                }
            }
        }
    }
    forms
}

/// Integers to floats
pub(crate) fn from_integers() -> Vec<Form> {
    let mut forms = Vec::new();
    for from in INTEGERS {
        let mut edges = from.edges();
        edges.extend(
            [
                0x100_0001i128,
                0x100_0003,
                2049,
                2051,
                257,
                0x20_0000_0000_0001,
                0x20_0000_0000_0003,
                65519,
                65520,
            ]
            .map(|x| from.write(x)),
        );
        for (to, format, bits) in FLOATS {
            if to == "bf16" && from.bits == 8 {
                continue;
            }
            for (rounding, mode) in MODES {
                for modifier in match to {
                    "f32" => vec!["", ".sat", ".ftz"],
                    "bf16" => vec![""],
                    _ => vec!["", ".sat"],
                } {
                    let is_sat = modifier == ".sat";
                    let opcode = format!("cvt.{rounding}{modifier}.{to}.{}", from.name);
                    forms.push(Form::new(
                        opcode,
                        register(bits),
                        &[(register(from.bits), &edges)],
                        move |x| {
                            let x = Real::of_integer(from.read(x[0]));
                            let bits = format.round(&x, mode);
                            if is_sat {
                                Want::Bits(saturate(format, bits))
                            } else {
                                Want::float(format, bits)
                            }
                        },
                    ));
                }
            }
        }
    }
    forms
}

/// Floats to floats
pub(crate) fn floats() -> Vec<Form> {
    let mut forms = Vec::new();
    for (to, target, bits) in FLOATS {
        for (from, format, source) in FLOATS {
            let edges = edges(format);
            let is_narrower = target.fraction < format.fraction || target.exponent < format.exponent;
            let roundings: Vec<(String, Mode)> = match (is_narrower, to == from) {
                (true, _) => MODES.map(|(name, mode)| (format!(".{name}"), mode)).to_vec(),
                (_, true) => MODES
                    .map(|(name, mode)| (format!(".{name}i"), mode))
                    .into_iter()
                    .chain([(String::new(), Mode::Nearest)])
                    .collect(),
                _ => vec![(String::new(), Mode::Nearest)],
            };
            for (rounding, mode) in roundings {
                let is_half = to == "f16" || to == "bf16";
                let mut modifiers = vec![""];
                let is_saturable = to != "bf16" && from != "bf16";
                if is_saturable {
                    modifiers.push(".sat");
                }
                if to == "f32" || from == "f32" && to != "bf16" {
                    modifiers.push(".ftz");
                    modifiers.extend(is_saturable.then_some(".ftz.sat"));
                }
                if is_half && from == "f32" && ["", ".rn", ".rz"].contains(&&rounding[..]) {
                    modifiers.extend([".relu", ".satfinite", ".relu.satfinite"]);
                }
                for modifier in modifiers {
                    let ftz = modifier.contains("ftz");
                    let is_integral = rounding.ends_with('i');
                    let opcode = format!("cvt{rounding}{modifier}.{to}.{from}");
                    let form = Form::new(opcode, register(bits), &[(register(source), &edges)], move |x| {
                        let x = if ftz && format == F32 { format.flush(x[0]) } else { x[0] };
                        let mut real = format.read(x);
                        if let (true, Real::Finite { negative, .. }) = (is_integral, real.clone()) {
                            // A number without a fraction stays, as does the sign of a zero.
                            let whole = real.to_integer(mode).expect("it is a number");
                            if whole == 0 {
                                real = format.read(if negative { format.sign() } else { 0 });
                            } else if whole.unsigned_abs() < 1 << 64 {
                                real = Real::of_integer(whole);
                            }
                        }
                        let result = target.round(&real, mode);
                        let result =
                            if ftz && target == F32 { result.map(|x| target.flush(x)) } else { result };
                        finish(target, result, modifier)
                    });
                    // An H100 does not flush the source if the result is a half.
                    forms.push(if ftz && is_half { form.deviating(is_subnormal) } else { form });
                }
            }
        }
    }
    forms
}

fn is_subnormal(x: &[u64]) -> bool {
    F32.flush(x[0]) != x[0]
}

fn is_nan(x: &[u64]) -> bool {
    F32.is_nan(x[0])
}

/// `.relu`, `.satfinite` and `.sat`
fn finish(format: Format, bits: Option<u64>, modifier: &str) -> Want {
    if modifier.ends_with(".sat") {
        return Want::Bits(saturate(format, bits));
    }
    let bits = bits.map(|bits| {
        let is_finite = modifier.contains("satfinite") && bits & !format.sign() == format.infinity();
        let bits = if is_finite { bits - 1 } else { bits };
        if modifier.contains("relu") && bits & format.sign() != 0 { 0 } else { bits }
    });
    Want::float(format, bits)
}

/// Pairs, and `.tf32`
pub(crate) fn pairs() -> Vec<Form> {
    let mut forms = Vec::new();
    let edges = edges(F32);
    for (to, format) in [("f16x2", F16), ("bf16x2", BF16)] {
        for (rounding, mode) in &MODES[..2] {
            for modifier in ["", ".relu", ".satfinite", ".relu.satfinite"] {
                let mode = *mode;
                let two = [("b32", &edges[..]); 2];
                forms.push(Form::new(format!("cvt.{rounding}{modifier}.{to}.f32"), "b32", &two, move |x| {
                    let half =
                        |at: usize| match finish(format, format.round(&F32.read(x[at]), mode), modifier) {
                            Want::Bits(bits) => Some(bits),
                            _ => None,
                        };
                    // "d's upper half is of a, the lower one of b".
                    Want::Pair(format, [half(1), half(0)])
                }));
            }
        }
    }
    for (rounding, mode, modifiers) in [
        ("rna", Mode::Away, vec!["", ".satfinite"]),
        ("rn", Mode::Nearest, vec!["", ".relu", ".satfinite", ".relu.satfinite"]),
        ("rz", Mode::Zero, vec!["", ".relu", ".satfinite", ".relu.satfinite"]),
    ] {
        for modifier in modifiers {
            let opcode = format!("cvt.{rounding}{modifier}.tf32.f32");
            let form = Form::new(opcode, "b32", &[("b32", &edges)], move |x| {
                match finish(TF32, TF32.round(&F32.read(x[0]), mode), modifier) {
                    Want::Bits(bits) => Want::Bits(bits << 13),
                    _ => Want::Nan(F32),
                }
            });
            // An H100 rounds a NaN like a number: it may become infinity, or the largest number.
            let form = if rounding == "rna" { form.deviating(is_nan) } else { form };
            let is_newer = rounding != "rna" && modifier.contains("satfinite");
            forms.push(if is_newer { form.added_by(ISA_8_6) } else { form });
        }
    }
    forms
}

#[test]
fn integers_become_integers_that_fill_their_registers() {
    check(integers());
}

#[test]
fn floats_become_integers_within_their_limits() {
    check(to_integers());
}

#[test]
fn integers_become_floats_with_each_rounding() {
    check(from_integers());
}

#[test]
fn floats_become_floats_with_each_rounding() {
    check(floats());
}

#[test]
fn pairs_and_tf32_are_rounded() {
    check(pairs());
}
