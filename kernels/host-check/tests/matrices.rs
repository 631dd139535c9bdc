//! Columns, transposes and products.
#![cfg(target_os = "linux")]

use host_check::{Agree, Check, Launch, ONE_THREAD, awkward, launches, launches_and, plain};
use warpline_kernels::launch;
use warpline_runtime::kernel::LaunchConfig;
use warpline_test_counts::count;

const MATRICES: [(usize, usize); 10] =
    [(0, 0), (0, 3), (3, 0), (1, 1), (5, 65), (127, 31), (128, 32), (129, 33), (300, 7), (2, 1000)];
const TALL: (usize, usize) = (30_304, 33);

#[test]
fn columns_are_added_to_the_same_bits() {
    for (rows, cols) in MATRICES.into_iter().chain([TALL]) {
        let own = launch::columns(cols as u64);
        let all = if rows < 1000 { launches_and(own) } else { vec![Launch::new(own).shuffled(3)] };
        for (x, seen) in
            [(plain(rows * cols, 1), 0u64), (plain(rows * cols, 2), 1000), (awkward(rows * cols, 2), 1)]
        {
            let start = |name| Check::of(name).scalar(rows as u64).scalar(cols as u64);
            let sums = start("column_sums").slice(&x, 1).slice(&vec![9.0f32; cols], 0);
            let (means, squares): (Vec<f64>, Vec<f64>) =
                plain(cols, 3).iter().map(|&x| (f64::from(x), f64::from(x).powi(2))).unzip();
            let moments = start("column_moments").slice(&x, 0).slice(&vec![seen; cols], 0).slice(&means, 0);
            let moments = moments.slice(&squares, 0);
            // SAFETY: `x` has rows · cols elements, and the other slices have one per column.
            unsafe { sums.agrees(Agree::Bits, &all) };
            // SAFETY: see the call before.
            unsafe { moments.agrees(Agree::Bits, &all) };
        }
    }
}

#[test]
fn scales_are_the_same_bits() {
    for cols in [0, 1, 31, 33, 1001] {
        let squares: Vec<f64> = awkward(cols, 2).iter().map(|&x| f64::from(x).abs()).collect();
        let means: Vec<f64> = plain(cols, 1).iter().map(|&x| f64::from(x) / 3.0).collect();
        for seen in [0u64, 1, 77] {
            let start = Check::of("column_scales").scalar(cols as u64).slice(&vec![seen; cols], 0);
            let check = start.slice(&means, 0).slice(&squares, 1).slice(&vec![9.0f32; cols], 0);
            // SAFETY: all slices have one element per column.
            unsafe { check.slice(&vec![9.0f32; cols], 1).agrees(Agree::Bits, &launches()) };
        }
    }
}

#[test]
fn transposes_put_every_element_where_it_belongs() {
    let tall = count(30_011, 1_000_003);
    let large = [(257, 255), (tall, 1)];
    for (rows, cols) in MATRICES.into_iter().chain([(usize::MAX, 0), (0, usize::MAX)]).chain(large) {
        let n = rows.saturating_mul(cols);
        let own = launch::transpose(rows as u64, cols as u64);
        let all = match n {
            0..=20_000 => launches_and(own),
            // There are up to 31 251 tiles, and each barrier costs a fiber switch per thread.
            _ if n == tall => vec![ONE_THREAD],
            _ => vec![Launch::new(own), Launch::new(own).shuffled(5)],
        };
        let start = |name| Check::of(name).scalar(rows as u64).scalar(cols as u64);
        let integers: Vec<i64> = (0..n as i64).collect();
        let floats = start("transpose").slice(&plain(n, 1), 1).slice(&vec![9.0f32; n], 3);
        // SAFETY: both operands have rows · cols elements.
        unsafe { floats.agrees(Agree::Bits, &all) };
        let integers = start("transpose_i64").slice(&integers, 1).slice(&vec![9i64; n], 0);
        // SAFETY: both operands have rows · cols elements.
        unsafe { integers.agrees(Agree::Bits, &all) };
    }
}

const PRODUCTS: [[usize; 3]; 13] = [
    [1, 1, 1],
    [32, 32, 16],
    [32, 32, 32],
    [33, 31, 33],
    [3, 5, 7],
    [17, 1, 40],
    [1, 33, 2],
    [65, 40, 15],
    [64, 64, 100],
    [2, 3, 0],
    [0, 4, 2],
    [4, 0, 3],
    // 143 tiles of 64 × 64.
    [700, 770, 35],
];

