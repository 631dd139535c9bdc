//! Uniformly distributed random numbers from Philox4x32-10.
//!
//! Writes 4 bytes per element.

use crate::philox::{fill, unit};

warpline_runtime::kernel! {
    /// Computes y ← low + (high − low)·u, with u uniform in (0, 1] like the numbers of
    /// `curand_uniform`.
    ///
    /// `y` has `n` elements. Element i is made from word offset + i of the subsequence of cuRAND's
    /// Philox4x32-10 with this seed. That is word (offset + i) mod 4 of the block with counter
    /// ((offset + i) div 4, subsequence). The element is the same on every device and for any
    /// number of threads. A fill of n elements equals a fill of k and a fill of n − k at offset +
    /// k. Two rounded operations follow u, so an element of `y` may be `low`.
    pub unsafe fn philox_uniform(
        n: u64, seed: u64, subsequence: u64, offset: u64, low: f32, high: f32, write y: &mut [f32]
    )
    where n == y.len() as u64
    {
        descriptor: PHILOX_UNIFORM,
        ptx_from_sm_60: include_str!("../ptx/philox_uniform.ptx"),
        cpu: |_, seed, subsequence, offset, low, high, y| {
            fill(seed, subsequence, offset, y, |words| words.map(|x| low + (high - low) * unit(x)))
        },
    }
}

#[cfg(test)]
mod tests {
    use super::PHILOX_UNIFORM;
    use crate::philox::{philox4x32_10, unit};
    use crate::twin::{run, value, written};

    fn uniform(n: usize, offset: u64, low: f32, high: f32) -> Vec<f32> {
        let mut y = vec![f32::NAN; n];
        run(
            &PHILOX_UNIFORM,
            &[
                value(n as u64),
                value(42u64),
                value(3u64),
                value(offset),
                value(low),
                value(high),
                written(&mut y),
            ],
        );
        y
    }

    #[test]
    fn elements_are_the_words_of_the_counters() {
        for n in [0, 1, 3, 4, 5, 101] {
            let expected: Vec<f32> = (0..n)
                .map(|i| unit(philox4x32_10([((i + 2) / 4) as u32, 0, 3, 0], [42, 0])[(i + 2) % 4]))
                .collect();
            assert_eq!(uniform(n, 2, 0.0, 1.0), expected);
        }
    }

    #[test]
    fn mean_and_variance_are_those_of_the_distribution() {
        let n = 1_000_000;
        let y = uniform(n, 0, -1.0, 3.0);
        assert!(y.iter().all(|y| (-1.0..=3.0).contains(y)));
        let mean = y.iter().map(|&y| f64::from(y)).sum::<f64>() / n as f64;
        let variance = y.iter().map(|&y| (f64::from(y) - mean).powi(2)).sum::<f64>() / n as f64;
        // Five standard errors: of the mean √(4/3 / n), of the variance about √(64/45 / n).
        assert!((mean - 1.0).abs() < 0.006 && (variance - 4.0 / 3.0).abs() < 0.006, "{mean} {variance}");
    }
}
