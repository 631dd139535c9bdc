//! The sum of all elements, in a fixed order that a parallel device can follow too.
//!
//! Reads 4 bytes per element and writes 4 bytes. `sum_runs` and `sum_tree` compute `sum` in two
//! steps.
//!
//! # Order
//! All sums are f32, rounded at each step. So the result has the same bits wherever this order is
//! kept:
//! 1. The elements are split into chunks of 1024; the last chunk may be shorter.
//! 2. A chunk has 32 lanes. Lane l starts at +0 and adds the chunk's elements l, l + 32, l + 64, …
//!    in this order.
//! 3. Lanes are folded in halves: lane l adds lane l + 16, then l + 8, 4, 2, 1. Lane 0 is the sum
//!    of the chunk.
//! 4. Neighbouring chunk sums are added: (0 + 1), (2 + 3), …; an odd last one stays as it is. This
//!    repeats until one sum is left.
//!
//! The error grows as for pairwise summation (Higham, "The Accuracy of Floating Point Summation",
//! SIAM J. Sci. Comput. 14(4), 1993): with 32 + 5 + log2(chunks) roundings on a path, not with n.

use crate::convert::size;

const CHUNK: usize = 1024;
const LANES: usize = 32;

const PTX: &str = include_str!("../ptx/sum.ptx");

warpline_runtime::kernel! {
    /// Computes total\[0\] ← the sum of the `n` elements of `x`, 0 if there are none.
    ///
    /// `total` has one element. The order is fixed, so every run gives the same bits. The rounding
    /// error grows with 37 + log2(n / 1024) additions, not with n.
    pub unsafe fn sum(n: u64, x: &[f32], write total: &mut [f32])
    where n == x.len() as u64 && total.len() == 1
    {
        descriptor: SUM,
        ptx_from_sm_60: PTX,
        cpu: |_, x, total| total[0] = sum_of(x),
    }

    /// Computes sums\[r\] ← the sum of run `r` of the `n` elements of `x`.
    ///
    /// A run has [`SUM_RUN`] elements; the last one may be shorter. A run is a power of two of
    /// chunks, so its sum is one of the sums in the order of [`sum`](fn@sum).
    /// [`sum_tree`](fn@sum_tree) of all runs is therefore [`sum`](fn@sum) of the elements. The two
    /// steps are for inputs that are too large for a single block of a GPU.
    pub unsafe fn sum_runs(n: u64, x: &[f32], write sums: &mut [f32])
    where n == x.len() as u64 && n.div_ceil(SUM_RUN) == sums.len() as u64
    {
        descriptor: SUM_RUNS,
        ptx_from_sm_60: PTX,
        cpu: |_, x, sums| {
            x.chunks(size(SUM_RUN)).zip(sums).for_each(|(run, sum)| *sum = sum_of(run))
        },
    }

    /// Computes total\[0\] ← the sum of `sums` divided by `divisor`, adding neighbours first.
    ///
    /// This is the last step of the order of [`sum`](fn@sum), applied to the results of
    /// [`sum_runs`](fn@sum_runs). `divisor` is 1 for the sum of the elements, and the number of
    /// elements for their mean.
    pub unsafe fn sum_tree(n: u64, divisor: f32, sums: &[f32], write total: &mut [f32])
    where n == sums.len() as u64 && total.len() == 1
    {
        descriptor: SUM_TREE,
        ptx_from_sm_60: PTX,
        cpu: |_, divisor, sums, total| total[0] = tree(sums.iter().copied()) / divisor,
    }
}

/// Elements per run of [`sum_runs`](fn@sum_runs).
pub const SUM_RUN: u64 = 16 * CHUNK as u64;

pub(crate) fn sum_of(x: &[f32]) -> f32 {
    tree(x.chunks(CHUNK).map(sum_of_chunk))
}

