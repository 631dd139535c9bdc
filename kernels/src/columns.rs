//! Walks the columns of a row-major matrix, one tile of neighbouring columns at a time.

/// Columns per tile: two cache lines of f32, with f64 accumulators that stay in registers or the L1
/// cache.
pub(crate) const TILE: usize = 32;

/// Adds `term(column in the tile, value)` to the tile's accumulators for each value, row after row.
#[inline]
pub(crate) fn accumulate(
    x: &[f32],
    cols: usize,
    first: usize,
    sums: &mut [f64],
    mut term: impl FnMut(usize, f64) -> f64,
) {
    for row in x.chunks_exact(cols) {
        for (i, (sum, &x)) in sums.iter_mut().zip(&row[first..]).enumerate() {
            *sum += term(i, f64::from(x));
        }
    }
}
