//! Pairs of 16-bit integers and four bytes in a word, and minima and maxima with `.relu`.

use crate::integers::{Int, S16, U16};
use crate::table::{Form, Want, check};

const BYTES: [u64; 7] = [0, 0xffff_ffff, 0x8001_7fff, 0x0102_0304, 0xff00_ff00, 0x7f80_817e, 0x0000_0100];

/// All pairs of some halves.
fn words() -> Vec<u64> {
    let halves = [0, 1, 2, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234];
    halves.iter().flat_map(|upper| halves.iter().map(move |lower| upper << 16 | lower)).collect()
}

/// A form that computes each half alone.
fn pair(opcode: &str, ty: Int, of: fn(i128, i128) -> i128) -> Form {
    let words = words();
    Form::new(opcode, "b32", &[("b32", &words), ("b32", &words)], move |input| {
        let half = |at: u32| {
            let [a, b] = [input[0], input[1]].map(|word| ty.read(word >> at & 0xffff));
            ty.write(of(a, b)) << at
        };
        Want::Bits(half(16) | half(0))
    })
}

/// 9.7.1.1, 9.7.1.12 and 9.7.1.13, and "vabsdiff4" of the SIMD video instructions.
pub(crate) fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for (name, ty) in [("u16x2", U16), ("s16x2", S16)] {
        forms.push(pair(&format!("add.{name}"), ty, |a, b| a + b));
        forms.push(pair(&format!("min.{name}"), ty, |a, b| a.min(b)));
        forms.push(pair(&format!("max.{name}"), ty, |a, b| a.max(b)));
    }
    // NVRTC writes `.relu` behind the type, and the ISA in front of it.
    for (one, other) in [("relu.", ""), ("", ".relu")] {
        forms.push(pair(&format!("min.{one}s16x2{other}"), S16, |a, b| a.min(b).max(0)));
        forms.push(pair(&format!("max.{one}s16x2{other}"), S16, |a, b| a.max(b).max(0)));
    }
    let distances = |a: u64, b: u64| {
        [0, 8, 16, 24].map(|at| ((a >> at & 0xff) as i64).abs_diff((b >> at & 0xff) as i64) << at)
    };
    let sources: [(&'static str, &[u64]); 3] = [("b32", &BYTES), ("b32", &BYTES), ("b32", &BYTES)];
    forms.push(Form::new("vabsdiff4.u32.u32.u32", "b32", &sources, move |input| {
        Want::Bits(distances(input[0], input[1]).iter().sum())
    }));
    forms.push(Form::new("vabsdiff4.u32.u32.u32.add", "b32", &sources, move |input| {
        let [a, b, c, d] = distances(input[0], input[1]);
        Want::Bits((input[2] + a + (b >> 8) + (c >> 16) + (d >> 24)) & 0xffff_ffff)
    }));
    forms
}

#[test]
fn packed_integers_are_computed_each_alone() {
    check(forms());
}