/// Returns the transpose of the row-major `rows` × `cols` matrix `x`.
fn transpose(rows: usize, cols: usize, x: &[f32]) -> Vec<f32> {
    (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
}

fn launches_of_product(m: usize, n: usize) -> Vec<Launch> {
    let own = launch::product(m as u64, n as u64);
    let fewer = LaunchConfig::linear(own.grid[0].div_ceil(3), own.block[0]);
    let tiled = [Launch::new(own), Launch::new(own).shuffled(5), Launch::new(fewer).shuffled(6)];
    if m * n > 100_000 { tiled.to_vec() } else { launches().into_iter().chain(tiled).collect() }
}

/// Returns the tolerance between twins and device code. Each side rounds k times, in sums of up to
/// k terms of 64.
fn close(k: usize) -> Agree {
    Agree::Within { absolute: 64.0 * k as f64 * k as f64 * f64::from(f32::EPSILON), relative: 0.0 }
}

#[test]
fn products_are_close_however_the_operands_lie() {
    for [m, n, k] in PRODUCTS {
        let (a, b) = (plain(m * k, 1), plain(k * n, 2));
        for (a_transposed, a) in [(0u32, a.clone()), (1, transpose(m, k, &a))] {
            for (b_transposed, b) in [(0u32, b.clone()), (1, transpose(k, n, &b))] {
                let [rows, cols, depth] = [m, n, k].map(|n| n as u64);
                let start = Check::of("matmul").scalar(rows).scalar(cols).scalar(depth);
                let start = start.scalar(a_transposed).scalar(b_transposed).slice(&a, 1).slice(&b, 2);
                let check = start.slice(&vec![9.0f32; m * n], 3);
                // SAFETY: the operands have m · k, k · n and m · n elements.
                unsafe { check.agrees(close(k), &launches_of_product(m, n)) };
            }
        }
    }
}

#[test]
fn layers_are_close_and_their_sums_start_at_the_bias() {
    for [m, n, k] in PRODUCTS {
        let (x, w, bias) = (plain(m * k, 1), plain(n * k, 2), plain(n, 3));
        for (w_transposed, w) in [(0u32, w.clone()), (1, transpose(n, k, &w))] {
            let [rows, cols, depth] = [m, n, k].map(|n| n as u64);
            let start = Check::of("linear").scalar(rows).scalar(cols).scalar(depth).scalar(w_transposed);
            let start = start.slice(&x, 1).slice(&w, 2).slice(&bias, 3);
            // SAFETY: the operands have m · k, n · k, n and m · n elements.
            unsafe { start.slice(&vec![9.0f32; m * n], 0).agrees(close(k), &launches_of_product(m, n)) };
        }
    }
}

#[test]
fn the_bits_of_a_layer_do_not_depend_on_tiles() {
    for [m, n, k] in PRODUCTS {
        // The first row has products of −0, and there are biases of −0. If code adds a zero to
        // those, the sign changes.
        let (mut x, mut w, mut bias) = (plain(m * k, 1), plain(n * k, 2), plain(n, 3));
        x.iter_mut().take(k).for_each(|x| *x = -0.0);
        w.iter_mut().for_each(|w| *w = w.abs());
        bias.iter_mut().step_by(2).for_each(|x| *x = -0.0);
        let [rows, cols, depth] = [m, n, k].map(|n| n as u64);
        let start = Check::of("linear").scalar(rows).scalar(cols).scalar(depth).scalar(0u32);
        let check = start.slice(&x, 1).slice(&w, 2).slice(&bias, 3).slice(&vec![9.0f32; m * n], 0);
        let by_elements = Launch::new(LaunchConfig::linear(2, 64));
        // SAFETY: the operands have m · k, n · k, n and m · n elements.
        unsafe { check.gives_the_same_bits(&[&[by_elements], &launches_of_product(m, n)[..]].concat()) };
    }
}

#[test]
fn products_with_nan_and_infinities_have_them_where_the_twin_has() {
    let [m, n, k] = [40, 35, 40];
    let (mut a, b) = (plain(m * k, 1), plain(k * n, 2));
    for (i, value) in [(5, f32::NAN), (100, f32::INFINITY), (399, f32::NEG_INFINITY)] {
        a[i] = value;
    }
    let start =
        Check::of("matmul").scalar(m as u64).scalar(n as u64).scalar(k as u64).scalar(0u32).scalar(0u32);
    // SAFETY: the operands have m · k, k · n and m · n elements.
    unsafe {
        let check = start.slice(&a, 0).slice(&b, 0).slice(&vec![9.0f32; m * n], 0);
        check.agrees(close(k), &launches_of_product(m, n));
    }
}
