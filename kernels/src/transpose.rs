//! The transpose of a matrix, whose rows become columns.
//!
//! Reads 4 bytes and writes 4 bytes per f32 element, and twice as many per i64 element.

use crate::convert::size;

const PTX: &str = include_str!("../ptx/transpose.ptx");

warpline_runtime::kernel! {
    /// Computes y\[c, r\] ← x\[r, c\], with `x` of `rows` × `cols`, both row-major and dense.
    pub unsafe fn transpose(rows: u64, cols: u64, x: &[f32], write y: &mut [f32])
    where rows.saturating_mul(cols) == x.len() as u64 && x.len() == y.len()
    {
        descriptor: TRANSPOSE,
        ptx_from_sm_60: PTX,
        cpu: |rows, cols, x, y| transposed(size(rows), size(cols), x, y),
    }

    /// Transposes a matrix of i64, like [`transpose`](fn@transpose).
    pub unsafe fn transpose_i64(rows: u64, cols: u64, x: &[i64], write y: &mut [i64])
    where rows.saturating_mul(cols) == x.len() as u64 && x.len() == y.len()
    {
        descriptor: TRANSPOSE_I64,
        ptx_from_sm_60: PTX,
        cpu: |rows, cols, x, y| transposed(size(rows), size(cols), x, y),
    }
}

/// Rows and columns per tile: a tile's cache lines of both matrices stay in the L1 cache.
const TILE: usize = 16;

fn transposed<T: Copy>(rows: usize, cols: usize, x: &[T], y: &mut [T]) {
    // One of the sizes is 0 here, and the other may be any number.
    if y.is_empty() {
        return;
    }
    for top in (0..rows).step_by(TILE) {
        for left in (0..cols).step_by(TILE) {
            let bottom = rows.min(top + TILE);
            for c in left..cols.min(left + TILE) {
                let column = &mut y[c * rows + top..c * rows + bottom];
                column.iter_mut().zip(top..bottom).for_each(|(y, r)| *y = x[r * cols + c]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TRANSPOSE_I64;
    use crate::twin::{read, run, value, written};

    #[test]
    fn every_element_is_where_it_belongs() {
        for (rows, cols) in
            [(0usize, 0usize), (0, 3), (usize::MAX, 0), (1, 1), (1, 40), (16, 32), (33, 17), (50, 3)]
        {
            let x: Vec<i64> = (0..(rows * cols) as i64).collect();
            let mut y = vec![-1i64; x.len()];
            run(&TRANSPOSE_I64, &[value(rows as u64), value(cols as u64), read(&x), written(&mut y)]);
            assert!((0..y.len()).all(|i| y[i] as usize == i % rows * cols + i / rows), "{rows} {cols}");
        }
    }
}
