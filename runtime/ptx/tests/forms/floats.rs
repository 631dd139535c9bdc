//! Arithmetic of `.f32` and `.f64`: PTX ISA 9.7.3.

use crate::driver;
use crate::exact::{F32, F64, Format, MODES, Mode, Real};
use crate::program::ISA_8_8;
use crate::table::{Form, Want, check};

pub(crate) const EDGES_F32: [u64; 30] = [
    0x0000_0000,
    0x8000_0000,
    0x0000_0001,
    0x8000_0001,
    0x007f_ffff,
    0x807f_ffff,
    0x0040_0000,
    0x0080_0000,
    0x8080_0000,
    0x0080_0001,
    0x3f80_0000,
    0xbf80_0000,
    0x3f80_0001,
    0x3f7f_ffff,
    0x4000_0000,
    0x4040_0000,
    0xc0a0_0000,
    0x3f00_0000,
    0x3eaa_aaab,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x7fff_ffff,
    0xff80_0001,
    0x4b00_0001,
    0x4b80_0000,
    0xcf00_0000,
    0x3380_0001,
];
pub(crate) const FEW_F32: [u64; 14] = [
    0,
    0x8000_0000,
    1,
    0x807f_ffff,
    0x0080_0000,
    0x3f80_0000,
    0xbf80_0001,
    0x3f7f_ffff,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0001,
    0x3380_0001,
];
pub(crate) const EDGES_F64: [u64; 24] = [
    0,
    1 << 63,
    1,
    1 << 63 | 1,
    0xf_ffff_ffff_ffff,
    0x10_0000_0000_0000,
    0x8010_0000_0000_0001,
    0x3ff0_0000_0000_0000,
    0xbff0_0000_0000_0000,
    0x3ff0_0000_0000_0001,
    0x3fef_ffff_ffff_ffff,
    0x4000_0000_0000_0000,
    0x4008_0000_0000_0000,
    0xc014_0000_0000_0000,
    0x3fe0_0000_0000_0000,
    0x3fd5_5555_5555_5555,
    0x7fef_ffff_ffff_ffff,
    0xffef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x7ff8_0000_0000_0000,
    0xfff0_0000_0000_0001,
    0x4340_0000_0000_0001,
    0x3ca0_0000_0000_0001,
];
pub(crate) const FEW_F64: [u64; 12] = [
    0,
    1 << 63,
    1,
    0x800f_ffff_ffff_ffff,
    0x10_0000_0000_0000,
    0x3ff0_0000_0000_0000,
    0xbff0_0000_0000_0001,
    0x3fef_ffff_ffff_ffff,
    0x7fef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x7ff8_0000_0000_0001,
];

pub(crate) fn edges(format: Format, n: usize) -> &'static [u64] {
    match (format == F32, n) {
        (true, 3) => &FEW_F32,
        (true, _) => &EDGES_F32,
        (false, 3) => &FEW_F64,
        (false, _) => &EDGES_F64,
    }
}

type Exactly = fn(&[Real], Mode) -> Real;

fn sum(x: &[Real], mode: Mode) -> Real {
    x[0].plus(&x[1], mode)
}

fn difference(x: &[Real], mode: Mode) -> Real {
    x[0].plus(&x[1].clone().negated(), mode)
}

fn product(x: &[Real], _: Mode) -> Real {
    x[0].times(&x[1])
}

fn fused(x: &[Real], mode: Mode) -> Real {
    x[0].times(&x[1]).plus(&x[2], mode)
}

pub(crate) fn quotient(x: &[Real], _: Mode) -> Real {
    x[0].over(&x[1])
}

fn reciprocal(x: &[Real], _: Mode) -> Real {
    Real::of_integer(1).over(&x[0])
}

fn root(x: &[Real], _: Mode) -> Real {
    x[0].root()
}

/// Limits to the range from 0 to 1. NaN becomes +0, and so may -0.
pub(crate) fn saturate(format: Format, bits: Option<u64>) -> u64 {
    match bits {
        Some(bits) if bits & format.sign() == 0 => bits.min(format.one()),
        _ => 0,
    }
}

/// A form that rounds.
fn rounded(opcode: &str, format: Format, n: usize, mode: Mode, of: Exactly) -> Form {
    let (flush, sat) = (opcode.contains(".ftz"), opcode.contains(".sat"));
    let register = if format == F32 { "b32" } else { "b64" };
    let sources = vec![(register, edges(format, n)); n];
    Form::new(opcode, register, &sources, move |x| {
        let flushed = |bits: u64| if flush { format.flush(bits) } else { bits };
        let x: Vec<Real> = x.iter().map(|bits| format.read(flushed(*bits))).collect();
        let exact = of(&x, mode);
        let bits = if flush { format.round_and_flush(&exact, mode) } else { format.round(&exact, mode) };
        if sat { Want::Bits(saturate(format, bits)) } else { Want::float(format, bits) }
    })
}

