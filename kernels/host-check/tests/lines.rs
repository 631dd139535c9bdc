//! Kernels that work along one dimension: softmax, maxima and layer norms.
#![cfg(target_os = "linux")]

use host_check::{Agree, CUBES, Check, Launch, PARTIAL_WARPS, WARPS, awkward, launches, launches_and, plain};
use warpline_kernels::launch;

/// Sizes `outer` × `n` × `inner`, with rows and with lines of elements that are apart.
const SHAPES: [[usize; 3]; 15] = [
    [0, 3, 1],
    [3, 0, 1],
    [2, 3, 0],
    [3, 0, 2],
    [1, 1, 1],
    [33, 1, 1],
    [7, 31, 1],
    [5, 32, 1],
    [4, 33, 1],
    [2, 1001, 1],
    [1, 5, 33],
    [3, 4, 7],
    [1, 100, 2],
    [2, 1, 40],
    [9, 3, 65],
];

fn of(name: &str, shape: [usize; 3]) -> Check {
    shape.into_iter().fold(Check::of(name), |check, size| check.scalar(size as u64))
}

/// The largest difference of two quotients. Each side's exp is within 2 units in the last place,
/// and sums and quotients are rounded. The order of the f64 sums has no visible effect.
const CLOSE: Agree = Agree::Within { absolute: 1e-44, relative: 8.0 * f32::EPSILON as f64 };

#[test]
fn softmaxes_are_close() {
    for [outer, n, inner] in SHAPES {
        let len = outer * n * inner;
        let own = launch::lines(outer as u64, inner as u64);
        for x in [plain(len, 1), awkward(len, 2), vec![f32::NEG_INFINITY; len]] {
            let check = of("softmax", [outer, n, inner]).slice(&x, 1).slice(&vec![9.0f32; len], 2);
            // SAFETY: both operands have outer · n · inner elements.
            unsafe { check.agrees(CLOSE, &launches_and(own)) };
            // SAFETY: see the call before.
            unsafe { check.gives_the_same_bits(&[WARPS, CUBES, Launch::new(own)]) };
        }
    }
}

#[test]
fn the_largest_of_a_line_is_found() {
    for [outer, n, inner] in SHAPES {
        let (len, lines) = (outer * n * inner, outer * inner);
        // Rounding leaves few different values, so there are ties.
        let rounded: Vec<f32> = plain(len, 1).into_iter().map(f32::round).collect();
        for x in [rounded, awkward(len, 2), vec![f32::NEG_INFINITY; len]] {
            let start = of("max_dim", [outer, n, inner]).slice(&x, 1);
            let check = start.slice(&vec![9.0f32; lines], 3).slice(&vec![-1i64; lines], 1);
            let own = launch::lines(outer as u64, inner as u64);
            // SAFETY: `x` has outer · n · inner elements, and there is one result per line.
            unsafe { check.agrees(Agree::Bits, &launches_and(own)) };
        }
    }
}

#[test]
fn maxima_of_runs_are_the_same_bits() {
    for (n, run) in [(0, 1), (1, 1), (1, 7), (33, 33), (100, 7), (1025, 1024), (3000, 5000), (5000, 1500)] {
        let zeros: Vec<f32> = (0..n).map(|i| if i % 3 == 0 { 0.0 } else { -0.0 }).collect();
        for x in [plain(n, 1), awkward(n, 2), zeros, vec![f32::NEG_INFINITY; n]] {
            let runs = n.div_ceil(run);
            let start = Check::of("maxima").scalar(n as u64).scalar(run as u64).slice(&x, 1);
            let check = start.slice(&vec![9.0f32; runs], 3);
            let own = launch::runs(runs as u64);
            let all = if n < 2000 {
                launches_and(own)
            } else {
                vec![
                    Launch::new(launch::one_block()),
                    Launch::new(own).shuffled(7),
                    PARTIAL_WARPS.shuffled(3),
                ]
            };
            // SAFETY: `x` has n elements, and there is one result per run.
            unsafe { check.agrees(Agree::Bits, &all) };
        }
    }
}

#[test]
fn layer_norms_are_close() {
    // The mean and the scale are f64, so only the last roundings may differ: those of a quotient of
    // up to √1001, times a weight of up to 8, plus a bias.
    let close = Agree::Within { absolute: 8.0 * 32.0 * f64::from(f32::EPSILON), relative: 1e-6 };
    for (rows, cols) in [(0, 3), (3, 0), (1, 1), (33, 1), (7, 31), (5, 32), (4, 33), (2, 1001)] {
        let (weight, bias, y) = (plain(cols, 3), plain(cols, 4), vec![9.0f32; rows * cols]);
        for (x, eps) in [(plain(rows * cols, 1), 1e-5f32), (vec![3.25; rows * cols], 1e-5)] {
            let start = Check::of("layer_norm").scalar(rows as u64).scalar(cols as u64).scalar(eps);
            let check = start.slice(&x, 1).slice(&weight, 2).slice(&bias, 3).slice(&y, 0);
            let own = launch::rows(rows as u64);
            // SAFETY: `x` and `y` have rows · cols elements, the weight and the bias one per
            // column.
            unsafe { check.agrees(close, &launches_and(own)) };
            // SAFETY: see the call before.
            unsafe { check.gives_the_same_bits(&[WARPS, CUBES, Launch::new(own)]) };
        }
    }
    // A row with NaN or an infinity has no number in it.
    let mut x = plain(4 * 40, 1);
    (x[50], x[90], x[100]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let start = Check::of("layer_norm").scalar(4u64).scalar(40u64).scalar(1e-5f32).slice(&x, 0);
    let check = start.slice(&plain(40, 3), 0).slice(&plain(40, 4), 0).slice(&vec![9.0f32; 160], 0);
    // SAFETY: `x` and `y` have rows · cols elements, the weight and the bias one per column.
    unsafe { check.agrees(close, &launches()) };
}
