//! Rows with mean 0 and variance 1, times a weight plus a bias per column.
//!
//! Reads 12 bytes (three passes) and writes 4 bytes per element.
//!
//! For a row x of n elements, with mean μ = Σ x / n and variance σ² = Σ (x − μ)² / n, y = (x − μ) /
//! √(σ² + eps) · weight + bias (Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450; eps
//! as in `torch.nn.functional.layer_norm`).

use crate::convert::{rounded, size};
use crate::threads::share_out;

/// The least number of elements per thread: about 1 ms on one core.
const MANY: usize = 1 << 19;

warpline_runtime::kernel! {
    /// Computes y\[r, c\] ← (x\[r, c\] − μ\[r\]) / √(σ²\[r\] + eps) · weight\[c\] + bias\[c\].
    ///
    /// `x` and `y` are row-major, `rows` × `cols`. The mean μ and the biased variance σ² of a row
    /// are computed in f64, in an order that is fixed for each kind of device. The quotient is
    /// computed in f64 too, and rounded to f32 before the product with the weight.
    pub unsafe fn layer_norm(
        rows: u64, cols: u64, eps: f32, x: &[f32], weight: &[f32], bias: &[f32], write y: &mut [f32]
    )
    where rows.saturating_mul(cols) == x.len() as u64
        && cols == weight.len() as u64
        && cols == bias.len() as u64
        && x.len() == y.len()
    {
        descriptor: LAYER_NORM,
        tolerance: 1e-6,
        ptx_from_sm_60: include_str!("../ptx/layer_norm.ptx"),
        cpu: |_, cols, eps, x, weight, bias, y| normalized(size(cols), f64::from(eps), x, weight, bias, y),
    }
}

fn normalized(cols: usize, eps: f64, x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    share_out(y, cols, MANY.div_ceil(cols), |start, y| {
        for (y, x) in y.chunks_exact_mut(cols).zip(x[start..].chunks_exact(cols)) {
            let mean = sum(x, |x| x) / cols as f64;
            let variance = sum(x, |x| (x - mean) * (x - mean)) / cols as f64;
            let scale = 1.0 / (variance + eps).sqrt();
            for (((y, &x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                *y = rounded((f64::from(x) - mean) * scale) * weight + bias;
            }
        }
    });
}

/// Returns Σ f(x).
///
/// An addition waits for the one before it, so eight sums advance side by side.
fn sum(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0; 8];
    for x in x.chunks(8) {
        lanes.iter_mut().zip(x).for_each(|(sum, &x)| *sum += f(f64::from(x)));
    }
    lanes.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::LAYER_NORM;
    use crate::twin::{read, run, value, written};

    fn layer_norm(cols: usize, eps: f32, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        let mut y = vec![9.0f32; x.len()];
        let rows = x.len().checked_div(cols).unwrap_or(3);
        let sizes = [value(rows as u64), value(cols as u64), value(eps)];
        let slices = [read(x), read(weight), read(bias), written(&mut y)];
        run(&LAYER_NORM, &sizes.into_iter().chain(slices).collect::<Vec<_>>());
        y
    }

    #[test]
    fn agrees_with_the_formula_in_f64() {
        for (rows, cols) in [(1, 1), (5, 3), (4, 64), (3, 1000), (1300, 900)] {
            let x: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.7).sin() * 3.0 + 100.0).collect();
            let weight: Vec<f32> = (0..cols).map(|i| 1.0 + i as f32 / 8.0).collect();
            let bias: Vec<f32> = (0..cols).map(|i| i as f32 - 2.0).collect();
            let y = layer_norm(cols, 1e-5, &x, &weight, &bias);
            for (x, y) in x.chunks(cols).zip(y.chunks(cols)) {
                let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                let mean = x.iter().sum::<f64>() / cols as f64;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
                for c in 0..cols {
                    let scaled =
                        (x[c] - mean) / (variance + f64::from(1e-5f32)).sqrt() * f64::from(weight[c]);
                    let exact = scaled + f64::from(bias[c]);
                    let allowed = f64::from(f32::EPSILON) * (scaled.abs() + exact.abs() + 1e-6);
                    assert!((f64::from(y[c]) - exact).abs() <= allowed, "{rows} {cols}: {} {exact}", y[c]);
                }
            }
        }
    }

    #[test]
    fn equal_elements_give_the_bias_and_nan_spoils_its_row_alone() {
        assert_eq!(layer_norm(3, 1e-5, &[7.0; 3], &[2.0; 3], &[1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]);
        let y = layer_norm(2, 0.0, &[1.0, f32::NAN, 3.0, 5.0, f32::INFINITY, 0.0], &[1.0; 2], &[0.0; 2]);
        assert!(y[0].is_nan() && y[1].is_nan() && y[4].is_nan() && y[5].is_nan());
        assert_eq!(y[2..4], [-1.0, 1.0]);
        assert_eq!(layer_norm(0, 1.0, &[], &[], &[]), []);
    }
}