/// Adds the chunk sums in step 4 of the order.
fn tree(sums: impl Iterator<Item = f32>) -> f32 {
    // A binary counter: sums of runs of chunks, longest run first. The lengths of the runs are the
    // powers of two in `chunks`.
    let mut runs = [0.0f32; usize::BITS as usize];
    let mut depth = 0;
    for (chunks, mut run) in sums.enumerate() {
        for _ in 0..chunks.trailing_ones() {
            depth -= 1;
            run += runs[depth];
        }
        runs[depth] = run;
        depth += 1;
    }
    let (last, longer) = runs[..depth].split_last().unwrap_or((&0.0, &[]));
    longer.iter().rev().fold(*last, |sum, run| run + sum)
}

fn sum_of_chunk(chunk: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let rows = chunk.chunks_exact(LANES);
    let rest = rows.remainder();
    for row in rows {
        lanes.iter_mut().zip(row).for_each(|(lane, x)| *lane += x);
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane += x);
    let mut half = LANES / 2;
    while half > 0 {
        (0..half).for_each(|l| lanes[l] += lanes[l + half]);
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, SUM, SUM_RUN, SUM_RUNS, SUM_TREE, sum_of_chunk};
    use crate::twin::{read, run, value, written};

    fn summed(x: &[f32]) -> f32 {
        let mut total = [f32::NAN];
        run(&SUM, &[value(x.len() as u64), read(x), written(&mut total)]);
        total[0]
    }

    fn values(n: usize) -> Vec<f32> {
        (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e6 - 8.0).collect()
    }

    /// Adds the chunk sums level by level, as step 4 of the order describes.
    fn level_by_level(mut sums: Vec<f32>) -> f32 {
        while sums.len() > 1 {
            sums = sums.chunks(2).map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap()).collect();
        }
        sums.first().copied().unwrap_or(0.0)
    }

    #[test]
    fn the_order_is_the_documented_one() {
        for n in [0, 1, 31, 32, 33, CHUNK, CHUNK + 1, 3 * CHUNK, 7 * CHUNK + 5, 13 * CHUNK, 64 * CHUNK + 9] {
            let x = values(n);
            let expected = level_by_level(x.chunks(CHUNK).map(sum_of_chunk).collect());
            assert_eq!(summed(&x).to_bits(), expected.to_bits(), "{n}");
        }
    }

    #[test]
    fn runs_and_their_tree_give_the_same_bits() {
        let run_len = SUM_RUN as usize;
        for n in [0, 1, CHUNK, run_len, run_len + 1, 3 * run_len - 1, 37 * run_len + 5 * CHUNK + 7] {
            let x = values(n);
            let (mut sums, mut total) = (vec![f32::NAN; n.div_ceil(run_len)], [f32::NAN]);
            run(&SUM_RUNS, &[value(n as u64), read(&x), written(&mut sums)]);
            run(&SUM_TREE, &[value(sums.len() as u64), value(1.0f32), read(&sums), written(&mut total)]);
            assert_eq!(total[0].to_bits(), summed(&x).to_bits(), "{n}");
        }
    }

    #[test]
    fn is_close_to_the_sum_in_f64() {
        for n in [1usize, 1000, 1_000_003] {
            let x = values(n);
            let exact: f64 = x.iter().map(|&x| f64::from(x)).sum();
            let size: f64 = x.iter().map(|&x| f64::from(x).abs()).sum();
            assert!((f64::from(summed(&x)) - exact).abs() <= 50.0 * f64::from(f32::EPSILON) / 2.0 * size);
        }
    }

    #[test]
    fn a_million_tenths_do_not_drift() {
        assert!((summed(&vec![0.1; 1_000_000]) - 100_000.0).abs() < 0.1, "{}", summed(&vec![0.1; 1_000_000]));
    }

    #[test]
    fn nan_and_infinities_pass() {
        let mut x = values(10_000);
        x[9_999] = f32::INFINITY;
        assert_eq!(summed(&x), f32::INFINITY);
        x[3] = f32::NEG_INFINITY;
        assert!(summed(&x).is_nan());
    }
}