/// 9.7.3.3 to 9.7.3.8, 9.7.3.13 and 9.7.3.15, with a rounding.
pub(crate) fn arithmetic() -> Vec<Form> {
    let mut forms = Vec::new();
    let operations: [(&str, usize, Exactly); 6] = [
        ("add", 2, sum),
        ("sub", 2, difference),
        ("mul", 2, product),
        ("fma", 3, fused),
        ("div", 2, quotient),
        ("sqrt", 1, root),
    ];
    for (name, n, of) in operations.into_iter().chain([("rcp", 1, reciprocal as Exactly), ("mad", 3, fused)])
    {
        for (rounding, mode) in MODES {
            forms.push(rounded(&format!("{name}.{rounding}.f64"), F64, n, mode, of));
            forms.push(rounded(&format!("{name}.{rounding}.f32"), F32, n, mode, of));
            forms.push(rounded(&format!("{name}.{rounding}.ftz.f32"), F32, n, mode, of));
            if ["add", "sub", "mul", "fma", "mad"].contains(&name) {
                forms.push(rounded(&format!("{name}.{rounding}.sat.f32"), F32, n, mode, of));
                forms.push(rounded(&format!("{name}.{rounding}.ftz.sat.f32"), F32, n, mode, of));
            }
        }
        if ["add", "sub", "mul"].contains(&name) {
            forms.push(rounded(&format!("{name}.f64"), F64, n, Mode::Nearest, of));
            forms.push(rounded(&format!("{name}.f32"), F32, n, Mode::Nearest, of));
            forms.push(rounded(&format!("{name}.ftz.f32"), F32, n, Mode::Nearest, of));
            forms.push(rounded(&format!("{name}.sat.f32"), F32, n, Mode::Nearest, of));
        }
    }
    forms
}

/// 9.7.3.2, 9.7.3.9 and 9.7.3.10
pub(crate) fn signs() -> Vec<Form> {
    let mut forms = Vec::new();
    for (ty, register, format) in [("f32", "b32", F32), ("f64", "b64", F64)] {
        let one = [(register, edges(format, 1))];
        let two = [(register, edges(format, 2)); 2];
        for flush in if format == F32 { vec!["", ".ftz"] } else { vec![""] } {
            let flushed = move |bits: u64| if flush.is_empty() { bits } else { format.flush(bits) };
            let number = move |bits: u64| Want::float(format, (!format.is_nan(bits)).then_some(bits));
            forms.push(Form::new(format!("abs{flush}.{ty}"), register, &one, move |x| {
                number(flushed(x[0]) & !format.sign())
            }));
            forms.push(Form::new(format!("neg{flush}.{ty}"), register, &one, move |x| {
                number(flushed(x[0]) ^ format.sign())
            }));
        }
        forms.push(Form::new(format!("copysign.{ty}"), register, &two, move |x| {
            Want::Bits(x[0] & format.sign() | x[1] & !format.sign())
        }));
    }
    forms
}

/// The smaller or larger number. -0 is less than +0, and NaN loses unless `keeps_nan`.
pub(crate) fn extremum(format: Format, x: &[u64], is_min: bool, keeps_nan: bool) -> Option<u64> {
    let mut best: Option<u64> = None;
    for &bits in x {
        if format.is_nan(bits) {
            if keeps_nan {
                return None;
            }
            continue;
        }
        let key = |bits: u64| (format.read(bits).to_f64(), bits & format.sign() == 0);
        best = Some(match best {
            None => bits,
            Some(best) => {
                let is_less = key(bits) < key(best);
                if is_less == is_min && bits != best { bits } else { best }
            }
        });
    }
    best
}

