//! The softmax along one dimension.
//!
//! Reads 8 bytes (two passes) and writes 4 bytes per element.
//!
//! For the elements x of a line, y = exp(x − max x) / Σ exp(x − max x). Subtracting the maximum
//! keeps exp within range without changing the quotient (Goodfellow, Bengio and Courville, "Deep
//! Learning", MIT Press 2016, section 4.1).

use crate::convert::{rounded, size};
use crate::threads::share_out;

/// The least number of elements per thread: about 1 ms on one core.
const MANY: usize = 1 << 17;

warpline_runtime::kernel! {
    /// Computes y\[o, k, i\] ← exp(x\[o, k, i\]) / Σₖ exp(x\[o, k, i\]).
    ///
    /// `x` and `y` are `outer` × `n` × `inner`, row-major. exp is computed in f32 and the sum in
    /// f64, in an order that is fixed for each kind of device. A line with NaN or +∞, or of −∞
    /// alone, becomes NaN.
    pub unsafe fn softmax(outer: u64, n: u64, inner: u64, x: &[f32], write y: &mut [f32])
    where outer.saturating_mul(n).saturating_mul(inner) == x.len() as u64 && x.len() == y.len()
    {
        descriptor: SOFTMAX,
        tolerance: 1e-6,
        ptx_from_sm_60: include_str!("../ptx/softmax.ptx"),
        cpu: |_, n, inner, x, y| softmaxed(size(n), size(inner), x, y),
    }
}

fn softmaxed(n: usize, inner: usize, x: &[f32], y: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    let block = n * inner;
    share_out(y, block, MANY.div_ceil(block), |start, y| {
        for (y, x) in y.chunks_exact_mut(block).zip(x[start..].chunks_exact(block)) {
            if inner == 1 { row(x, y) } else { columns(inner, x, y) }
        }
    });
}

fn row(x: &[f32], y: &mut [f32]) {
    // The maximum ignores a NaN, which comes back through exp.
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - max).exp());
    let total = rounded(y.iter().map(|&y| f64::from(y)).sum());
    y.iter_mut().for_each(|y| *y /= total);
}

/// Computes the softmax of each of `inner` columns.
///
/// It walks the rows, so that memory is read in order.
fn columns(inner: usize, x: &[f32], y: &mut [f32]) {
    let mut max = vec![f32::NEG_INFINITY; inner];
    for x in x.chunks_exact(inner) {
        max.iter_mut().zip(x).for_each(|(max, &x)| *max = max.max(x));
    }
    let mut sums = vec![0.0f64; inner];
    for (y, x) in y.chunks_exact_mut(inner).zip(x.chunks_exact(inner)) {
        for (((y, x), max), sum) in y.iter_mut().zip(x).zip(&max).zip(&mut sums) {
            *y = (x - max).exp();
            *sum += f64::from(*y);
        }
    }
    for y in y.chunks_exact_mut(inner) {
        y.iter_mut().zip(&sums).for_each(|(y, &sum)| *y /= rounded(sum));
    }
}

#[cfg(test)]
mod tests {
    use super::SOFTMAX;
    use crate::twin::{read, run, value, written};

    fn softmax(outer: usize, n: usize, inner: usize, x: &[f32]) -> Vec<f32> {
        let mut y = vec![9.0f32; x.len()];
        let sizes = [outer, n, inner].map(|n| value(n as u64));
        run(&SOFTMAX, &sizes.into_iter().chain([read(x), written(&mut y)]).collect::<Vec<_>>());
        y
    }

    #[test]
    fn agrees_with_the_formula_in_f64_along_every_dimension() {
        for [outer, n, inner] in [[7, 10, 1], [3, 5, 4], [1, 9, 33], [2, 1, 3], [5000, 70, 1], [900, 20, 21]]
        {
            let x: Vec<f32> = (0..outer * n * inner).map(|i| (i as f32 * 1.7).sin() * 5.0).collect();
            let y = softmax(outer, n, inner, &x);
            for line in 0..outer * inner {
                let first = line / inner * n * inner + line % inner;
                let at = |k: usize| first + k * inner;
                let sum: f64 = (0..n).map(|k| f64::from(x[at(k)]).exp()).sum();
                for k in 0..n {
                    let exact = f64::from(x[at(k)]).exp() / sum;
                    // x − max is rounded at its size of up to 10.
                    assert!((f64::from(y[at(k)]) - exact).abs() <= 1e-6 * exact, "{outer} {n} {inner}");
                }
            }
        }
    }

    #[test]
    fn large_numbers_do_not_overflow_and_infinities_and_nan_make_nan() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for inner in [1, 2] {
            let of = |x: &[f32]| {
                let repeated: Vec<f32> = x.iter().flat_map(|&x| vec![x; inner]).collect();
                softmax(1, x.len(), inner, &repeated).into_iter().step_by(inner).collect::<Vec<_>>()
            };
            assert_eq!(of(&[3e38, -3e38, 3e38]), [0.5, 0.0, 0.5]);
            assert_eq!(of(&[-inf, 1.0]), [0.0, 1.0]);
            for x in [[nan, 1.0], [inf, 1.0], [-inf, -inf]] {
                assert!(of(&x).iter().all(|y| y.is_nan()), "{x:?}");
            }
        }
        assert_eq!(softmax(3, 0, 2, &[]), []);
        assert_eq!(softmax(0, 4, 1, &[]), []);
    }
}
