//! Element-wise kernels. They agree with their twins at any alignment, and also when several
//! operands are the same memory. Arithmetic gives the same bits.
#![cfg(target_os = "linux")]

use host_check::{Agree, CUBES, Check, Launch, WARPS, awkward, launches, plain};
use warpline_kernels::{TypeCode, launch};
use warpline_test_counts::count;

const SIZES: [usize; 9] = [0, 1, 3, 4, 5, 31, 32, 33, 259];
/// The distances in elements of up to three operands from a multiple of 16 bytes, equal and
/// unequal.
const OFFSETS: [[usize; 3]; 6] = [[0, 0, 0], [1, 1, 1], [3, 3, 3], [2, 1, 0], [0, 0, 3], [1, 3, 1]];

/// Returns a number of elements for which a launch has many blocks.
fn large() -> usize {
    count(30_011, 1_000_003)
}

/// Runs the checks that `make` returns for each size and its offsets, and compares bits.
fn compare(make: impl Fn(usize, [usize; 3]) -> Vec<Check>) {
    compare_within(Agree::Bits, make);
}

/// Runs the checks that `make` returns for each size and its offsets.
fn compare_within(agree: Agree, make: impl Fn(usize, [usize; 3]) -> Vec<Check>) {
    for n in SIZES {
        for offsets in OFFSETS {
            // SAFETY: every `make` in this file gives all operands the lengths that the kernels
            // require.
            make(n, offsets).iter().for_each(|check| unsafe { check.agrees(agree, &launches()) });
        }
    }
    let large = large();
    let as_launched = Launch::new(launch::elements(large as u64));
    for (offsets, launch) in [([0, 0, 0], as_launched), ([1, 1, 1], WARPS), ([1, 2, 3], CUBES)] {
        // SAFETY: every `make` in this file gives all operands the lengths that the kernels
        // require.
        make(large, offsets).iter().for_each(|check| unsafe { check.agrees(agree, &[launch]) });
    }
}

