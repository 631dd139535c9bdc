//! Element-wise kernels. They agree with their twins at any alignment, and also when several
//! operands are the same memory. Arithmetic gives the same bits.
#![cfg(target_os = "linux")]

use host_check::{Agree, CUBES, Check, Launch, WARPS, awkward, launches, plain};
use warpline_kernels::launch;

const SIZES: [usize; 9] = [0, 1, 3, 4, 5, 31, 32, 33, 259];
const LARGE: usize = 1_000_003;
/// The distances in elements of up to three operands from a multiple of 16 bytes, equal and
/// unequal.
const OFFSETS: [[usize; 3]; 6] = [[0, 0, 0], [1, 1, 1], [3, 3, 3], [2, 1, 0], [0, 0, 3], [1, 3, 1]];

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
    let as_launched = Launch::new(launch::elements(LARGE as u64));
    for (offsets, launch) in [([0, 0, 0], as_launched), ([1, 1, 1], WARPS), ([1, 2, 3], CUBES)] {
        // SAFETY: every `make` in this file gives all operands the lengths that the kernels
        // require.
        make(LARGE, offsets).iter().for_each(|check| unsafe { check.agrees(agree, &[launch]) });
    }
}

fn integers(n: usize, salt: i64) -> Vec<i64> {
    (0..n as i64).map(|i| (i ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect()
}

#[test]
#[cfg_attr(without_cpp, ignore = "needs a C++ compiler, and none of c++, g++ and clang++ runs here")]
fn sums_differences_and_products() {
    compare(|n, [a, b, c]| {
        let (x, y, z) = (awkward(n, 1), awkward(n, 2), vec![9.0f32; n]);
        let n = n as u64;
        let binary = ["add", "sub", "mul"].into_iter().flat_map(|name| {
            let start = Check::of(name).scalar(n).scalar(n).slice(&x, a);
            [
                start.clone().slice(&y, b).slice(&z, c),
                start.clone().slice(&y, b).same(2),
                start.clone().slice(&y, b).same(3),
                start.same(2).same(2),
            ]
        });
        let scalar = ["add_scalar", "mul_scalar"].into_iter().flat_map(|name| {
            let start = Check::of(name).scalar(n).slice(&x, a).scalar(-0.3f32);
            [start.clone().slice(&z, b), start.same(1)]
        });
        let in_place = Check::of("add_").scalar(n).slice(&y, a);
        binary.chain(scalar).chain([in_place.clone().slice(&x, b), in_place.same(1)]).collect()
    });
}

#[test]
#[cfg_attr(without_cpp, ignore = "needs a C++ compiler, and none of c++, g++ and clang++ runs here")]
fn sums_differences_and_products_of_integers() {
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
#[cfg_attr(without_cpp, ignore = "needs a C++ compiler, and none of c++, g++ and clang++ runs here")]
fn an_operand_is_repeated_along_the_other() {
    let large = LARGE / 33;
    for (rows, period) in [(0, 3), (7, 1), (33, 1), (2, 3), (9, 4), (5, 7), (31, 33), (large, 33), (7, large)]
    {
        let n = rows * period;
        let all = if n < 10_000 {
            launches().to_vec()
        } else {
            vec![Launch::new(launch::elements(n as u64)), WARPS]
        };
        let offsets = if n < 10_000 { &OFFSETS[..] } else { &OFFSETS[2..4] };
        for &[a, b, c] in offsets {
            let (x, y, z) = (awkward(n, 1), awkward(period, 2), vec![9.0f32; n]);
            for name in ["add", "sub", "mul"] {
                let start = Check::of(name).scalar(n as u64).scalar(period as u64).slice(&x, a).slice(&y, b);
                for check in [start.clone().slice(&z, c), start.same(2)] {
                    // SAFETY: `x` and `z` have n elements, a multiple of the `period` that `y` has.
                    unsafe { check.agrees(Agree::Bits, &all) };
                }
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
#[cfg_attr(without_cpp, ignore = "needs a C++ compiler, and none of c++, g++ and clang++ runs here")]
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
#[cfg_attr(without_cpp, ignore = "needs a C++ compiler, and none of c++, g++ and clang++ runs here")]
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
            let x = awkward(rows * cols + 3, 3);
            let start = Check::of("standardize").scalar(rows as u32).scalar(cols as u32);
            let check = start.slice(&mean, 0).slice(&deviation, 1).slice(&x, offset);
            // SAFETY: the scales have one element per column, and `x` has more than rows · cols.
            unsafe { check.agrees(Agree::Bits, &all) };
        }
    }
}

#[test]
#[cfg_attr(without_cpp, ignore = "needs a C++ compiler, and none of c++, g++ and clang++ runs here")]
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
