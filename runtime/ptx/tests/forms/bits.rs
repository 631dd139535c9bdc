//! Bits: PTX ISA 9.7.1.14 to 9.7.1.22, 9.7.8, and `prmt`, `selp`, `slct`, `mov`.

use crate::exact::F32;
use crate::integers::{Int, S32, S64, U16, U32, U64, register};
use crate::table::{Form, Want, check};

const WIDTHS: [(&str, Int); 3] = [("b16", U16), ("b32", U32), ("b64", U64)];
/// Shift amounts around and far beyond all widths.
const AMOUNTS: [u64; 15] = [0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 0x8000_0000, 0xffff_ffff];

fn bits_of(x: u64, bits: u32) -> Vec<u64> {
    (0..bits).map(|at| x >> at & 1).collect()
}

fn of_bits(bits: impl IntoIterator<Item = u64>) -> u64 {
    bits.into_iter().enumerate().fold(0, |sum, (at, bit)| sum | bit << at)
}

/// 9.7.8.1 to 9.7.8.5
pub(crate) fn logic() -> Vec<Form> {
    let mut forms = Vec::new();
    for (name, ty) in WIDTHS {
        let edges = ty.edges();
        let two = [(name, &edges[..]); 2];
        forms.push(Form::new(format!("and.{name}"), name, &two, |x| Want::Bits(x[0] & x[1])));
        forms.push(Form::new(format!("or.{name}"), name, &two, |x| Want::Bits(x[0] | x[1])));
        forms.push(Form::new(format!("xor.{name}"), name, &two, |x| Want::Bits(x[0] ^ x[1])));
        forms.push(Form::new(format!("not.{name}"), name, &two[..1], move |x| {
            Want::Bits(ty.write(!i128::from(x[0])))
        }));
        forms.push(Form::new(format!("cnot.{name}"), name, &two[..1], |x| Want::Bits(u64::from(x[0] == 0))));
    }
    let bools: &[u64] = &[0, 1];
    let two = [("pred", bools); 2];
    forms.push(Form::new("and.pred", "pred", &two, |x| Want::Bits(x[0] & x[1])));
    forms.push(Form::new("or.pred", "pred", &two, |x| Want::Bits(x[0] | x[1])));
    forms.push(Form::new("xor.pred", "pred", &two, |x| Want::Bits(x[0] ^ x[1])));
    forms.push(Form::new("not.pred", "pred", &two[..1], |x| Want::Bits(1 - x[0])));
    forms.push(Form::new("mov.pred", "pred", &two[..1], |x| Want::Bits(x[0])));
    forms
}

/// 9.7.8.6
pub(crate) fn lookups() -> Vec<Form> {
    // Each combination of three bits occurs.
    let (a, b, c) = ([0xf0f0_f0f0u64, 0x1234_5678], [0xcccc_ccccu64, 0xdead_beef], [0xaaaa_aaaau64, 0]);
    let tables = [0x00, 0xff, 0x80, 0xfe, 0x96, 0x1a, 0xe8, 0x01, 0xf0, 0xcc, 0xaa, 0x40, 0x3c];
    let of = |table: u64| {
        Form::new("lop3.b32", "b32", &[("b32", &a[..]), ("b32", &b), ("b32", &c)], move |x| {
            let [a, b, c] = [0, 1, 2].map(|at| bits_of(x[at], 32));
            Want::Bits(of_bits((0..32).map(|at| table >> (a[at] << 2 | b[at] << 1 | c[at]) & 1)))
        })
        .with(&table.to_string())
    };
    tables.into_iter().map(of).collect()
}

