//! The largest element of runs, and of the lines along one dimension.
//!
//! Reads 4 bytes per element. `maxima` writes 4 bytes per run, and `max_dim` 12 bytes per line.

use crate::convert::size;

const PTX: &str = include_str!("../ptx/max.ptx");

/// The length of the runs in which [`maxima`](fn@maxima) divides a large operand.
pub const MAX_RUN: u64 = 1 << 15;

warpline_runtime::kernel! {
    /// Computes maxima\[r\] ← the largest of the `run` elements of `x` from `run`·r on, or of those
    /// that are left.
    ///
    /// `x` has `n` elements. A run with a NaN gives NaN. The maximum of zeros of either sign is +0.
    /// With a `run` of at least `n`, there is one maximum. Large operands take two steps: runs of
    /// [`MAX_RUN`] elements, and then one run of their maxima.
    pub unsafe fn maxima(n: u64, run: u64, x: &[f32], write maxima: &mut [f32])
    where n == x.len() as u64 && run > 0 && maxima.len() as u64 == n.div_ceil(run)
    {
        descriptor: MAXIMA,
        ptx_from_sm_60: PTX,
        cpu: |_, run, x, maxima| {
            let runs = x.chunks(usize::try_from(run).unwrap_or(usize::MAX));
            maxima.iter_mut().zip(runs).for_each(|(max, x)| *max = maximum(x));
        },
    }

    /// Finds the largest element of each line: values\[o, i\] ← the largest of x\[o, k, i\], and
    /// indices\[o, i\] ← the first k that holds it.
    ///
    /// `x` is `outer` × `n` × `inner`, row-major. The first NaN counts as larger than everything.
    /// With `n` = 0 the value is −∞ and the index 0.
    pub unsafe fn max_dim(
        outer: u64, n: u64, inner: u64, x: &[f32], write values: &mut [f32], write indices: &mut [i64]
    )
    where outer.saturating_mul(n).saturating_mul(inner) == x.len() as u64
        && outer.saturating_mul(inner) == values.len() as u64
        && values.len() == indices.len()
    {
        descriptor: MAX_DIM,
        ptx_from_sm_60: PTX,
        cpu: |_, n, inner, x, values, indices| {
            values.fill(f32::NEG_INFINITY);
            indices.fill(0);
            if x.is_empty() {
                return;
            }
            let (n, inner) = (size(n), size(inner));
            let lines = values.chunks_exact_mut(inner).zip(indices.chunks_exact_mut(inner));
            for (x, (values, indices)) in x.chunks_exact(n * inner).zip(lines) {
                if inner == 1 {
                    let at = largest(x);
                    (values[0], indices[0]) = (x[at], at as i64);
                } else {
                    columns(x, values, indices);
                }
            }
        },
    }
}

fn maximum(x: &[f32]) -> f32 {
    // A NaN is larger than everything, and stays.
    let larger = |a: f32, b: f32| if a.is_nan() || a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (blocks, rest) = x.as_chunks::<16>();
    for x in blocks.iter().map(|block| &block[..]).chain([rest]) {
        lanes.iter_mut().zip(x).for_each(|(max, &x)| *max = larger(*max, x));
    }
    // The sum makes +0 of −0, so that the bits do not depend on the order.
    lanes.into_iter().fold(f32::NEG_INFINITY, larger) + 0.0
}

/// Returns the index of the first NaN, or else of the first of the largest elements.
///
/// # Panics
/// Panics if there are no elements.
pub(crate) fn largest(x: &[f32]) -> usize {
    // Two passes, since the first one then takes many elements at a time.
    let max = maximum(x);
    let at = x.iter().position(|&x| x == max || (x.is_nan() && max.is_nan()));
    at.expect("the maximum is an element")
}

/// Finds the largest element of each column.
///
/// It walks the rows, so that memory is read in order.
fn columns(x: &[f32], values: &mut [f32], indices: &mut [i64]) {
    values.copy_from_slice(&x[..values.len()]);
    for (k, x) in x.chunks_exact(values.len()).enumerate().skip(1) {
        for ((max, index), &x) in values.iter_mut().zip(&mut *indices).zip(x) {
            if x > *max || (x.is_nan() && !max.is_nan()) {
                (*max, *index) = (x, k as i64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DIM, MAXIMA};
    use crate::twin::{read, run, value, written};

    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;

    fn maxima(run_len: u64, x: &[f32]) -> Vec<f32> {
        let mut maxima = vec![9.0f32; (x.len() as u64).div_ceil(run_len) as usize];
        run(&MAXIMA, &[value(x.len() as u64), value(run_len), read(x), written(&mut maxima)]);
        maxima
    }

    fn max_dim(outer: usize, n: usize, inner: usize, x: &[f32]) -> (Vec<f32>, Vec<i64>) {
        let (mut values, mut indices) = (vec![9.0f32; outer * inner], vec![9i64; outer * inner]);
        let sizes = [outer, n, inner].map(|n| value(n as u64));
        let slices = [read(x), written(&mut values), written(&mut indices)];
        run(&MAX_DIM, &sizes.into_iter().chain(slices).collect::<Vec<_>>());
        (values, indices)
    }

    #[test]
    fn the_largest_of_each_run_is_found_wherever_it_is() {
        for n in [1usize, 2, 15, 16, 17, 100] {
            for at in 0..n {
                let mut x: Vec<f32> = (0..n).map(|i| -1.0 - i as f32).collect();
                x[at] = 7.0;
                assert_eq!(maxima(u64::MAX, &x), [7.0]);
                let runs: Vec<f32> = x.chunks(6).map(|x| x.iter().copied().fold(-INF, f32::max)).collect();
                assert_eq!(maxima(6, &x), runs);
                x[at] = NAN;
                assert!(maxima(n as u64, &x)[0].is_nan());
            }
        }
    }

    #[test]
    fn zeros_give_plus_zero_and_nothing_gives_no_maximum() {
        for x in [[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0]] {
            assert_eq!(maxima(2, &x)[0].to_bits(), 0);
        }
        assert_eq!(maxima(1, &[-INF, INF]), [-INF, INF]);
        assert_eq!(maxima(5, &[]), []);
    }

    #[test]
    fn the_first_of_the_largest_of_a_line_wins_and_nan_beats_all() {
        let lines = [[1.0, 3.0, 3.0], [INF, NAN, NAN], [-INF; 3], [NAN, INF, 0.0], [-0.0, 0.0, -1.0]];
        let indices = [1, 1, 0, 0, 0];
        let rows: Vec<f32> = lines.concat();
        // The lines as columns, twice.
        let columns: Vec<f32> = (0..6).flat_map(|k| lines.map(|line| line[k % 3])).collect();
        let both = [max_dim(5, 3, 1, &rows), max_dim(2, 3, 5, &columns)];
        for ((values, found), times) in both.into_iter().zip([1, 2]) {
            assert_eq!(found, indices.repeat(times));
            for (i, value) in values.iter().enumerate() {
                assert_eq!(value.to_bits(), lines[i % 5][indices[i % 5] as usize].to_bits());
            }
        }
        assert_eq!(max_dim(2, 0, 1, &[]), (vec![-INF; 2], vec![0; 2]));
        assert_eq!(max_dim(0, 3, 2, &[]), (vec![], vec![]));
    }
}
