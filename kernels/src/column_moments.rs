//! The running mean and squared deviations of each matrix column, updated batch by batch.
//!
//! Reads 8 bytes per element (two passes) and moves 48 bytes per column.
//!
//! Let n values with mean m and M = Σ(x − m)² be merged already, and let the batch have k values
//! with mean m′ and M′. Then δ = m′ − m, m ← m + δ·k/(n + k), M ← M + M′ + δ²·n·k/(n + k). Source:
//! Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
//! Variances", Stanford STAN-CS-79-773, 1979. Unlike Σx² − n·m², this loses no digits if the mean
//! is large compared with the deviation.

use crate::columns::{TILE, accumulate};

warpline_runtime::kernel! {
    /// Merges a batch into the moments of each column.
    ///
    /// `means` holds the means, and `squares` the sums of squared deviations from the mean. `x` is
    /// row-major, `rows` × `cols`. `seen` counts the rows merged before, for each column, and
    /// `rows` is added to it. Where `seen` is 0, the contents of `means` and `squares` are
    /// overwritten. The batch's moments are computed in f64 in two passes, in row order.
    pub unsafe fn column_moments(
        rows: u64, cols: u64, x: &[f32], seen: &mut [u64], means: &mut [f64], squares: &mut [f64]
    )
    where rows.saturating_mul(cols) == x.len() as u64
        && cols == seen.len() as u64
        && cols == means.len() as u64
        && cols == squares.len() as u64
    {
        descriptor: COLUMN_MOMENTS,
        ptx_from_sm_60: include_str!("../ptx/column_moments.ptx"),
        cpu: |rows, _, x, seen, means, squares| merge(rows, x, seen, means, squares),
    }
}

fn merge(rows: u64, x: &[f32], seen: &mut [u64], means: &mut [f64], squares: &mut [f64]) {
    for (&seen, (mean, square)) in seen.iter().zip(means.iter_mut().zip(&mut *squares)) {
        if seen == 0 {
            (*mean, *square) = (0.0, 0.0);
        }
    }
    if rows == 0 {
        return;
    }
    let cols = means.len();
    let count = rows as f64;
    let tiles = seen.chunks_mut(TILE).zip(means.chunks_mut(TILE).zip(squares.chunks_mut(TILE)));
    for (tile, (seen, (means, squares))) in tiles.enumerate() {
        let (mut batch_means, mut deviations, mut batch_squares) = ([0.0; TILE], [0.0; TILE], [0.0; TILE]);
        let width = means.len();
        accumulate(x, cols, tile * TILE, &mut batch_means[..width], |_, x| x);
        batch_means.iter_mut().for_each(|sum| *sum /= count);
        // `deviations` collects what the rounding of the mean leaves over. Its square divided by n
        // is subtracted below (the "corrected two-pass algorithm" of the same report).
        accumulate(x, cols, tile * TILE, &mut batch_squares[..width], |i, x| {
            let deviation = x - batch_means[i];
            deviations[i] += deviation;
            deviation * deviation
        });
        for i in 0..width {
            let batch_square = batch_squares[i] - deviations[i] * deviations[i] / count;
            let delta = batch_means[i] - means[i];
            let before = seen[i] as f64;
            let share = count / (before + count);
            means[i] += delta * share;
            squares[i] += batch_square + delta * delta * (before * share);
            seen[i] += rows;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::COLUMN_MOMENTS;
    use crate::twin::{read, run, value, written};

    struct Moments {
        means: Vec<f64>,
        squares: Vec<f64>,
    }

    fn moments(cols: u32, x: &[f32], batches: &[u32]) -> Moments {
        let (mut means, mut squares) = (vec![f64::NAN; cols as usize], vec![f64::NAN; cols as usize]);
        let mut seen = vec![0u64; cols as usize];
        let mut rest = x;
        for &rows in batches {
            let batch;
            (batch, rest) = rest.split_at(rows as usize * cols as usize);
            let sizes = [value(u64::from(rows)), value(u64::from(cols))];
            let state = [written(&mut seen), written(&mut means), written(&mut squares)];
            let given: Vec<_> = sizes.into_iter().chain([read(batch)]).chain(state).collect();
            run(&COLUMN_MOMENTS, &given);
        }
        assert_eq!(seen, vec![u64::from(batches.iter().sum::<u32>()); cols as usize]);
        Moments { means, squares }
    }

    fn matrix(rows: u32, cols: u32, shift: f32) -> Vec<f32> {
        (0..rows * cols)
            .map(|i| shift + (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32)
            .collect()
    }

    fn assert_close(cols: u32, x: &[f32], got: &Moments) {
        for c in 0..cols as usize {
            let column: Vec<f64> = x.iter().skip(c).step_by(cols as usize).map(|&x| f64::from(x)).collect();
            let mean = column.iter().sum::<f64>() / column.len() as f64;
            let squares: f64 = column.iter().map(|x| (x - mean).powi(2)).sum();
            assert!((got.means[c] - mean).abs() <= 1e-14 * mean.abs().max(1.0), "{} {mean}", got.means[c]);
            assert!((got.squares[c] - squares).abs() <= 1e-9 * squares, "{} {squares}", got.squares[c]);
        }
    }

    #[test]
    fn batches_give_the_moments_of_the_whole() {
        for (cols, batches) in
            [(1, &[1u32][..]), (65, &[128, 128, 1, 0, 77]), (32, &[0, 3]), (33, &[5, 1000]), (3, &[1; 50])]
        {
            let x = matrix(batches.iter().sum(), cols, -0.3);
            assert_close(cols, &x, &moments(cols, &x, batches));
        }
    }

    #[test]
    fn a_large_mean_costs_no_digits() {
        let x = matrix(4000, 2, 1e4);
        assert_close(2, &x, &moments(2, &x, &[1000; 4]));
    }

    #[test]
    fn a_constant_column_has_no_deviation() {
        let got = moments(2, &[0.1; 14], &[3, 4]);
        assert_eq!(got.squares, [0.0, 0.0]);
        assert!((got.means[0] - f64::from(0.1f32)).abs() < 1e-16);
    }

    #[test]
    fn nothing_seen_and_nothing_merged_is_zero() {
        let got = moments(3, &[], &[0]);
        assert_eq!((got.means, got.squares), (vec![0.0; 3], vec![0.0; 3]));
    }

    #[test]
    fn nan_stays_in_its_column() {
        let got = moments(2, &[1.0, f32::NAN, 3.0, 1.0], &[2]);
        assert_eq!((got.means[0], got.squares[0]), (2.0, 2.0));
        assert!(got.means[1].is_nan() && got.squares[1].is_nan());
    }
}
