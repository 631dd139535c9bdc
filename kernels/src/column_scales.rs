//! The mean and standard deviation of each column in f32, computed from accumulated moments.
//!
//! Reads 24 bytes and writes 8 bytes per column.

use crate::convert::rounded;

warpline_runtime::kernel! {
    /// Computes mean\[c\] ← means\[c\] and deviation\[c\] ← √(squares\[c\] / seen\[c\]), rounded
    /// to f32.
    ///
    /// [`column_moments`](crate::column_moments()) accumulated the moments over seen\[c\] rows.
    /// [`standardize`](crate::standardize()) takes the results.
    ///
    /// The deviation is the population's (divided by n). A deviation of 0, that of a constant
    /// column, becomes 1, so that standardizing the column gives 0 (as in scikit-learn's
    /// `StandardScaler`). The deviation of columns without rows is also 1. All slices have
    /// `cols` elements.
    pub unsafe fn column_scales(
        cols: u64,
        seen: &[u64],
        means: &[f64],
        squares: &[f64],
        write mean: &mut [f32],
        write deviation: &mut [f32]
    )
    where cols == seen.len() as u64
        && cols == means.len() as u64
        && cols == squares.len() as u64
        && cols == mean.len() as u64
        && cols == deviation.len() as u64
    {
        descriptor: COLUMN_SCALES,
        ptx_from_sm_60: include_str!("../ptx/column_scales.ptx"),
        cpu: |_, seen, means, squares, mean, deviation| {
            mean.iter_mut().zip(means).for_each(|(to, &mean)| *to = rounded(mean));
            for ((to, &squares), &seen) in deviation.iter_mut().zip(squares).zip(seen) {
                *to = deviation_of(squares, seen);
            }
        },
    }
}

#[inline]
fn deviation_of(squares: f64, seen: u64) -> f32 {
    let deviation = rounded((squares / seen.max(1) as f64).sqrt());
    if deviation == 0.0 { 1.0 } else { deviation }
}

#[cfg(test)]
mod tests {
    use super::COLUMN_SCALES;
    use crate::twin::{read, run, value, written};

    fn scales(seen: u64, means: &[f64], squares: &[f64]) -> (Vec<f32>, Vec<f32>) {
        let cols = means.len();
        let seen = vec![seen; cols];
        let (mut mean, mut deviation) = (vec![9.0; cols], vec![9.0; cols]);
        run(
            &COLUMN_SCALES,
            &[
                value(cols as u64),
                read(&seen),
                read(means),
                read(squares),
                written(&mut mean),
                written(&mut deviation),
            ],
        );
        (mean, deviation)
    }

    #[test]
    fn the_deviation_is_the_root_of_the_mean_square() {
        assert_eq!(scales(4, &[0.1, -2.0], &[1.0, 64.0]), (vec![0.1, -2.0], vec![0.5, 4.0]));
        assert_eq!(scales(1, &[], &[]), (vec![], vec![]));
    }

    #[test]
    fn constant_and_empty_columns_are_divided_by_one() {
        assert_eq!(scales(10, &[3.0], &[0.0]), (vec![3.0], vec![1.0]));
        assert_eq!(scales(0, &[0.0], &[0.0]), (vec![0.0], vec![1.0]));
    }

    #[test]
    fn nan_passes() {
        let (mean, deviation) = scales(10, &[f64::NAN], &[f64::NAN]);
        assert!(mean[0].is_nan() && deviation[0].is_nan());
    }
}