/// 9.7.3.11 and 9.7.3.12
pub(crate) fn extrema() -> Vec<Form> {
    let mut forms = Vec::new();
    for (name, is_min) in [("min", true), ("max", false)] {
        for flush in ["", ".ftz"] {
            for nan in ["", ".NaN"] {
                let flushed = move |bits: u64| if flush.is_empty() { bits } else { F32.flush(bits) };
                for abs in ["", ".xorsign.abs"] {
                    let two = [("b32", &EDGES_F32[..]); 2];
                    forms.push(Form::new(format!("{name}{flush}{nan}{abs}.f32"), "b32", &two, move |x| {
                        let x: Vec<u64> = x.iter().map(|bits| flushed(*bits)).collect();
                        if abs.is_empty() {
                            return Want::float(F32, extremum(F32, &x, is_min, !nan.is_empty()));
                        }
                        let sign = (x[0] ^ x[1]) & F32.sign();
                        let x = [x[0] & !F32.sign(), x[1] & !F32.sign()];
                        Want::float(F32, extremum(F32, &x, is_min, !nan.is_empty()).map(|bits| bits | sign))
                    }));
                }
                for abs in ["", ".abs"] {
                    let three = [("b32", &FEW_F32[..]); 3];
                    let form = Form::new(format!("{name}{flush}{nan}{abs}.f32"), "b32", &three, move |x| {
                        let sign = if abs.is_empty() { 0 } else { F32.sign() };
                        let x: Vec<u64> = x.iter().map(|bits| flushed(*bits) & !sign).collect();
                        Want::float(F32, extremum(F32, &x, is_min, !nan.is_empty()))
                    });
                    forms.push(form.added_by(ISA_8_8));
                }
            }
        }
        let two = [("b64", &EDGES_F64[..]); 2];
        forms.push(Form::new(format!("{name}.f64"), "b64", &two, move |x| {
            Want::float(F64, extremum(F64, x, is_min, false))
        }));
    }
    forms
}

/// 9.7.3.8 and 9.7.3.13 to 9.7.3.22: special values, and the errors that the ISA states.
pub(crate) fn approximations() -> Vec<Form> {
    let mut forms = Vec::new();
    let mut values: Vec<u64> = EDGES_F32.to_vec();
    values.extend(
        [0.1f32, -0.3, 1.5, -2.5, 3.0, 6.25, 10.0, -17.0, 100.0, 1e-3, 1e10, 126.5, -126.5]
            .map(|x| u64::from(x.to_bits())),
    );
    let close = |value: f64, relative: f64, absolute: f64| {
        if value.is_nan() { Want::Nan(F32) } else { Want::Near { format: F32, value, relative, absolute } }
    };
    type Of = fn(f64) -> f64;
    // The name, the function, and the relative and absolute errors. Subnormal results lose bits.
    let ulp = 1.2e-7;
    let functions: [(&str, Of, f64, f64); 7] = [
        ("rcp", |x| 1.0 / x, ulp, 0.0),
        ("sqrt", f64::sqrt, 2.0 * ulp, 0.0),
        ("rsqrt", |x| if x == 0.0 { x.recip() } else { 1.0 / x.sqrt() }, 2.0 * ulp, 0.0),
        ("ex2", f64::exp2, 4.0 * ulp, 0.0),
        ("lg2", f64::log2, 2.0 * ulp, 2.0 * ulp),
        ("sin", f64::sin, 0.0, 4e-5),
        ("cos", f64::cos, 0.0, 4e-5),
    ];
    for (name, of, relative, absolute) in functions {
        for flush in ["", ".ftz"] {
            let flushed = move |bits: u64| if flush.is_empty() { bits } else { F32.flush(bits) };
            forms.push(Form::new(
                format!("{name}.approx{flush}.f32"),
                "b32",
                &[("b32", &values)],
                move |x| {
                    let a = F32.read(flushed(x[0])).to_f64();
                    // The ISA limits the error of sine and cosine up to 100π.
                    if (name == "sin" || name == "cos") && a.is_finite() && a.abs() > 314.0 {
                        return Want::Any;
                    }
                    let value = of(a);
                    let tiny = value != 0.0 && value.abs() < f64::from(f32::MIN_POSITIVE);
                    match (tiny, flush.is_empty()) {
                        // The error of the ISA lets an H100 flush a small sine.
                        (true, true) if driver::is_asked() => close(value, 0.0, absolute.max(3e-45)),
                        (true, true) => close(value, 0.0, 3e-45),
                        // A result next to the smallest normal number may be flushed or not.
                        (true, false) => close(0.0, 0.0, f64::from(f32::MIN_POSITIVE)),
                        _ if value.abs() > f64::from(f32::MAX) => {
                            close(value.signum() * f64::INFINITY, 0.0, 0.0)
                        }
                        _ => close(value, relative, absolute),
                    }
                },
            ));
        }
    }
    forms.push(Form::new("tanh.approx.f32", "b32", &[("b32", &values)], move |x| {
        close(F32.read(x[0]).to_f64().tanh(), 4.9e-4, 0.0)
    }));
    for (kind, is_full) in [("approx", false), ("full", true)] {
        for flush in ["", ".ftz"] {
            let flushed = move |bits: u64| if flush.is_empty() { bits } else { F32.flush(bits) };
            let two = [("b32", &EDGES_F32[..]); 2];
            forms.push(Form::new(format!("div.{kind}{flush}.f32"), "b32", &two, move |x| {
                let [a, b] = [0, 1].map(|at| F32.read(flushed(x[at])).to_f64());
                let value = a / b;
                let size = b.abs();
                let is_in_range = (2f64.powi(-126)..=2f64.powi(126)).contains(&size);
                if !is_full && b != 0.0 && size.is_finite() && !is_in_range {
                    // Above 2^126: NaN for an infinite a, and 0 for any other. Below, it is open.
                    return match (size > 1.0, a.is_finite()) {
                        (true, true) => close(0.0, 0.0, 0.0),
                        (true, false) => Want::Nan(F32),
                        _ => Want::Any,
                    };
                }
                let tiny = value != 0.0 && value.abs() < 2f64.powi(-126);
                match () {
                    () if tiny => close(value, 0.0, if flush.is_empty() { 3e-45 } else { 1.2e-38 }),
                    () if value.abs() > f64::from(f32::MAX) => {
                        close(value.signum() * f64::INFINITY, 0.0, 0.0)
                    }
                    () => close(value, 3.0 * ulp, 0.0),
                }
            }));
        }
    }
    // 9.7.3.14 and 9.7.3.17: the upper halves count, and subnormal numbers are flushed.
    for (opcode, of) in [
        ("rcp.approx.ftz.f64", (|x| 1.0 / x) as Of),
        ("rsqrt.approx.ftz.f64", |x| if x == 0.0 { x.recip() } else { 1.0 / x.sqrt() }),
    ] {
        forms.push(Form::new(opcode, "b64", &[("b64", &EDGES_F64)], move |x| {
            // A NaN with nothing but its exponent in the upper half counts as infinity.
            let value = of(f64::from_bits(F64.flush(x[0] & !0xffff_ffff)));
            let tiny = value != 0.0 && value.abs() < f64::MIN_POSITIVE;
            match () {
                () if value.is_nan() => Want::Nan(F64),
                () if tiny => Want::Bits(if value < 0.0 { 1 << 63 } else { 0 }),
                () => Want::Near { format: F64, value, relative: 2e-6, absolute: 0.0 },
            }
        }));
    }
    forms.push(Form::new("rsqrt.approx.f64", "b64", &[("b64", &EDGES_F64)], |x| {
        let a = f64::from_bits(x[0]);
        let value = if a == 0.0 { a.recip() } else { 1.0 / a.sqrt() };
        if value.is_nan() {
            Want::Nan(F64)
        } else {
            Want::Near { format: F64, value, relative: 1e-15, absolute: 0.0 }
        }
    }));
    forms
}

