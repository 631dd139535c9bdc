//! Reductions of all elements and of rows.
#![cfg(target_os = "linux")]

use host_check::{Agree, CUBES, Check, Launch, PARTIAL_WARPS, WARPS, awkward, launches_and, plain};
use warpline_kernels::{SUM_RUN, launch};
use warpline_test_counts::count;

#[test]
fn sums_and_means_are_the_same_bits() {
    let (run, large) = (SUM_RUN as usize, count(200_003, 1_000_003));
    for n in [0, 1, 31, 32, 33, 1023, 1024, 1025, 5000, run - 1, run, run + 1, 3 * run + 77, 70_001, large] {
        let x = plain(n, 5);
        let few = if n < 20_000 {
            launches_and(launch::one_block())
        } else {
            vec![Launch::new(launch::one_block()), WARPS.shuffled(9)]
        };
        for offset in [0, 1] {
            for name in ["sum", "mean"] {
                let check = Check::of(name).scalar(n as u64).slice(&x, offset).slice(&[9.0f32], 0);
                // SAFETY: `x` has n elements and the result one.
                unsafe { check.agrees(Agree::Bits, &few) };
            }
            let runs = n.div_ceil(run);
            let check =
                Check::of("sum_runs").scalar(n as u64).slice(&x, offset).slice(&vec![9.0f32; runs], 0);
            let own = Launch::new(launch::runs(runs as u64));
            let few = if n < 20_000 {
                launches_and(launch::runs(runs as u64))
            } else {
                vec![own, own.shuffled(3), PARTIAL_WARPS]
            };
            // SAFETY: `x` has n elements, and the result has one per run.
            unsafe { check.agrees(Agree::Bits, &few) };
        }
    }
}

#[test]
fn trees_of_sums_are_the_same_bits() {
    for n in [0, 1, 2, 3, 31, 33, 1023, 1024, 1025, 2049, 5000] {
        for divisor in [1.0f32, 3e7] {
            let check = Check::of("sum_tree").scalar(n as u64).scalar(divisor).slice(&plain(n, 3), 1);
            let check = check.slice(&[9.0f32], 0);
            // SAFETY: there are n sums and one result.
            unsafe { check.agrees(Agree::Bits, &launches_and(launch::one_block())) };
        }
    }
}

#[test]
fn nan_and_infinities_pass_through_sums() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (specials, at) in
        [(vec![inf], 40), (vec![inf, -inf], 900), (vec![nan], 1500), (vec![1e-45, -1e-40], 5)]
    {
        let mut x = plain(2000, 1);
        x[at..at + specials.len()].copy_from_slice(&specials);
        let check = Check::of("sum").scalar(2000u64).slice(&x, 0).slice(&[9.0f32], 0);
        // SAFETY: `x` has 2000 elements and the result one.
        unsafe { check.agrees(Agree::Bits, &launches_and(launch::one_block())) };
    }
    let denormals = vec![1e-45f32; 3000];
    let check = Check::of("sum").scalar(3000u64).slice(&denormals, 0).slice(&[9.0f32], 0);
    // SAFETY: `x` has 3000 elements and the result one.
    unsafe { check.agrees(Agree::Bits, &launches_and(launch::one_block())) };
}

#[test]
fn equal_elements_are_counted() {
    for n in [0, 1, 31, 32, 33, 1023, 1025, 3000, count(200_003, 1_000_003)] {
        let x: Vec<i64> = (0..n as i64).map(|i| i * 7 % 5).collect();
        let y: Vec<i64> = (0..n as i64).map(|i| i * 3 % 5).collect();
        let check = Check::of("count_equal").scalar(n as u64).slice(&x, 0).slice(&y, 1).slice(&[9i64], 1);
        // SAFETY: both operands have n elements and the result one.
        unsafe { check.agrees(Agree::Bits, &launches_and(launch::one_block())) };
    }
}