/// 9.7.8.7 to 9.7.8.9
pub(crate) fn shifts() -> Vec<Form> {
    let mut forms = Vec::new();
    for (name, ty) in WIDTHS {
        let edges = ty.edges();
        let sources = [(name, &edges[..]), ("b32", &AMOUNTS)];
        let bits = u64::from(ty.bits);
        forms.push(Form::new(format!("shl.{name}"), name, &sources, move |x| {
            Want::Bits(if x[1] >= bits { 0 } else { ty.write(i128::from(x[0]) << x[1]) })
        }));
        for kind in ["b", "u", "s"] {
            let ty = Int { signed: kind == "s", ..ty };
            forms.push(Form::new(format!("shr.{kind}{bits}"), name, &sources, move |x| {
                Want::Bits(ty.write(ty.read(x[0]) >> x[1].min(bits)))
            }));
        }
    }
    let edges = U32.few();
    for is_clamp in [true, false] {
        let mode = if is_clamp { "clamp" } else { "wrap" };
        let sources = [("b32", &edges[..]), ("b32", &edges), ("b32", &AMOUNTS)];
        let amount = move |c: u64| if is_clamp { c.min(32) } else { c & 31 };
        forms.push(Form::new(format!("shf.l.{mode}.b32"), "b32", &sources, move |x| {
            let both = u128::from(x[1] << 32 | x[0]) << amount(x[2]);
            Want::Bits((both >> 32) as u64 & 0xffff_ffff)
        }));
        forms.push(Form::new(format!("shf.r.{mode}.b32"), "b32", &sources, move |x| {
            let both = (x[1] << 32 | x[0]) as u128 >> amount(x[2]);
            Want::Bits(both as u64 & 0xffff_ffff)
        }));
    }
    forms
}

/// 9.7.1.14 to 9.7.1.18
pub(crate) fn counts() -> Vec<Form> {
    let mut forms = Vec::new();
    for (name, unsigned, signed) in [("b32", U32, Int { ..S32 }), ("b64", U64, S64)] {
        let mut edges = unsigned.edges();
        edges.extend((0..unsigned.bits).map(|at| 1u64 << at));
        edges.extend((0..unsigned.bits).map(|at| unsigned.write(-1i128 << at)));
        let source = [(name, &edges[..])];
        let bits = unsigned.bits;
        forms.push(Form::new(format!("popc.{name}"), "b32", &source, move |x| {
            Want::Bits(bits_of(x[0], bits).iter().sum())
        }));
        forms.push(Form::new(format!("clz.{name}"), "b32", &source, move |x| {
            Want::Bits(bits_of(x[0], bits).iter().rev().take_while(|bit| **bit == 0).count() as u64)
        }));
        forms.push(Form::new(format!("brev.{name}"), name, &source, move |x| {
            Want::Bits(of_bits(bits_of(x[0], bits).into_iter().rev()))
        }));
        for ty in [unsigned, signed] {
            let find = move |x: u64| {
                let x = if ty.signed && ty.read(x) < 0 { ty.write(!ty.read(x)) } else { x };
                (0..bits).rev().find(|at| x >> at & 1 == 1)
            };
            forms.push(Form::new(format!("bfind.{}", ty.name), "b32", &source, move |x| {
                Want::Bits(find(x[0]).map_or(0xffff_ffff, u64::from))
            }));
            forms.push(Form::new(format!("bfind.shiftamt.{}", ty.name), "b32", &source, move |x| {
                Want::Bits(find(x[0]).map_or(0xffff_ffff, |at| u64::from(bits - 1 - at)))
            }));
        }
    }
    // 9.7.1.17, fns, whose text is a loop.
    let masks = [0, 1, 0xffff_ffff, 0x8000_0000, 0xaaaa_aaaa, 0x0001_0100];
    let offsets: Vec<u64> =
        [0i64, 1, 2, 16, 32, 33, -1, -2, -32, -33].iter().map(|x| *x as u64 & 0xffff_ffff).collect();
    let bases = [0, 1, 8, 16, 30, 31];
    forms.push(Form::new(
        "fns.b32",
        "b32",
        &[("b32", &masks[..]), ("b32", &bases), ("b32", &offsets)],
        |x| {
            let (mask, base, offset) = (x[0], x[1] as i64, i64::from(x[2] as u32 as i32));
            let is_set = |at: i64| mask >> at & 1 == 1;
            if offset == 0 {
                return Want::Bits(if is_set(base) { base as u64 } else { 0xffff_ffff });
            }
            let (mut at, mut left) = (base, offset.abs() - 1);
            while (0..32).contains(&at) {
                if is_set(at) {
                    if left == 0 {
                        return Want::Bits(at as u64);
                    }
                    left -= 1;
                }
                at += offset.signum();
            }
            Want::Bits(0xffff_ffff)
        },
    ));
    forms
}

