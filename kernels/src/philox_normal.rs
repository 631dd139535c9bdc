//! Normally distributed random numbers from Philox4x32-10 and the Box–Muller transform.
//!
//! Writes 4 bytes per element.
//!
//! Source: Box and Muller, "A Note on the Generation of Random Normal Deviates", Ann. Math. Stat.
//! 29(2), 1958, in the form of cuRAND's `curand_normal4`. Words 0 and 1 of a block make its
//! elements 0 and 1, and words 2 and 3 make its other two elements. For words x and y, let u =
//! x·2⁻³² + 2⁻³³ and v = y·2π·2⁻³² + π·2⁻³², all in f32. The elements are √(−2·ln u)·sin v, then
//! √(−2·ln u)·cos v.

use crate::philox::{fill, unit};

warpline_runtime::kernel! {
    /// Computes y ← mean + deviation·z, with z standard normal like the numbers of
    /// `curand_normal4`.
    ///
    /// `y` has `n` elements. Element i is at position offset + i in the subsequence of cuRAND's
    /// Philox4x32-10 with this seed. That is number (offset + i) mod 4 of the four numbers of the
    /// block with counter ((offset + i) div 4, subsequence). So the element does not depend on the
    /// number of threads. A fill of n elements equals a fill of k and a fill of n − k at offset +
    /// k.
    ///
    /// The words are exactly cuRAND's. Each device has its own logarithm, sine and cosine, so
    /// devices differ in the last bits.
    pub unsafe fn philox_normal(
        n: u64, seed: u64, subsequence: u64, offset: u64, mean: f32, deviation: f32, write y: &mut [f32]
    )
    where n == y.len() as u64
    {
        descriptor: PHILOX_NORMAL,
        tolerance: 1e-6,
        ptx_from_sm_60: include_str!("../ptx/philox_normal.ptx"),
        cpu: |_, seed, subsequence, offset, mean, deviation, y| {
            fill(seed, subsequence, offset, y, |[a, b, c, d]| {
                let ([a, b], [c, d]) = (box_muller(a, b), box_muller(c, d));
                [a, b, c, d].map(|z| mean + deviation * z)
            })
        },
    }
}

#[inline]
fn box_muller(x: u32, y: u32) -> [f32; 2] {
    const ANGLE: f32 = std::f32::consts::TAU / 4_294_967_296.0;
    let radius = (-2.0 * unit(x).ln()).sqrt();
    let (sin, cos) = (y as f32 * ANGLE + ANGLE / 2.0).sin_cos();
    [radius * sin, radius * cos]
}

#[cfg(test)]
mod tests {
    use super::{PHILOX_NORMAL, box_muller};
    use crate::philox::philox4x32_10;
    use crate::twin::{run, value, written};

    fn normal(n: usize, seed: u64, offset: u64, mean: f32, deviation: f32) -> Vec<f32> {
        let mut y = vec![f32::NAN; n];
        run(
            &PHILOX_NORMAL,
            &[
                value(n as u64),
                value(seed),
                value(0u64),
                value(offset),
                value(mean),
                value(deviation),
                written(&mut y),
            ],
        );
        y
    }

    #[test]
    fn elements_are_pairs_of_the_words_of_the_counters() {
        for n in [0, 1, 3, 4, 5, 102] {
            let expected: Vec<f32> = (0..n)
                .map(|i| {
                    let words = philox4x32_10([i as u32 / 4, 0, 0, 0], [7, 1]);
                    let pair = i % 4 / 2 * 2;
                    box_muller(words[pair], words[pair + 1])[i % 2]
                })
                .collect();
            assert_eq!(normal(n, (1 << 32) | 7, 0, 0.0, 1.0), expected);
        }
    }

    #[test]
    fn the_transform_agrees_with_f64_and_is_finite_at_the_ends() {
        for x in [0, 1, 77, 1 << 20, 1 << 31, u32::MAX - 300, u32::MAX] {
            for y in [0, 1, 1 << 29, 1 << 30, 1 << 31, 3 << 30, u32::MAX] {
                let [sin, cos] = box_muller(x, y);
                // The words are rounded to f32 as in the transform; the rest is f64.
                let u = f64::from(x as f32) * 2f64.powi(-32) + 2f64.powi(-33);
                let v = (f64::from(y as f32) + 0.5) * std::f64::consts::TAU * 2f64.powi(-32);
                let radius = (-2.0 * u.min(1.0).ln()).sqrt();
                assert!(sin.is_finite() && cos.is_finite());
                assert!((f64::from(sin) - radius * v.sin()).abs() < 1e-5, "{x} {y}: {sin}");
                assert!((f64::from(cos) - radius * v.cos()).abs() < 1e-5, "{x} {y}: {cos}");
            }
        }
    }

    #[test]
    fn parts_are_those_of_the_whole() {
        let whole = normal(50, 9, 0, 1.0, 2.0);
        for k in 0..50 {
            assert_eq!(normal(50 - k, 9, k as u64, 1.0, 2.0), whole[k..]);
        }
    }

    #[test]
    fn the_first_four_moments_are_those_of_the_distribution() {
        let n = 1_000_000;
        let z = normal(n, 2026, 0, 0.0, 1.0);
        let moment = |k| z.iter().map(|&z| f64::from(z).powi(k)).sum::<f64>() / n as f64;
        // Five standard errors: √(1, 2, 15, 96 / n).
        for (k, expected, error) in [(1, 0.0, 0.005), (2, 1.0, 0.0071), (3, 0.0, 0.0194), (4, 3.0, 0.049)] {
            assert!((moment(k) - expected).abs() < error, "moment {k} is {}", moment(k));
        }
    }
}