fn integers(n: usize, salt: i64) -> Vec<i64> {
    (0..n as i64).map(|i| (i ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect()
}

#[test]
fn arithmetic() {
    compare(|n, [a, b, c]| {
        let (x, y, z) = (awkward(n, 1), awkward(n, 2), vec![9.0f32; n]);
        let n = n as u64;
        let binary = ["add", "sub", "mul", "divide"].into_iter().flat_map(|name| {
            let start = Check::of(name).scalar(n).scalar(n).slice(&x, a);
            [
                start.clone().slice(&y, b).slice(&z, c),
                start.clone().slice(&y, b).same(2),
                start.clone().slice(&y, b).same(3),
                start.same(2).same(2),
            ]
        });
        let scalar = ["add_scalar", "mul_scalar", "divide_scalar"].into_iter().flat_map(|name| {
            let start = Check::of(name).scalar(n).slice(&x, a).scalar(-0.3f32);
            [start.clone().slice(&z, b), start.same(1)]
        });
        let in_place = Check::of("add_").scalar(n).slice(&y, a);
        binary.chain(scalar).chain([in_place.clone().slice(&x, b), in_place.same(1)]).collect()
    });
}

/// Returns `n` numbers that need all bits of an f64, and special values.
fn wide(n: usize, salt: u32) -> Vec<f64> {
    awkward(n, salt).into_iter().map(|x| f64::from(x) * 1.000_000_000_1).collect()
}

#[test]
fn arithmetic_in_f64() {
    compare(|n, offsets| {
        let [a, b, c] = offsets.map(|offset| offset % 2);
        let (x, y, z) = (wide(n, 1), wide(n, 2), vec![9.0f64; n]);
        let n = n as u64;
        let binary = ["add_f64", "sub_f64", "mul_f64", "divide_f64"].into_iter().flat_map(|name| {
            let start = Check::of(name).scalar(n).scalar(n).slice(&x, a);
            [start.clone().slice(&y, b).slice(&z, c), start.same(2).same(2)]
        });
        let scalar = ["add_scalar_f64", "mul_scalar_f64", "divide_scalar_f64"].into_iter().flat_map(|name| {
            let start = Check::of(name).scalar(n).slice(&x, a).scalar(-0.3f64);
            [start.clone().slice(&z, b), start.same(1)]
        });
        binary.chain(scalar).collect()
    });
}

#[test]
fn elements_are_repeated_along_a_dimension() {
    let of_bytes = |n: usize| (0..n).map(|i| (i * 37) as u8).collect::<Vec<u8>>();
    for [outer, repeat, inner] in
        [[0, 3, 2], [1, 1, 1], [3, 2, 1], [1, 5, 7], [4, 3, 9], [2, 3, 0], [101, 7, 3]]
    {
        let (from, to) = (outer * inner, outer * repeat * inner);
        for (name, size) in [("expand_1", 1), ("expand_2", 2), ("expand_4", 4), ("expand_8", 8)] {
            let start = Check::of(name).scalar(to as u64).scalar(repeat as u64).scalar(inner as u64);
            let (x, y) = (of_bytes(from * size), vec![9u8; to * size]);
            let check = match size {
                1 => start.slice(&x, 1).slice(&y, 3),
                2 => start.slice(&words::<u16>(&x), 1).slice(&words::<u16>(&y), 3),
                4 => start.slice(&words::<u32>(&x), 1).slice(&words::<u32>(&y), 2),
                _ => start.slice(&words::<u64>(&x), 1).slice(&words::<u64>(&y), 0),
            };
            // SAFETY: `y` has `repeat` times as many elements as `x`, which has whole rows.
            unsafe { check.agrees(Agree::Bits, &launches()) };
        }
    }
}

fn words<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

#[test]
fn every_type_becomes_every_other_by_the_same_rules() {
    // All bit patterns of the narrow types, and numbers around the ends of every range.
    let all_words: Vec<u16> = (0..=u16::MAX).collect();
    let ends =
        [0.0, 0.5, 1.0, 127.0, 255.5, 65504.0, 65519.9, 65520.0, 2147483648.0, 9.3e18, 1e300, 6e-8, 3e-8];
    let mut numbers: Vec<f64> = wide(3000, 5);
    numbers.extend(ends.into_iter().flat_map(|x: f64| [x, -x, x.next_up(), -x.next_down()]));
    numbers.extend([f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    numbers.extend([0x7ff0_0000_0000_0001, 0xfff8_1234_5678_9abc].map(f64::from_bits));
    let mut long = integers(3000, 3);
    long.extend([0, 1, -1, i64::MIN, i64::MAX, 1 << 31, (1 << 24) + 1, (1 << 53) + 1, 65519, 65520]);
    for from in TypeCode::ALL {
        let x: Vec<u8> = match from {
            TypeCode::F64 => bytemuck::cast_slice(&numbers).to_vec(),
            TypeCode::F32 => {
                bytemuck::cast_slice(&numbers.iter().map(|&x| x as f32).collect::<Vec<_>>()).to_vec()
            }
            TypeCode::I64 => bytemuck::cast_slice(&long).to_vec(),
            TypeCode::I32 => {
                bytemuck::cast_slice(&long.iter().map(|&x| x as i32).collect::<Vec<_>>()).to_vec()
            }
            // The low bytes of the first 256 words are all patterns of a byte.
            _ if from.size() == 1 => bytemuck::cast_slice(count(&all_words[..256], &all_words[..])).to_vec(),
            _ => bytemuck::cast_slice(&all_words).to_vec(),
        };
        let n = x.len() / from.size();
        for to in TypeCode::ALL {
            let y = vec![9u8; n * to.size()];
            // The quick suite takes one of the alignments for each pair of types.
            let of_pair = [[(0, 0)], [(1, 3)]][(from as usize + to as usize) % 2];
            for &(a, b) in count(&of_pair[..], &[(0, 0), (1, 3)]) {
                let check = Check::of("cast").scalar(n as u64).scalar(from as u32).scalar(to as u32);
                // SAFETY: both slices have `n` elements of their types.
                unsafe { check.slice(&x, a).slice(&y, b).agrees(Agree::Bits, &launches()[..1]) };
            }
        }
    }
}

#[test]
fn arithmetic_of_integers() {
    compare(|n, offsets| {
        let [a, b, c] = offsets.map(|offset| offset % 2);
        let (x, y, z) = (integers(n, 1), integers(n, 2), vec![9i64; n]);
        let n = n as u64;
        let binary = ["add_i64", "sub_i64", "mul_i64"].into_iter().flat_map(|name| {
            let start = Check::of(name).scalar(n).scalar(n).slice(&x, a);
            [
                start.clone().slice(&y, b).slice(&z, c),
                start.clone().slice(&y, b).same(3),
                start.same(2).same(2),
            ]
        });
        let scalar = ["add_scalar_i64", "mul_scalar_i64"].into_iter().flat_map(|name| {
            let start = Check::of(name).scalar(n).slice(&x, a).scalar(i64::MAX - 4);
            [start.clone().slice(&z, b), start.same(1)]
        });
        binary.chain(scalar).collect()
    });
}

#[test]
fn an_operand_is_repeated_along_the_other() {
    let large = large() / 33;
    for (rows, period) in [(0, 3), (7, 1), (33, 1), (2, 3), (9, 4), (5, 7), (31, 33), (large, 33), (7, large)]
    {
        let n = rows * period;
        let all = if n < 5_000 {
            launches().to_vec()
        } else {
            vec![Launch::new(launch::elements(n as u64)), WARPS]
        };
        let offsets = if n < 5_000 { &OFFSETS[..] } else { &OFFSETS[2..4] };
        for &[a, b, c] in offsets {
            let (x, y, z) = (awkward(n, 1), awkward(period, 2), vec![9.0f32; n]);
            for name in ["add", "sub", "mul", "divide"] {
                let start = Check::of(name).scalar(n as u64).scalar(period as u64).slice(&x, a).slice(&y, b);
                for check in [start.clone().slice(&z, c), start.same(2)] {
                    // SAFETY: `x` and `z` have n elements, a multiple of the `period` that `y` has.
                    unsafe { check.agrees(Agree::Bits, &all) };
                }
            }
            let (x, y, z) = (wide(n, 1), wide(period, 2), vec![9.0f64; n]);
            for name in ["add_f64", "sub_f64", "mul_f64", "divide_f64"] {
                let start = Check::of(name).scalar(n as u64).scalar(period as u64);
                let check = start.slice(&x, a % 2).slice(&y, b % 2).slice(&z, c % 2);
                // SAFETY: `x` and `z` have n elements, a multiple of the `period` that `y` has.
                unsafe { check.agrees(Agree::Bits, &all) };
            }
            let (x, y, z) = (integers(n, 1), integers(period, 2), vec![9i64; n]);
            for name in ["add_i64", "sub_i64", "mul_i64"] {
                let start = Check::of(name).scalar(n as u64).scalar(period as u64);
                let check = start.slice(&x, a % 2).slice(&y, b % 2).slice(&z, c % 2);
                // SAFETY: `x` and `z` have n elements, a multiple of the `period` that `y` has.
                unsafe { check.agrees(Agree::Bits, &all) };
            }
        }
    }
}

#[test]
fn axpy_sgd_and_rectifiers() {
    compare(|n, [a, b, c]| {
        let (x, y, z) = (awkward(n, 1), awkward(n, 2), awkward(n, 3));
        let n = n as u64;
        let relu = Check::of("relu").scalar(n).slice(&x, a);
        let backward = Check::of("relu_backward").scalar(n).slice(&x, a).slice(&y, b);
        vec![
            Check::of("axpy").scalar(n).scalar(0.3f32).slice(&x, a).slice(&y, b),
            Check::of("axpy").scalar(n).scalar(0.0f32).slice(&x, a).slice(&y, b),
            Check::of("sgd").scalar(n).scalar(0.1f32).scalar(0.9f32).slice(&x, a).slice(&y, b).slice(&z, c),
            relu.clone().slice(&y, b),
            relu.same(1),
            backward.clone().slice(&z, c),
            backward.clone().same(2),
            backward.same(1),
        ]
    });
}

#[test]
fn columns_are_standardized_by_their_own_scales() {
    for (rows, cols) in [(0, 0), (0, 4), (4, 0), (1, 1), (9, 65), (100, 7), (30_303, 33)] {
        let all = if rows < 1000 {
            launches().to_vec()
        } else {
            vec![Launch::new(launch::elements(rows as u64 * 33))]
        };
        for offset in 0..4 {
            let (mean, mut deviation) = (awkward(cols, 1), awkward(cols, 2));
            deviation.iter_mut().step_by(2).for_each(|x| *x = 1.5);
            let x = awkward(rows * cols, 3);
            let start = Check::of("standardize").scalar(rows as u64).scalar(cols as u64);
            let check = start.slice(&mean, 0).slice(&deviation, 1).slice(&x, offset);
            // SAFETY: the scales have one element per column, and `x` has rows · cols.
            unsafe { check.agrees(Agree::Bits, &all) };
        }
    }
}

#[test]
fn functions_are_close_and_roots_are_the_same_bits() {
    let ulps = |n: f64| Agree::Within { absolute: 1e-44, relative: n * f64::from(f32::EPSILON) };
    for (name, agree) in [
        ("sqrt_f32", Agree::Bits),
        // Each side is within 2 units in the last place, and the sigmoid adds two roundings.
        ("exp_f32", ulps(4.0)),
        ("log_f32", ulps(4.0)),
        ("tanh_f32", ulps(4.0)),
        ("sigmoid_f32", ulps(6.0)),
        // 1 + erf(…) cancels: the error is some units in the last place of an operand of up to 8.
        ("gelu_f32", Agree::Within { absolute: 8.0 * 4.0 * f64::from(f32::EPSILON), relative: 1e-6 }),
    ] {
        compare_within(agree, |n, [a, b, _]| {
            let start = |x: &[f32]| Check::of(name).scalar(n as u64).slice(x, a);
            let y = vec![9.0f32; n];
            vec![start(&plain(n, 1)).slice(&y, b), start(&awkward(n, 2)).slice(&y, b)]
        });
    }
}
