//! The slices of an array along one dimension that a list of indices names.
//!
//! Reads 4 bytes and writes 4 bytes per element of the result, and reads 8 bytes per index.

use crate::convert::size;
use crate::threads::share_out;

/// The least number of elements per thread: about 1 ms on one core.
const MANY: usize = 1 << 20;

warpline_runtime::kernel! {
    /// Computes y\[o, j, i\] ← x\[o, indices\[j\], i\], or NaN if the index is outside 0..`n`.
    ///
    /// `x` is `outer` × `n` × `inner` and `y` is `outer` × `count` × `inner`, row-major.
    pub unsafe fn index_select(
        outer: u64, n: u64, inner: u64, count: u64, x: &[f32], indices: &[i64], write y: &mut [f32]
    )
    where outer.saturating_mul(n).saturating_mul(inner) == x.len() as u64
        && count == indices.len() as u64
        && outer.saturating_mul(count).saturating_mul(inner) == y.len() as u64
    {
        descriptor: INDEX_SELECT,
        ptx_from_sm_60: include_str!("../ptx/index_select.ptx"),
        cpu: |_, n, inner, _, x, indices, y| selected(size(n), size(inner), x, indices, y),
    }
}

fn selected(n: usize, inner: usize, x: &[f32], indices: &[i64], y: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    share_out(y, inner, MANY.div_ceil(inner), |start, y| {
        let line = start / inner;
        let mut outer = line / indices.len();
        let mut rest = indices[line % indices.len()..].iter();
        for y in y.chunks_exact_mut(inner) {
            let index = rest.next().or_else(|| {
                (outer, rest) = (outer + 1, indices.iter());
                rest.next()
            });
            match index.and_then(|&index| usize::try_from(index).ok()).filter(|&index| index < n) {
                // Without the call of a copy, if there is only one element.
                Some(index) if inner == 1 => y[0] = x[outer * n + index],
                Some(index) => y.copy_from_slice(&x[(outer * n + index) * inner..][..inner]),
                None => y.fill(f32::NAN),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{INDEX_SELECT, MANY};
    use crate::twin::{read, run, value, written};

    fn index_select(outer: usize, n: usize, inner: usize, x: &[f32], indices: &[i64]) -> Vec<f32> {
        let mut y = vec![9.0f32; outer * indices.len() * inner];
        let sizes = [outer, n, inner, indices.len()].map(|n| value(n as u64));
        let slices = [read(x), read(indices), written(&mut y)];
        run(&INDEX_SELECT, &sizes.into_iter().chain(slices).collect::<Vec<_>>());
        y
    }

    #[test]
    fn every_element_comes_from_its_index() {
        for [outer, n, inner, count] in [
            [1, 5, 1, 9],
            [4, 3, 7, 2],
            [1, 10, 100, 3],
            [3, 2, 1, 1],
            [0, 3, 2, 2],
            [2, 3, 0, 2],
            [2, 3, 4, 0],
        ] {
            let x: Vec<f32> = (0..outer * n * inner).map(|i| i as f32).collect();
            let indices: Vec<i64> = (0..count).map(|j| (j * 7 % n) as i64).collect();
            let y = index_select(outer, n, inner, &x, &indices);
            for (e, y) in y.iter().enumerate() {
                let (o, j, i) = (e / inner / count, e / inner % count, e % inner);
                assert_eq!(*y, x[(o * n + indices[j] as usize) * inner + i]);
            }
        }
    }

    #[test]
    fn every_part_of_a_large_result_is_computed() {
        let indices: Vec<i64> = (0..MANY as i64).map(|j| j % 3).collect();
        let y = index_select(2, 3, 1, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &indices);
        assert!(y.iter().enumerate().all(|(e, y)| *y == (e / MANY * 3 + e % MANY % 3) as f32));
    }

    #[test]
    fn an_index_out_of_range_gives_nan_in_its_slice_alone() {
        for index in [-1, 3, i64::MAX, i64::MIN] {
            let y = index_select(1, 3, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, index]);
            assert_eq!(y[..2], [5.0, 6.0]);
            assert!(y[2].is_nan() && y[3].is_nan());
        }
        assert!(index_select(1, 0, 2, &[], &[0]).iter().all(|y| y.is_nan()));
    }
}