/// 9.7.3.1
pub(crate) fn properties() -> Vec<Form> {
    let mut forms = Vec::new();
    for (ty, register, format) in [("f32", "b32", F32), ("f64", "b64", F64)] {
        let is = move |name: &str, bits: u64| {
            let (magnitude, infinity) = (bits & !format.sign(), format.infinity());
            let is_subnormal = magnitude != 0 && magnitude < 1 << format.fraction;
            match name {
                "finite" => magnitude < infinity,
                "infinite" => magnitude == infinity,
                "number" => magnitude <= infinity,
                "notanumber" => magnitude > infinity,
                // "testp.normal: finite and not subnormal": of zero the ISA says nothing else.
                "normal" => magnitude < infinity && !is_subnormal,
                _ => is_subnormal,
            }
        };
        for name in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
            let source = [(register, edges(format, 1))];
            forms.push(Form::new(format!("testp.{name}.{ty}"), "pred", &source, move |x| {
                Want::Bits(u64::from(is(name, x[0])))
            }));
        }
    }
    forms
}

#[test]
fn floats_are_rounded_flushed_and_saturated() {
    check(arithmetic());
}

#[test]
fn signs_are_those_of_the_isa() {
    check(signs());
}

#[test]
fn minimum_and_maximum_order_zeros_and_drop_nan() {
    check(extrema());
}

#[test]
fn approximations_stay_within_the_errors_of_the_isa() {
    check(approximations());
}

#[test]
fn testp_knows_each_kind_of_number() {
    check(properties());
}
