//! Elementwise functions of one f32 operand: exp, log, sqrt, tanh, sigmoid and gelu.
//!
//! Each kernel reads 4 bytes and writes 4 bytes per element.
//!
//! | kernel | formula | source |
//! |---|---|---|
//! | `sigmoid_f32` | 1 / (1 + exp(−x)) | the logistic function, as in `torch.sigmoid` |
//! | `gelu_f32` | x/2 · (1 + erf(x/√2)) | Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415, section 2; the default of `torch.nn.functional.gelu` |
//!
//! # Accuracy
//! A root is correctly rounded, so it has the same bits on every device. Each device has its own
//! exp, log, tanh and erf, so devices differ in the last bits. The errors in units in the last
//! place: on a GPU 2 for exp, tanh and erf, and 1 for log (CUDA C++ Programming Guide,
//! "Mathematical Functions"). The twins use the C library for exp and log, and the crate libm for
//! erf, each within 2. A sigmoid adds two roundings. The sum in a gelu cancels for negative x, as
//! in PyTorch: its absolute error is a few units in the last place of x.
//!
//! The names of the kernels end in the element type, because CUDA C++ has functions with the bare
//! names.

use crate::convert::rounded;
use crate::threads::share_out;

/// The least number of elements per thread: about 1 ms on one core.
const MANY: usize = 1 << 18;

/// Declares a kernel for each function. The arguments are the formula for the docs, the names,
/// the tolerance, and the function.
macro_rules! unary {
    ($($formula:literal $name:ident $descriptor:ident within $tolerance:literal: $function:expr;)*) => {
        warpline_runtime::kernel! {$(
            #[doc = concat!("Computes y ← ", $formula, " for each of `n` elements.")]
            pub unsafe fn $name(n: u64, x: &[f32], write y: &mut [f32])
            where n == x.len() as u64 && n == y.len() as u64
            {
                descriptor: $descriptor,
                tolerance: $tolerance,
                ptx_from_sm_60: include_str!("../ptx/unary.ptx"),
                cpu: |_, x, y| map(x, y, $function),
            }
        )*}
    };
}

unary! {
    "exp(x)" exp_f32 EXP_F32 within 1e-6: f32::exp;
    "the natural logarithm of x" log_f32 LOG_F32 within 1e-6: f32::ln;
    "√x" sqrt_f32 SQRT_F32 within 0.0: f32::sqrt;
    "tanh(x)" tanh_f32 TANH_F32 within 1e-6: tanh;
    "1 / (1 + exp(−x))" sigmoid_f32 SIGMOID_F32 within 1e-6: |x: f32| 1.0 / (1.0 + (-x).exp());
    "x/2 · (1 + erf(x/√2))" gelu_f32 GELU_F32 within 1e-6: |x: f32| {
        0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
    };
}

/// Returns tanh(x) = ±(1 − e) / (1 + e) with e = exp(−2·|x|), computed in f64.
///
/// The C library's `tanhf` took six times as long.
fn tanh(x: f32) -> f32 {
    // Here x − x³/3 rounds to x or to its neighbour, and the quotient would lose digits.
    if x.abs() < 1.0 / 4096.0 {
        return x;
    }
    let e = (-2.0 * f64::from(x.abs())).exp();
    rounded((1.0 - e) / (1.0 + e)).copysign(x)
}

fn map(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32 + Sync) {
    share_out(y, 1, MANY, |start, y| y.iter_mut().zip(&x[start..]).for_each(|(y, &x)| *y = f(x)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{read, run, value, written};
    use warpline_runtime::kernel::Kernel;

    fn applied(kernel: &Kernel, x: &[f32]) -> Vec<f32> {
        let mut y = vec![9.0; x.len()];
        run(kernel, &[value(x.len() as u64), read(x), written(&mut y)]);
        y
    }

    /// A kernel, its formula in f64, and the largest error as a fraction of the result and as a
    /// fraction of x.
    type Formula = (&'static Kernel, fn(f64) -> f64, [f64; 2]);

    const ULP: f64 = f32::EPSILON as f64;

    const FORMULAS: [Formula; 6] = [
        (&EXP_F32, f64::exp, [ULP, 0.0]),
        (&LOG_F32, f64::ln, [ULP, 0.0]),
        (&SQRT_F32, f64::sqrt, [ULP / 2.0, 0.0]),
        (&TANH_F32, f64::tanh, [ULP, 0.0]),
        (&SIGMOID_F32, |x| 1.0 / (1.0 + (-x).exp()), [3.0 * ULP, 0.0]),
        (
            &GELU_F32,
            |x| 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            [3.0 * ULP, 2.0 * ULP],
        ),
    ];

    #[test]
    fn agrees_with_the_formula_in_f64() {
        for (kernel, formula, [relative, of_x]) in FORMULAS {
            // −10 to 10, without 0.
            let mut x: Vec<f32> = (0..20_000).map(|i| (i as f32 - 9_999.5) / 1000.0).collect();
            // Also numbers near 0.
            x.extend((0..120).map(|i| 0.7 * 2f32.powi(-i)));
            if [LOG_F32.name, SQRT_F32.name].contains(&kernel.name) {
                x.iter_mut().for_each(|x| *x = x.abs());
            }
            for (&x, y) in x.iter().zip(applied(kernel, &x)) {
                let exact = formula(f64::from(x));
                let allowed = relative * exact.abs() + of_x * f64::from(x).abs();
                assert!((f64::from(y) - exact).abs() <= allowed, "{} {x}: {y}, {exact}", kernel.name);
            }
        }
    }

    #[test]
    fn zeros_infinities_and_nan_give_what_the_formula_has_there() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let x = [0.0, -0.0, inf, -inf, nan, -1.0];
        for (kernel, expected) in [
            (&EXP_F32, [1.0, 1.0, inf, 0.0, nan, (-1.0f32).exp()]),
            (&LOG_F32, [-inf, -inf, inf, nan, nan, nan]),
            (&SQRT_F32, [0.0, -0.0, inf, nan, nan, nan]),
            (&TANH_F32, [0.0, -0.0, 1.0, -1.0, nan, (-1.0f32).tanh()]),
            (&SIGMOID_F32, [0.5, 0.5, 1.0, 0.0, nan, 1.0 / (1.0 + 1.0f32.exp())]),
            (&GELU_F32, [0.0, -0.0, inf, nan, nan, -0.158_655_26]),
        ] {
            for ((x, y), expected) in x.iter().zip(applied(kernel, &x)).zip(expected) {
                let alike = y == expected || (y.is_nan() && expected.is_nan());
                assert!(alike, "{} {x}: {y}, {expected}", kernel.name);
            }
        }
    }

    #[test]
    fn every_part_of_a_large_operand_is_computed() {
        let x: Vec<f32> = (0..2 * MANY + 3).map(|i| i as f32).collect();
        let y = applied(&SQRT_F32, &x);
        assert!(x.iter().zip(&y).all(|(x, y)| x.sqrt() == *y));
    }
}