/// 9.7.1.19 to 9.7.1.22
pub(crate) fn fields() -> Vec<Form> {
    let mut forms = Vec::new();
    let places = [0, 1, 5, 15, 16, 31, 32, 33, 63, 64, 128, 255, 256, 0x1_05, 0xffff_ffff];
    // "pos = b & 0xff; len = c & 0xff". An H100 does not cut those of 64 bits, and the ISA also
    // says that they "are restricted to the 8-bit value range 0..255".
    for (name, ty, signed) in [("b32", U32, S32), ("b64", U64, S64)] {
        let edges = ty.few();
        let msb = ty.bits - 1;
        for ty in [ty, signed] {
            let sources = [(name, &edges[..]), ("b32", &places), ("b32", &places)];
            let form = Form::new(format!("bfe.{}", ty.name), name, &sources, move |x| {
                let (a, at, len) = (x[0], (x[1] & 0xff) as u32, (x[2] & 0xff) as u32);
                let fills = ty.signed && len != 0;
                let sign = if fills { a >> (at + len - 1).min(msb) & 1 } else { 0 };
                let bit = |i: u32| if i < len && at + i <= msb { a >> (at + i) & 1 } else { sign };
                Want::Bits(of_bits((0..=msb).map(bit)))
            });
            forms.push(form.deviating(|x| x[1] > 255 || x[2] > 255));
        }
        let sources = [(name, &edges[..6]), (name, &edges), ("b32", &places), ("b32", &places)];
        let form = Form::new(format!("bfi.{name}"), name, &sources, move |x| {
            let (a, at, len) = (x[0], (x[2] & 0xff) as u32, (x[3] & 0xff) as u32);
            let mut bits = bits_of(x[1], msb + 1);
            for i in (0..len).filter(|i| at + i <= msb) {
                bits[(at + i) as usize] = a >> i & 1;
            }
            Want::Bits(of_bits(bits))
        });
        forms.push(form.deviating(|x| x[2] > 255 || x[3] > 255));
    }
    let edges = U32.few();
    for is_clamp in [true, false] {
        let mode = if is_clamp { "clamp" } else { "wrap" };
        for ty in [U32, S32] {
            let sources = [("b32", &edges[..]), ("b32", &places[..])];
            forms.push(Form::new(format!("szext.{mode}.{}", ty.name), "b32", &sources, move |x| {
                let n = if is_clamp { x[1].min(32) } else { x[1] & 31 } as u32;
                Want::Bits(match n {
                    0 => 0,
                    32 => x[0],
                    n => U32.write(Int { bits: n, ..ty }.read(x[0] & ((1 << n) - 1))),
                })
            }));
        }
        forms.push(Form::new(
            format!("bmsk.{mode}.b32"),
            "b32",
            &[("b32", &places[..]), ("b32", &places)],
            move |x| {
                let limit = |n: u64| if is_clamp { n.min(32) } else { n & 31 };
                Want::Bits(((1u64 << limit(x[1])) - 1) << limit(x[0]) & 0xffff_ffff)
            },
        ));
    }
    forms
}

