//! Contents of arrays by the names that the manifest uses.
//!
//! | name | element `i` |
//! |---|---|
//! | `zeros` | 0 |
//! | `iota` | `i` |
//! | `constant(c)` | `c` |
//! | `hash` | a pseudorandom integer, or a float in -1 to 1 |
//! | `hash(m)` | a pseudorandom integer below `m` |
//! | `sorted` | `3 * i` plus at most 2, so in order |
//! | `unvisited(k)` | 0 if `i` is below `k`, else the largest `u32` |
//! | `row_offsets` | where row `i` of a sparse matrix begins, if rows have 0 to 7 entries |
//!
//! Arrays in different places of a kernel's parameters have different pseudorandom contents.

use super::values::Values;

/// An array of `len` elements for the parameter at `place`.
pub(crate) fn fill(name: &str, type_name: &str, len: usize, place: u32) -> Values {
    let (name, argument) = match name.split_once('(') {
        Some((name, rest)) => {
            (name, rest.trim_end_matches(')').parse::<f64>().expect("a number in parentheses"))
        }
        None => (name, 0.0),
    };
    let indices = 0..len as u32;
    if name == "hash" && argument == 0.0 {
        return hashed(type_name, indices, place);
    }
    let numbers: Vec<f64> = match name {
        "zeros" => vec![0.0; len],
        "iota" => indices.map(f64::from).collect(),
        "constant" => vec![argument; len],
        "hash" => indices.map(|i| f64::from(hash(place, i) % argument as u32)).collect(),
        "sorted" => indices.map(|i| f64::from(3 * i + hash(place, i) % 3)).collect(),
        "unvisited" => {
            indices.map(|i| if f64::from(i) < argument { 0.0 } else { f64::from(u32::MAX) }).collect()
        }
        "row_offsets" => {
            let mut next = 0;
            let mut begin_of = |row| {
                let begin = next;
                next += hash(0, row) % 8;
                f64::from(begin)
            };
            indices.map(&mut begin_of).collect()
        }
        _ => panic!("unknown contents {name}"),
    };
    from_numbers(type_name, &numbers)
}

/// A scalar of the manifest, as an array of one element.
pub(crate) fn scalar(text: &str, type_name: &str) -> Values {
    from_numbers(type_name, &[text.parse().expect("a number")])
}

fn from_numbers(type_name: &str, numbers: &[f64]) -> Values {
    let numbers = numbers.iter();
    match type_name {
        "u8" => Values::U8(numbers.map(|&x| x as u8).collect()),
        "i8" => Values::I8(numbers.map(|&x| x as i8).collect()),
        "u16" => Values::U16(numbers.map(|&x| x as u16).collect()),
        "i16" => Values::I16(numbers.map(|&x| x as i16).collect()),
        "u32" => Values::U32(numbers.map(|&x| x as u32).collect()),
        "i32" => Values::I32(numbers.map(|&x| x as i32).collect()),
        "u64" => Values::U64(numbers.map(|&x| x as u64).collect()),
        "f32" => Values::F32(numbers.map(|&x| x as f32).collect()),
        "f64" => Values::F64(numbers.copied().collect()),
        _ => panic!("unknown type {type_name}"),
    }
}

fn hashed(type_name: &str, indices: std::ops::Range<u32>, place: u32) -> Values {
    let words = indices.map(|i| hash(place, i));
    match type_name {
        "u8" => Values::U8(words.map(|x| x as u8).collect()),
        "i8" => Values::I8(words.map(|x| x as i8).collect()),
        "u16" => Values::U16(words.map(|x| x as u16).collect()),
        "i16" => Values::I16(words.map(|x| x as i16).collect()),
        "u32" => Values::U32(words.collect()),
        "i32" => Values::I32(words.map(|x| x as i32).collect()),
        "u64" => Values::U64(words.map(|x| u64::from(x) << 32 | u64::from(hash(place, x))).collect()),
        "f32" => Values::F32(words.map(|x| (x >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()),
        "f64" => Values::F64(words.map(|x| f64::from(x) / f64::from(1_u32 << 31) - 1.0).collect()),
        _ => panic!("unknown type {type_name}"),
    }
}

/// Mixes the bits of a place and an index.
fn hash(place: u32, i: u32) -> u32 {
    let mut x = (i ^ place << 24).wrapping_add(0x9e37_79b9);
    for factor in [0x85eb_ca6b, 0xc2b2_ae35] {
        x = (x ^ x >> 16).wrapping_mul(factor);
        x ^= x >> 13;
    }
    x
}
