//! Arithmetic of `.f16`, `.bf16` and pairs of them: PTX ISA 9.7.4.

use crate::exact::{BF16, F16, Format, Mode, Real};
use crate::floats::{extremum, saturate};
use crate::program::Program;
use crate::table::{Form, Want, check};

pub(crate) const EDGES_F16: [u64; 20] = [
    0, 0x8000, 1, 0x8001, 0x3ff, 0x83ff, 0x400, 0x8400, 0x3c00, 0xbc00, 0x3c01, 0x3bff, 0x4200, 0xc500,
    0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfc01,
];
pub(crate) const EDGES_BF16: [u64; 20] = [
    0, 0x8000, 1, 0x8001, 0x7f, 0x807f, 0x80, 0x8080, 0x3f80, 0xbf80, 0x3f81, 0x3f7f, 0x4040, 0xc0a0, 0x7f7f,
    0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xff81,
];

pub(crate) fn edges(format: Format) -> &'static [u64] {
    if format == F16 { &EDGES_F16 } else { &EDGES_BF16 }
}

/// A form of halves and one of pairs. The other half of a pair has the same values in another
/// order.
fn both(
    opcode: &str,
    format: Format,
    n: usize,
    of: impl Fn(&[u64]) -> Option<u64> + Clone + 'static,
) -> [Form; 2] {
    let ty = if format == F16 { "f16" } else { "bf16" };
    let edges = edges(format);
    let one = of.clone();
    let single = Form::new(format!("{opcode}.{ty}"), "b16", &vec![("b16", edges); n], move |x| {
        Want::float(format, one(x))
    });
    let len = edges.len();
    let upper = |at: usize, shift: usize| edges[(at * 7 + shift) % len] << 16 | edges[at];
    let values: Vec<Vec<u64>> = (0..n).map(|shift| (0..len).map(|at| upper(at, shift)).collect()).collect();
    let sources: Vec<_> = values.iter().map(|values| ("b32", &values[..])).collect();
    let pair = Form::new(format!("{opcode}.{ty}x2"), "b32", &sources, move |x| {
        let half = |at: u32| {
            let x: Vec<u64> = x.iter().map(|bits| bits >> (16 * at) & 0xffff).collect();
            of(&x)
        };
        Want::Pair(format, [half(0), half(1)])
    });
    [single, pair]
}

pub(crate) fn forms() -> Vec<Form> {
    type Exactly = fn(&[Real]) -> Real;
    let operations: [(&str, usize, Exactly); 4] = [
        ("add", 2, |x| x[0].plus(&x[1], Mode::Nearest)),
        ("sub", 2, |x| x[0].plus(&x[1].clone().negated(), Mode::Nearest)),
        ("mul", 2, |x| x[0].times(&x[1])),
        ("fma", 3, |x| x[0].times(&x[1]).plus(&x[2], Mode::Nearest)),
    ];
    let mut forms = Vec::new();
    for format in [F16, BF16] {
        // `.ftz` and `.sat` are for `.f16` alone.
        for (name, n, of) in operations {
            let modifiers: &[&str] = match (format == F16, name) {
                (true, "fma") => &["", ".ftz", ".sat", ".ftz.sat", ".relu", ".ftz.relu"],
                (true, _) => &["", ".ftz", ".sat", ".ftz.sat"],
                (false, "fma") => &["", ".relu"],
                (false, _) => &[""],
            };
            for modifier in modifiers {
                let (ftz, sat) = (modifier.contains("ftz"), modifier.contains("sat"));
                let relu = modifier.contains("relu");
                forms.extend(both(&format!("{name}.rn{modifier}"), format, n, move |x| {
                    let flushed = |bits: u64| if ftz { format.flush(bits) } else { bits };
                    let x: Vec<Real> = x.iter().map(|bits| format.read(flushed(*bits))).collect();
                    let (exact, mode) = (of(&x), Mode::Nearest);
                    let bits =
                        if ftz { format.round_and_flush(&exact, mode) } else { format.round(&exact, mode) };
                    match bits {
                        bits if sat => Some(saturate(format, bits)),
                        Some(bits) if relu && bits & format.sign() != 0 => Some(0),
                        bits => bits,
                    }
                }));
            }
        }
        // 9.7.4.5 to 9.7.4.8
        let flushes: &[&str] = if format == F16 { &["", ".ftz"] } else { &[""] };
        for flush in flushes {
            let ftz = !flush.is_empty();
            let flushed = move |bits: u64| if ftz { format.flush(bits) } else { bits };
            let number = move |bits: u64| (!format.is_nan(bits)).then_some(bits);
            forms.extend(both(&format!("neg{flush}"), format, 1, move |x| {
                number(flushed(x[0]) ^ format.sign())
            }));
            forms.extend(both(&format!("abs{flush}"), format, 1, move |x| {
                number(flushed(x[0]) & !format.sign())
            }));
            for (name, is_min) in [("min", true), ("max", false)] {
                for nan in ["", ".NaN"] {
                    for abs in ["", ".xorsign.abs"] {
                        forms.extend(both(&format!("{name}{flush}{nan}{abs}"), format, 2, move |x| {
                            let x = [flushed(x[0]), flushed(x[1])];
                            if abs.is_empty() {
                                return extremum(format, &x, is_min, !nan.is_empty());
                            }
                            let sign = (x[0] ^ x[1]) & format.sign();
                            let x = x.map(|bits| bits & !format.sign());
                            extremum(format, &x, is_min, !nan.is_empty()).map(|bits| bits | sign)
                        }));
                    }
                }
            }
        }
    }
    forms
}

