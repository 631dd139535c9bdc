//! The running mean and squared deviations of each matrix column, updated batch by batch.
//!
//! Reads 8 bytes per element (two passes) and moves 32 bytes per column.
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
    /// row-major, `rows` × `cols`. `seen` counts the rows merged before. If `seen` is 0, the
    /// contents of `means` and `squares` are overwritten. The batch's moments are computed in f64
    /// in two passes, in row order.
    pub unsafe fn column_moments(
        rows: u32, cols: u32, seen: u64, x: &[f32], means: &mut [f64], squares: &mut [f64]
    )
    where u64::from(rows) * u64::from(cols) <= x.len() as u64
        && cols as usize <= means.len()
        && cols as usize <= squares.len()
    {
        descriptor: COLUMN_MOMENTS,
        ptx_from_sm_60: include_str!("../ptx/column_moments.ptx"),
        cpu: |rows, cols, seen, x, means, squares| {
            let (rows, cols) = (rows as usize, cols as usize);
            merge(rows, seen, &x[..rows * cols], &mut means[..cols], &mut squares[..cols])
        },
    }
}

fn merge(rows: usize, seen: u64, x: &[f32], means: &mut [f64], squares: &mut [f64]) {
    if seen == 0 {
        means.fill(0.0);
        squares.fill(0.0);
    }
    if rows == 0 {
        return;
    }
    let cols = means.len();
    let (count, seen) = (rows as f64, seen as f64);
    let total = seen + count;
    for (tile, (means, squares)) in means.chunks_mut(TILE).zip(squares.chunks_mut(TILE)).enumerate() {
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
            means[i] += delta * (count / total);
            squares[i] += batch_square + delta * delta * (seen * (count / total));
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
        let mut seen = 0;
        for &rows in batches {
            let x = &x[seen as usize * cols as usize..];
            run(
                &COLUMN_MOMENTS,
                &[value(rows), value(cols), value(seen), read(x), written(&mut means), written(&mut squares)],
            );
            seen += u64::from(rows);
        }
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
