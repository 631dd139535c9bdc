//! The standardization of each matrix column, x ← (x − mean) / deviation.
//!
//! Reads 4 bytes and writes 4 bytes per element, and reads 8 bytes per column.

warpline_runtime::kernel! {
    /// Computes x\[r, c\] ← (x\[r, c\] − mean\[c\]) / deviation\[c\] in the row-major `rows` ×
    /// `cols` matrix `x`.
    ///
    /// The difference is rounded, then the quotient. A deviation of 0 gives infinities and NaN;
    /// [`column_scales`](crate::column_scales()) never makes one.
    pub unsafe fn standardize(rows: u64, cols: u64, mean: &[f32], deviation: &[f32], x: &mut [f32])
    where rows.saturating_mul(cols) == x.len() as u64
        && cols == mean.len() as u64
        && cols == deviation.len() as u64
    {
        descriptor: STANDARDIZE,
        ptx_from_sm_60: include_str!("../ptx/standardize.ptx"),
        cpu: |_, _, mean, deviation, x| {
            for row in x.chunks_exact_mut(mean.len().max(1)) {
                for ((x, mean), deviation) in row.iter_mut().zip(mean).zip(deviation) {
                    *x = (*x - mean) / deviation;
                }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::STANDARDIZE;
    use crate::twin::{read, run, value, written};

    #[test]
    fn agrees_with_the_formula() {
        for (rows, cols) in [(0, 0), (0, 4), (4, 0), (1, 1), (9, 65), (100, 7)] {
            let mean: Vec<f32> = (0..cols).map(|c| c as f32 / 7.0).collect();
            let deviation: Vec<f32> = (0..cols).map(|c| 1.0 + c as f32).collect();
            let mut x: Vec<f32> = (0..rows * cols).map(|i| (i as f32).sin()).collect();
            let mut expected = x.clone();
            for (i, x) in expected.iter_mut().enumerate() {
                let c = i % cols as usize;
                *x = (*x - mean[c]) / deviation[c];
            }
            run(
                &STANDARDIZE,
                &[value::<u64>(rows), value::<u64>(cols), read(&mean), read(&deviation), written(&mut x)],
            );
            assert_eq!(x, expected);
        }
    }

    #[test]
    fn nan_stays_where_it_is() {
        let mut x = [1.0, f32::NAN, 3.0, f32::INFINITY];
        run(
            &STANDARDIZE,
            &[value(2u64), value(2u64), read(&[1.0f32, 0.0]), read(&[2.0f32, 1.0]), written(&mut x)],
        );
        assert!(x[0] == 0.0 && x[1].is_nan() && x[2] == 1.0 && x[3] == f32::INFINITY);
    }
}
