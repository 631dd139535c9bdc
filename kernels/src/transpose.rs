//! A matrix with its rows as columns.
//!
//! Reads 4 bytes and writes 4 bytes an element of f32, twice that of i64.

const SM_60: &str = include_str!("../ptx/sm_60/transpose.ptx");
const SM_70: &str = include_str!("../ptx/sm_70/transpose.ptx");

warpline_runtime::kernel! {
    /// y\[c, r\] ← x\[r, c\], with `x` of `rows` × `cols`, both row-major and dense.
    pub unsafe fn transpose(rows: u64, cols: u64, x: &[f32], write y: &mut [f32])
    where rows.saturating_mul(cols) == x.len() as u64 && x.len() == y.len()
    {
        descriptor: TRANSPOSE,
        ptx: [SM_60, SM_70],
        cpu: |rows, cols, x, y| transposed(rows as usize, cols as usize, x, y),
    }

    /// As [`transpose`](fn@transpose).
    pub unsafe fn transpose_i64(rows: u64, cols: u64, x: &[i64], write y: &mut [i64])
    where rows.saturating_mul(cols) == x.len() as u64 && x.len() == y.len()
    {
        descriptor: TRANSPOSE_I64,
        ptx: [SM_60, SM_70],
        cpu: |rows, cols, x, y| transposed(rows as usize, cols as usize, x, y),
    }
}

/// Tiles of so many rows and columns: a tile's lines of both matrices stay in the first-level cache.
const TILE: usize = 16;

fn transposed<T: Copy>(rows: usize, cols: usize, x: &[T], y: &mut [T]) {
    // One of the sizes is 0 then, and the other may be anything.
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
