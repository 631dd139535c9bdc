//! Comparisons: PTX ISA 9.7.6.1, 9.7.6.2, 9.7.7.1 and 9.7.7.2.

use crate::exact::{BF16, F16, F32, F64, Format};
use crate::integers::{ALL, U16, U32, U64, register};
use crate::table::{Form, Want, check};
use crate::{floats, halves};
use std::cmp::Ordering;

/// A type with its modifiers, its register, its edges, and its comparisons.
type Kind = (String, &'static str, Vec<u64>, Vec<(&'static str, Compare)>);
type Compare = std::rc::Rc<dyn Fn(u64, u64) -> bool>;

/// A comparison of 9.3.1: whether it is true of an order, or without one.
fn is_true(name: &str, order: Option<Ordering>) -> bool {
    use Ordering::{Equal, Greater, Less};
    match name {
        "eq" => order == Some(Equal),
        "ne" => matches!(order, Some(Less | Greater)),
        "lt" | "lo" => order == Some(Less),
        "le" | "ls" => matches!(order, Some(Less | Equal)),
        "gt" | "hi" => order == Some(Greater),
        "ge" | "hs" => matches!(order, Some(Greater | Equal)),
        "num" => order.is_some(),
        "nan" => order.is_none(),
        // `equ` is `eq` or unordered.
        unordered => order.is_none() || is_true(unordered.trim_end_matches('u'), order),
    }
}

/// The type and its registers, the names of comparisons, and what they compute.
fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    let integers = ALL.map(|ty| (ty.name.to_owned(), ty));
    let bits = [("b16", U16), ("b32", U32), ("b64", U64)].map(|(name, ty)| (name.to_owned(), ty));
    for (name, ty) in integers.into_iter().chain(bits) {
        let names: &[&str] = match &name[..1] {
            "b" => &["eq", "ne"],
            "s" => &["eq", "ne", "lt", "le", "gt", "ge"],
            _ => &["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"],
        };
        let of = |name: &'static str| {
            let compare = move |a: u64, b: u64| is_true(name, Some(ty.read(a).cmp(&ty.read(b))));
            (name, std::rc::Rc::new(compare) as Compare)
        };
        kinds.push((name, ty.register(), ty.few(), names.iter().map(|name| of(name)).collect()));
    }
    const FLOATS: [&str; 14] =
        ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];
    let formats: [(&str, Format, u32, &[u64]); 6] = [
        ("f32", F32, 32, &floats::EDGES_F32),
        ("ftz.f32", F32, 32, &floats::EDGES_F32),
        ("f64", F64, 64, &floats::EDGES_F64),
        ("f16", F16, 16, &halves::EDGES_F16),
        ("ftz.f16", F16, 16, &halves::EDGES_F16),
        ("bf16", BF16, 16, &halves::EDGES_BF16),
    ];
    for (name, format, bits, edges) in formats {
        let of = |comparison: &'static str| {
            let is_flushed = name.starts_with("ftz");
            let compare = move |a: u64, b: u64| {
                let of = |bits: u64| format.read(if is_flushed { format.flush(bits) } else { bits }).to_f64();
                is_true(comparison, of(a).partial_cmp(&of(b)))
            };
            (comparison, std::rc::Rc::new(compare) as Compare)
        };
        kinds.push((name.to_owned(), register(bits), edges.to_vec(), FLOATS.into_iter().map(of).collect()));
    }
    kinds
}

fn combined(with: &str, is: bool, c: bool) -> u64 {
    u64::from(match with {
        "and" => is && c,
        "or" => is || c,
        _ => is != c,
    })
}

pub(crate) fn predicates() -> Vec<Form> {
    let mut forms = Vec::new();
    let bools: &[u64] = &[0, 1];
    for (ty, register, edges, comparisons) in kinds() {
        // 9.7.7.2: of one half there is no second result.
        let (both, second) = if ty.ends_with("f16") { ("pred", 0) } else { ("pred|pred", 2) };
        for (name, compare) in comparisons {
            let two = [(register, &edges[..]); 2];
            let is = compare.clone();
            forms.push(Form::new(format!("setp.{name}.{ty}"), "pred", &two, move |x| {
                Want::Bits(is(x[0], x[1]).into())
            }));
            let is = compare.clone();
            forms.push(Form::new(format!("setp.{name}.{ty}"), both, &two, move |x| {
                Want::Bits(if is(x[0], x[1]) { 1 } else { second })
            }));
            for with in ["and", "or", "xor"] {
                let few = &edges[edges.len() / 2..];
                let three = [(register, few), (register, few), ("pred", bools)];
                let is = compare.clone();
                forms.push(Form::new(format!("setp.{name}.{with}.{ty}"), both, &three, move |x| {
                    let (is, c) = (is(x[0], x[1]), x[2] == 1);
                    Want::Bits(combined(with, is, c) | (combined(with, !is, c) * second))
                }));
            }
            // The predicate may be negated.
            let is = compare;
            let few = &edges[..edges.len() / 2];
            let two = [(register, few); 2];
            let mut form = Form::new(format!("setp.{name}.and.{ty}"), both, &two, move |x| {
                let is = is(x[0], x[1]);
                Want::Bits(u64::from(is) | (u64::from(!is) * second))
            });
            // %p9 is false in all lanes.
            form = form.with("!%p9");
            forms.push(form);
        }
    }
    forms
}

/// 9.7.6.1 and 9.7.7.1
pub(crate) fn numbers() -> Vec<Form> {
    let mut forms = Vec::new();
    let bools: &[u64] = &[0, 1];
    for (ty, source, edges, comparisons) in kinds() {
        let is_half = ty.contains("f16");
        let results: &[(&str, &str, u64)] = match (is_half, ty.starts_with('b')) {
            // Of halves the result may be one of 16 bits too.
            (true, true) => &[("bf16", "b16", 0x3f80), ("u16", "b16", 0xffff), ("s32", "b32", 0xffff_ffff)],
            (true, false) => &[("f16", "b16", 0x3c00), ("s16", "b16", 0xffff), ("u32", "b32", 0xffff_ffff)],
            _ => &[("u32", "b32", 0xffff_ffff), ("s32", "b32", 0xffff_ffff), ("f32", "b32", 0x3f80_0000)],
        };
        for &(result, register, yes) in results {
            let (flush, ty) = match ty.strip_prefix("ftz.") {
                Some(ty) => (".ftz", ty),
                None => ("", &ty[..]),
            };
            for (name, compare) in &comparisons {
                let two = [(source, &edges[..]); 2];
                let is = compare.clone();
                forms.push(Form::new(format!("set.{name}{flush}.{result}.{ty}"), register, &two, move |x| {
                    Want::Bits(if is(x[0], x[1]) { yes } else { 0 })
                }));
            }
            let (name, compare) = comparisons[comparisons.len() - 1].clone();
            for with in ["and", "or", "xor"] {
                let few = &edges[..8];
                let three = [(source, few), (source, few), ("pred", bools)];
                let is = compare.clone();
                let opcode = format!("set.{name}.{with}{flush}.{result}.{ty}");
                forms.push(Form::new(opcode, register, &three, move |x| {
                    Want::Bits(combined(with, is(x[0], x[1]), x[2] == 1) * yes)
                }));
            }
        }
    }
    forms
}

#[test]
fn setp_compares_combines_and_negates() {
    check(predicates());
}

#[test]
fn set_gives_ones_or_the_number_one() {
    check(numbers());
}
