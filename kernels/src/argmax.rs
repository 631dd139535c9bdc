//! The index of the largest element of each row of a matrix.
//!
//! Reads 4 bytes per element and writes 8 bytes per row.

use crate::convert::size;
use crate::max::largest;

warpline_runtime::kernel! {
    /// Finds the largest element of each row: indices\[r\] ← the first column that holds the
    /// largest element of row `r`.
    ///
    /// `x` is a row-major `rows` × `cols` matrix. The first NaN counts as larger than everything.
    /// The index is 0 if there are no columns.
    pub unsafe fn argmax(rows: u64, cols: u64, x: &[f32], write indices: &mut [i64])
    where rows.saturating_mul(cols) == x.len() as u64 && rows == indices.len() as u64
    {
        descriptor: ARGMAX,
        ptx_from_sm_60: include_str!("../ptx/argmax.ptx"),
        cpu: |_, cols, x, indices| {
            indices.fill(0);
            if cols > 0 {
                x.chunks_exact(size(cols)).zip(indices).for_each(|(row, index)| *index = largest(row) as i64);
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::ARGMAX;
    use crate::twin::{read, run, value, written};

    fn argmax(cols: usize, x: &[f32]) -> Vec<i64> {
        let rows = x.len().checked_div(cols).unwrap_or(2);
        let mut indices = vec![-1i64; rows];
        run(&ARGMAX, &[value(rows as u64), value(cols as u64), read(x), written(&mut indices)]);
        indices
    }

    #[test]
    fn the_first_of_the_largest_wins_and_nan_beats_all() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let x = [1.0, 3.0, 3.0, inf, nan, nan, -inf, -inf, -inf, nan, inf, 0.0, -0.0, 0.0, -1.0];
        assert_eq!(argmax(3, &x), [1, 1, 0, 0, 0]);
        assert_eq!(argmax(1, &[nan, 2.0]), [0, 0]);
        assert_eq!(argmax(0, &[]), [0, 0]);
    }
}