/// 9.7.4.9 and 9.7.4.10
pub(crate) fn approximations() -> Vec<Form> {
    type Of = fn(f64) -> f64;
    let functions: [(&str, Format, Of, f64, f64); 4] = [
        ("tanh.approx.f16", F16, f64::tanh, 0.0, 5e-4),
        ("tanh.approx.bf16", BF16, f64::tanh, 0.0, 4e-3),
        ("ex2.approx.f16", F16, f64::exp2, 1.1e-3, 6e-8),
        ("ex2.approx.ftz.bf16", BF16, f64::exp2, 7.9e-3, 1.2e-38),
    ];
    let of = |(opcode, format, of, relative, absolute): (&str, Format, Of, f64, f64)| {
        Form::new(opcode, "b16", &[("b16", edges(format))], move |x| {
            let value = of(format.read(x[0]).to_f64());
            let is_over = value > format.read(format.infinity() - 1).to_f64();
            let value = if is_over { f64::INFINITY } else { value };
            if value.is_nan() { Want::Nan(format) } else { Want::Near { format, value, relative, absolute } }
        })
    };
    functions.into_iter().map(of).collect()
}

#[test]
fn halves_and_pairs_are_rounded_flushed_and_saturated() {
    check(forms());
}

#[test]
fn approximations_of_halves_stay_within_the_errors_of_the_isa() {
    check(approximations());
}

/// PTX ISA 9.7.7.1: each half of a pair is compared alone. An integer result is all ones or 0.
#[test]
fn pairs_are_compared_by_halves() {
    for (ty, edges, one) in [("f16", &EDGES_F16, 0x3c00u64), ("bf16", &EDGES_BF16, 0x3f80)] {
        let both = |lane: usize| pair_of(edges, lane) | pair_of(edges, lane + lane % 3) << 32;
        let input: Vec<u64> = (0..32).map(both).collect();
        for (result, yes) in [(format!("{ty}x2"), one), ("u32".to_owned(), 0xffff)] {
            let body = format!(
                "add.u64 %rd0, %in, %at; ld.global.v2.u32 {{%r2, %r3}}, [%rd0];
                 set.le.{result}.{ty}x2 %r4, %r2, %r3; cvt.u64.u32 %rd1, %r4;
                 add.u64 %at, %at, %out; st.global.u64 [%at], %rd1; ret;"
            );
            let is_le = |lane: usize, half: u32| {
                let value = |pair: usize| {
                    let bits = (pair_of(edges, pair) >> (16 * half)) as u16;
                    if ty == "f16" {
                        half::f16::from_bits(bits).to_f32()
                    } else {
                        f32::from_bits(u32::from(bits) << 16)
                    }
                };
                value(lane) <= value(lane + lane % 3)
            };
            Program { input: input.clone(), ..Program::new(body) }.gives(|lane| {
                let of = |half| if is_le(lane as usize, half) { yes << (16 * half) } else { 0 };
                of(0) | of(1)
            });
        }
    }
}

fn pair_of(edges: &[u64; 20], lane: usize) -> u64 {
    edges[lane % 20] | edges[(3 * lane + 1) % 20] << 16
}
