//! The product of two matrices.
//!
//! Reads 4·(m·k + k·n) bytes and writes 4·m·n bytes, for 2·m·n·k operations.

use crate::convert::size;
use crate::gemm::{Operand, gemm};
use crate::libraries::cublas;

warpline_runtime::kernel! {
    /// Computes c ← a·b, with `a` of `m` × `k`, `b` of `k` × `n` and `c` of `m` × `n`.
    ///
    /// All operands are row-major and dense. If `a_transposed` is not 0, `a` holds the transpose,
    /// `k` × `m` row-major. The same holds for `b_transposed` and `b`, `n` × `k`. With `k` = 0 the
    /// product is 0. Sums are f32, in an order that depends on `k` alone, unless a library computes
    /// the product: see [`libraries`](crate::libraries).
    pub unsafe fn matmul(
        m: u64, n: u64, k: u64, a_transposed: u32, b_transposed: u32, a: &[f32], b: &[f32], write c: &mut [f32]
    )
    where m.saturating_mul(k) == a.len() as u64
        && k.saturating_mul(n) == b.len() as u64
        && m.saturating_mul(n) == c.len() as u64
    {
        descriptor: MATMUL,
        tolerance: 1e-5,
        ptx_from_sm_60: include_str!("../ptx/matmul.ptx"),
        library: &cublas::MATMUL,
        cpu: |m, n, k, a_transposed, b_transposed, a, b, c| {
            let a = Operand { elements: a, transposed: a_transposed != 0 };
            let b = Operand { elements: b, transposed: b_transposed != 0 };
            gemm([m, n, k].map(size), a, b, 0.0, c)
        },
    }
}

#[cfg(test)]
mod tests {
    use super::MATMUL;
    use crate::twin::{read, run, value, written};

    /// Returns the transpose of the row-major `rows` × `cols` matrix `x`.
    fn transpose(rows: usize, cols: usize, x: &[f32]) -> Vec<f32> {
        (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
    }

    #[test]
    fn agrees_with_the_formula_in_f64_however_the_operands_lie() {
        for [m, n, k] in
            [[1, 1, 1], [32, 128, 64], [3, 5, 7], [17, 1, 40], [1, 33, 2], [2, 3, 0], [0, 4, 2], [4, 0, 3]]
        {
            let a: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
            let b: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.73).cos()).collect();
            let expected: Vec<f64> = (0..m * n)
                .map(|i| (0..k).map(|l| f64::from(a[i / n * k + l]) * f64::from(b[l * n + i % n])).sum())
                .collect();
            for (a_transposed, a) in [(0u32, a.clone()), (1, transpose(m, k, &a))] {
                for (b_transposed, b) in [(0u32, b.clone()), (1, transpose(k, n, &b))] {
                    let mut c = vec![f32::NAN; m * n];
                    let [m, n, k] = [m, n, k].map(|n| n as u64);
                    let sizes = [value(m), value(n), value(k), value(a_transposed), value(b_transposed)];
                    let slices = [read(&a), read(&b), written(&mut c)];
                    run(&MATMUL, &sizes.into_iter().chain(slices).collect::<Vec<_>>());
                    let close = |(x, y): (&f32, &f64)| (f64::from(*x) - y).abs() <= 1e-6 * (k as f64 + 1.0);
                    assert!(c.iter().zip(&expected).all(close), "{m} {n} {k}: {c:?}");
                }
            }
        }
    }
}