#[test]
fn the_largest_of_a_row_is_found() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows_of = |cols: usize, x: &[f32]| {
        let rows = x.len().checked_div(cols).unwrap_or(5);
        let check = Check::of("argmax").scalar(rows as u64).scalar(cols as u64).slice(x, 1);
        let check = check.slice(&vec![-1i64; rows], 0);
        // SAFETY: `x` has rows · cols elements, and there are as many indices as rows.
        unsafe { check.agrees(Agree::Bits, &launches_and(launch::rows(rows as u64))) };
    };
    rows_of(3, &[1.0, 3.0, 3.0, inf, nan, nan, -inf, -inf, -inf, nan, inf, 0.0, -0.0, 0.0, -1.0]);
    rows_of(0, &[]);
    rows_of(7, &[]);
    for cols in [1, 2, 31, 32, 33, 100, 1001] {
        let mut x = plain(cols * 21, 2);
        // Rounding leaves few different values, so there are ties.
        x[..cols * 10].iter_mut().for_each(|x| *x = x.round());
        x[cols * 20..].fill(-inf);
        rows_of(cols, &x);
        rows_of(cols, &awkward(cols * 21, 4));
    }
}

/// The tolerance of losses. Device code sums f64 in another order than the twin and rounds to f32,
/// so results differ by some units in the last place. In a gradient that is a difference of
/// probabilities, these are units of 1. The twin and the source use libm's `exp` here. That of the
/// PTX is within 2 units in the last place, and stays within the tolerance in these calls.
const LOSS: Agree = Agree::Within { absolute: 2e-7, relative: 3e-7 };

#[test]
fn cross_entropies_and_their_gradients_are_close() {
    for (rows, cols) in
        [(0, 3), (0, 0), (3, 0), (1, 1), (1, 2), (33, 10), (5, 32), (7, 33), (4, 1000), (1100, 10)]
    {
        for logits in [plain(rows * cols, 1), awkward(rows * cols, 1)] {
            let last = cols as i64 - 1;
            let labels: Vec<i64> = (0..rows as i64)
                .map(|r| match r % 5 {
                    3 if r > 20 => [-1, last + 1, i64::MIN, i64::MAX][r as usize / 5 % 4],
                    _ => (r * 7) % (last + 1).max(1),
                })
                .collect();
            let (height, width) = (rows as u64, cols as u64);
            let grad = vec![9.0f32; rows * cols];
            let start =
                |name| Check::of(name).scalar(height).scalar(width).slice(&logits, 1).slice(&labels, 1);
            let whole = start("cross_entropy").slice(&[9.0f32], 0).slice(&grad, 3);
            let each = start("cross_entropy_rows").slice(&vec![9.0f64; rows], 0).slice(&grad, 0);
            let few = rows > 1000;
            #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one promise about the same operands")]
            // SAFETY: logits and gradients have rows · cols elements, labels and losses one per
            // row.
            unsafe {
                let one = Launch::new(launch::one_block());
                let all = if few { vec![one, CUBES.shuffled(9)] } else { launches_and(launch::one_block()) };
                whole.agrees(LOSS, &all);
                let own = Launch::new(launch::rows(height));
                let all = if few {
                    vec![own, PARTIAL_WARPS.shuffled(9)]
                } else {
                    launches_and(launch::rows(height))
                };
                each.agrees(LOSS, &all);
                if !few {
                    whole.gives_the_same_bits(&[WARPS, CUBES, one]);
                    each.gives_the_same_bits(&[WARPS, CUBES, own]);
                }
            }
        }
    }
}

#[test]
fn means_of_losses_are_close() {
    for rows in [0, 1, 31, 1023, 1024, 1025, 30_001] {
        let losses: Vec<f64> = plain(rows, 9).into_iter().map(|x| f64::from(x) + 8.0).collect();
        let check = Check::of("cross_entropy_mean").scalar(rows as u64).slice(&losses, 0).slice(&[9.0f32], 0);
        // SAFETY: there are `rows` losses and one mean.
        unsafe { check.agrees(LOSS, &launches_and(launch::one_block())) };
    }
}
