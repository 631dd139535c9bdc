//! The mean of all elements.
//!
//! Reads 4 bytes per element and writes 4 bytes.

use crate::sum::sum_of;

warpline_runtime::kernel! {
    /// Computes mean\[0\] ← the sum of the `n` elements of `x` divided by `n`; NaN if there are
    /// none.
    ///
    /// The elements are added in the order of [`sum`](fn@crate::sum).
    pub unsafe fn mean(n: u64, x: &[f32], write mean: &mut [f32])
    where n == x.len() as u64 && mean.len() == 1
    {
        descriptor: MEAN,
        ptx_from_sm_60: include_str!("../ptx/mean.ptx"),
        cpu: |n, x, mean| mean[0] = sum_of(x) / n as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::MEAN;
    use crate::twin::{read, run, value, written};

    #[test]
    fn is_the_sum_over_the_number_and_nan_of_nothing() {
        for (x, expected) in [(&[1.0, 2.0, 6.0][..], 3.0), (&[f32::INFINITY], f32::INFINITY), (&[], f32::NAN)]
        {
            let mut mean = [9.0f32];
            run(&MEAN, &[value(x.len() as u64), read(x), written(&mut mean)]);
            assert_eq!(mean[0].to_bits() & 0x7fff_ffff, expected.to_bits() & 0x7fff_ffff);
        }
    }
}