/// 9.7.9.7
pub(crate) fn permutations() -> Vec<Form> {
    let (a, b) = ([0x8391_a2b3u64, 0x0112_7f80], [0xc4d5_e6f7u64, 0x3344_5566]);
    let pick = |x: &[u64], selectors: [u64; 4]| {
        let both = x[1] << 32 | x[0];
        let byte = |selector: u64| {
            let byte = both >> (8 * (selector & 7)) & 0xff;
            if selector & 8 == 0 { byte } else { (byte >> 7) * 0xff }
        };
        Want::Bits((0..4).fold(0, |sum, at| sum | byte(selectors[at as usize]) << (8 * at)))
    };
    let controls = [0x3210, 0x7654, 0x0123, 0xba98, 0xfedc, 0x8080, 0x1f3c, 0xffff_0000, 0xdead_7531];
    let mut forms =
        vec![Form::new("prmt.b32", "b32", &[("b32", &a[..]), ("b32", &b), ("b32", &controls)], move |x| {
            pick(x, [0, 4, 8, 12].map(|at| x[2] >> at & 15))
        })];
    // The tables of the ISA: the selectors of byte 0 first.
    let modes: [(&str, [[u64; 4]; 4]); 6] = [
        ("f4e", [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]),
        ("b4e", [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]]),
        ("rc8", [[0; 4], [1; 4], [2; 4], [3; 4]]),
        ("ecl", [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]]),
        ("ecr", [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]]),
        ("rc16", [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]]),
    ];
    for (mode, table) in modes {
        let controls = [0, 1, 2, 3, 4, 7, 0xffff_fffe];
        let sources = [("b32", &a[..]), ("b32", &b), ("b32", &controls)];
        forms.push(Form::new(format!("prmt.b32.{mode}"), "b32", &sources, move |x| {
            pick(x, table[(x[2] & 3) as usize])
        }));
    }
    forms
}

/// 9.7.6.3, 9.7.6.4 and 9.7.9.1
pub(crate) fn selections() -> Vec<Form> {
    let mut forms = Vec::new();
    let bools: &[u64] = &[0, 1];
    for bits in [16, 32, 64] {
        let name = register(bits);
        let edges = Int { name: "", bits, signed: false }.few();
        let types: &[&str] = if bits == 16 { &["b", "u", "s"] } else { &["b", "u", "s", "f"] };
        for ty in types {
            let sources = [(name, &edges[..]), (name, &edges), ("pred", bools)];
            forms.push(Form::new(format!("selp.{ty}{bits}"), name, &sources, |x| {
                Want::Bits(if x[2] == 1 { x[0] } else { x[1] })
            }));
            if !(bits == 16 && *ty == "b") {
                forms.push(Form::new(format!("mov.{ty}{bits}"), name, &sources[..1], |x| Want::Bits(x[0])));
            }
            let signs = S32.edges();
            let sources = [(name, &edges[..4]), (name, &edges[4..]), ("b32", &signs)];
            forms.push(Form::new(format!("slct.{ty}{bits}.s32"), name, &sources, |x| {
                Want::Bits(if S32.read(x[2]) >= 0 { x[0] } else { x[1] })
            }));
            for flush in ["", ".ftz"] {
                // -0 counts as zero, a subnormal number too if it is flushed, and NaN selects b.
                let sources = [(name, &edges[..4]), (name, &edges[4..]), ("b32", &crate::floats::EDGES_F32)];
                forms.push(Form::new(format!("slct{flush}.{ty}{bits}.f32"), name, &sources, move |x| {
                    let c = if flush.is_empty() { x[2] } else { F32.flush(x[2]) };
                    Want::Bits(if f32::from_bits(c as u32) >= 0.0 { x[0] } else { x[1] })
                }));
            }
        }
    }
    let halves = U16.few();
    forms.push(Form::new("mov.b16", "b16", &[("b16", &halves)], |x| Want::Bits(x[0])));
    forms
}

#[test]
fn logic_works_on_each_bit() {
    check(logic());
}

#[test]
fn lop3_looks_up_its_table() {
    check(lookups());
}

#[test]
fn shifts_beyond_the_width_are_those_of_the_isa() {
    check(shifts());
}

#[test]
fn bits_are_counted_and_found() {
    check(counts());
}

#[test]
fn fields_beyond_the_highest_bit_are_those_of_the_isa() {
    check(fields());
}

#[test]
fn prmt_picks_the_bytes_of_its_tables() {
    check(permutations());
}

#[test]
fn selections_take_one_of_both() {
    check(selections());
}
