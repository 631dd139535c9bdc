//! The sum of each column of a matrix.
//!
//! Reads 4 bytes per element and writes 4 bytes per column.

use crate::columns::{TILE, accumulate};
use crate::convert::rounded;

warpline_runtime::kernel! {
    /// Computes sums\[c\] ← the sum of column `c` of the row-major `rows` × `cols` matrix `x`.
    ///
    /// Each sum is accumulated in f64, in row order, and rounded once. `sums` has `cols` elements.
    pub unsafe fn column_sums(rows: u64, cols: u64, x: &[f32], write sums: &mut [f32])
    where rows.saturating_mul(cols) == x.len() as u64 && cols == sums.len() as u64
    {
        descriptor: COLUMN_SUMS,
        ptx_from_sm_60: include_str!("../ptx/column_sums.ptx"),
        cpu: |_, _, x, sums| sum_columns(x, sums),
    }
}

fn sum_columns(x: &[f32], sums: &mut [f32]) {
    let cols = sums.len();
    for (tile, sums) in sums.chunks_mut(TILE).enumerate() {
        let mut exact = [0.0; TILE];
        accumulate(x, cols, tile * TILE, &mut exact[..sums.len()], |_, x| x);
        sums.iter_mut().zip(exact).for_each(|(sum, exact)| *sum = rounded(exact));
    }
}

#[cfg(test)]
mod tests {
    use super::COLUMN_SUMS;
    use crate::twin::{read, run, value, written};

    fn sums(rows: u64, cols: u64, x: &[f32]) -> Vec<f32> {
        let mut sums = vec![f32::NAN; cols as usize];
        run(&COLUMN_SUMS, &[value(rows), value(cols), read(x), written(&mut sums)]);
        sums
    }

    #[test]
    fn agrees_with_a_sum_per_column() {
        for (rows, cols) in [(0, 0), (0, 3), (3, 0), (1, 1), (5, 65), (100, 32), (7, 33)] {
            let x: Vec<f32> = (0..rows * cols).map(|i| (i as f32).sqrt()).collect();
            let expected: Vec<f32> = (0..cols)
                .map(|c| (0..rows).map(|r| f64::from(x[(r * cols + c) as usize])).sum::<f64>() as f32)
                .collect();
            assert_eq!(sums(rows, cols, &x), expected);
        }
    }

    #[test]
    fn nan_stays_in_its_column() {
        let sums = sums(2, 3, &[1.0, f32::NAN, 3.0, 4.0, 5.0, f32::INFINITY]);
        assert!(sums[0] == 5.0 && sums[1].is_nan() && sums[2] == f32::INFINITY);
    }
}
