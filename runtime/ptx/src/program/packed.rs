//! Forms of instructions on pairs of 16-bit integers and on four bytes, packed in 32 bits.

use super::form::{Form, Opcode, form};

/// Returns the halves of a word, the lower one first.
#[inline(always)]
fn halves(word: u32) -> [u16; 2] {
    [word as u16, (word >> 16) as u16]
}

/// Makes the form that computes each half alone, as the type `T`.
macro_rules! pair {
    ($T:ident, |$a:ident, $b:ident| $of:expr) => {
        form!(|x: u32, y: u32| -> u32 {
            let ([x0, x1], [y0, y1]) = (halves(x), halves(y));
            let of = |$a: $T, $b: $T| -> $T { $of };
            let (lower, upper) = (of(x0 as $T, y0 as $T), of(x1 as $T, y1 as $T));
            u32::from(upper as u16) << 16 | u32::from(lower as u16)
        })
    };
}

/// Returns the distance of each byte of two words.
#[inline(always)]
fn distances(a: u32, b: u32) -> [u8; 4] {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    [a[0].abs_diff(b[0]), a[1].abs_diff(b[1]), a[2].abs_diff(b[2]), a[3].abs_diff(b[3])]
}

/// Returns the form of an instruction, if it is one of this file.
pub(super) fn form(op: &Opcode<'_>) -> Option<Form> {
    if op.name == "vabsdiff4" {
        return match &op.parts[..] {
            // All bytes are selected, so none of the third source remains. PTX ISA,
            // "vabsdiff4".
            ["u32", "u32", "u32"] => {
                Some(form!(|a: u32, b: u32, _c: u32| -> u32 { u32::from_le_bytes(distances(a, b)) }))
            }
            ["u32", "u32", "u32", "add"] => Some(form!(|a: u32, b: u32, c: u32| -> u32 {
                let [a, b, d, e] = distances(a, b).map(u32::from);
                c.wrapping_add(a + b + d + e)
            })),
            _ => None,
        };
    }
    let relu = op.has("relu");
    let others = op.parts.iter().filter(|part| **part != "relu").copied();
    let [ty] = others.collect::<Vec<&str>>()[..] else { return None };
    match (op.name, ty, relu) {
        ("add", "u16x2" | "s16x2", false) => Some(pair!(u16, |a, b| a.wrapping_add(b))),
        ("min", "u16x2", false) => Some(pair!(u16, |a, b| a.min(b))),
        ("max", "u16x2", false) => Some(pair!(u16, |a, b| a.max(b))),
        ("min", "s16x2", false) => Some(pair!(i16, |a, b| a.min(b))),
        ("max", "s16x2", false) => Some(pair!(i16, |a, b| a.max(b))),
        ("min", "s16x2", true) => Some(pair!(i16, |a, b| a.min(b).max(0))),
        ("max", "s16x2", true) => Some(pair!(i16, |a, b| a.max(b).max(0))),
        _ => None,
    }
}
