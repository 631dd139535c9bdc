//! A fully connected layer: a matrix product and a bias.
//!
//! Reads 4·(m·k + k·n + n) bytes and writes 4·m·n bytes, for 2·m·n·k operations.

use crate::convert::size;
use crate::gemm::{Operand, gemm};
use crate::libraries::cublas;

warpline_runtime::kernel! {
    /// Computes y ← x·wᵀ + bias, with `x` of `m` × `k`, `w` of `n` × `k`, `bias` of `n` and `y` of
    /// `m` × `n`.
    ///
    /// All operands are row-major and dense. If `w_transposed` is not 0, `w` holds its transpose,
    /// `k` × `n` row-major. Each sum starts with the bias, or ends with it if a library computes
    /// the product: see [`libraries`](crate::libraries).
    pub unsafe fn linear(
        m: u64, n: u64, k: u64, w_transposed: u32, x: &[f32], w: &[f32], bias: &[f32], write y: &mut [f32]
    )
    where m.saturating_mul(k) == x.len() as u64
        && k.saturating_mul(n) == w.len() as u64
        && n == bias.len() as u64
        && m.saturating_mul(n) == y.len() as u64
    {
        descriptor: LINEAR,
        tolerance: 1e-5,
        ptx_from_sm_60: include_str!("../ptx/linear.ptx"),
        library: &cublas::LINEAR,
        cpu: |m, n, k, w_transposed, x, w, bias, y| {
            if y.is_empty() {
                return;
            }
            y.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
            let x = Operand { elements: x, transposed: false };
            let w = Operand { elements: w, transposed: w_transposed == 0 };
            gemm([m, n, k].map(size), x, w, 1.0, y)
        },
    }
}

#[cfg(test)]
mod tests {
    use super::LINEAR;
    use crate::twin::{read, run, value, written};

    fn linear(m: u64, n: u64, k: u64, w_transposed: u32, x: &[f32], w: &[f32], bias: &[f32]) -> Vec<f32> {
        let mut y = vec![f32::NAN; (m * n) as usize];
        run(
            &LINEAR,
            &[
                value(m),
                value(n),
                value(k),
                value(w_transposed),
                read(x),
                read(w),
                read(bias),
                written(&mut y),
            ],
        );
        y
    }

    #[test]
    fn adds_the_bias_to_each_row_of_the_product() {
        let (x, bias) = ([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0]);
        let expected = [13.0, 23.0, 38.0, 17.0, 27.0, 48.0];
        assert_eq!(linear(2, 3, 2, 0, &x, &[1.0, 1.0, 1.0, 1.0, 2.0, 3.0], &bias), expected);
        assert_eq!(linear(2, 3, 2, 1, &x, &[1.0, 1.0, 2.0, 1.0, 1.0, 3.0], &bias), expected);
        assert_eq!(linear(2, 3, 0, 0, &[], &[], &bias), [bias, bias].concat());
        assert_eq!(linear(2, 0, 2, 0, &x, &[], &[]), []);
    }
}
