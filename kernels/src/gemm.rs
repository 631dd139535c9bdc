//! The matrix product C ← A·B + β·C on one or several threads, for the twins of `matmul` and
//! `linear`.
//!
//! The crate matrixmultiply does the work. It picks AVX-512, AVX2 or another instruction set at run
//! time. It was 1.1 to 1.8 times as fast as the crate gemm 0.19 on most shapes of a small
//! multi-layer perceptron, and 1.6 times as fast at 512³ (one core of an EPYC with AVX-512). It
//! brings one dependency instead of a dozen.
//!
//! # Order
//! Each element of C is a sum over k in an order that depends on k alone. So its bits depend
//! neither on how the rows of C are divided among threads nor on the number of threads. They may
//! differ between instruction sets.

use crate::threads::share_out;

/// The least number of multiplications per thread: about 1.5 ms on one fast core.
///
/// Each thread packs B for itself. At 512³ two threads were slower than one; at 1024³ they took 7.0
/// instead of 12.0 ms.
const MANY: usize = 1 << 27;
/// The number of which each thread's rows of C are a multiple. It is a multiple of the rows of any
/// micro-kernel.
const ROWS: usize = 64;

/// A dense matrix operand: row-major, or the transpose of a row-major matrix.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) elements: &'a [f32],
    /// `true` if `elements` holds the transpose.
    pub(crate) transposed: bool,
}

/// Computes C ← A·B + β·C, with A of m × k, B of k × n and C of m × n, all row-major.
///
/// With β = 0, nothing of C is read.
///
/// # Panics
/// Panics if a slice does not have exactly as many elements as its matrix.
pub(crate) fn gemm([m, n, k]: [usize; 3], a: Operand<'_>, b: Operand<'_>, beta: f32, c: &mut [f32]) {
    assert_eq!((a.elements.len(), b.elements.len(), c.len()), (m * k, k * n, m * n));
    if c.is_empty() {
        return;
    }
    let blocks = MANY.div_ceil((ROWS * n).saturating_mul(k.max(1)));
    share_out(c, ROWS * n, blocks, |start, c| gemm_rows(start / n, [m, n, k], a, b, beta, c));
}

/// Computes the rows of C from `first` on, as many as are in `c`.
fn gemm_rows(first: usize, [m, n, k]: [usize; 3], a: Operand<'_>, b: Operand<'_>, beta: f32, c: &mut [f32]) {
    let rows = c.len() / n;
    assert!(first + rows <= m);
    let (skipped, a_strides) = if a.transposed { (first, [1, m]) } else { (first * k, [k, 1]) };
    let b_strides = if b.transposed { [1, k] } else { [n, 1] };
    let [[a_row, a_col], [b_row, b_col]] = [a_strides, b_strides].map(|strides| strides.map(|n| n as isize));
    // With k = 0, `skipped` may lie beyond the end of the empty slice.
    let a_elements = a.elements.get(skipped..).unwrap_or_default();
    // SAFETY: `sgemm` reads element (i, l) of A at i·a_row + l·a_col, for i below `rows` and l
    // below k. These are rows `first` to `first + rows` of the m rows in `a`, whose length `gemm`
    // has checked. The same holds for B, which is all of `b`. `sgemm` writes element (i, j) of C at
    // i·n + j, which is all of `c`, and reads it unless β is 0. `c` is borrowed mutably, so no
    // other code accesses it.
    unsafe {
        matrixmultiply::sgemm(
            rows,
            k,
            n,
            1.0,
            a_elements.as_ptr(),
            a_row,
            a_col,
            b.elements.as_ptr(),
            b_row,
            b_col,
            beta,
            c.as_mut_ptr(),
            n as isize,
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::share_out_to;

    fn values(n: usize, salt: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 8) as f32 / 8e6 - 1.0)
            .collect()
    }

    #[test]
    fn the_bits_do_not_depend_on_the_number_of_threads() {
        for [m, n, k] in [[200, 70, 300], [513, 33, 1000], [65, 1, 5], [300, 129, 0]] {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                let a = Operand { elements: &a, transposed: transposed[0] };
                let b = Operand { elements: &b, transposed: transposed[1] };
                let mut one = vec![0.5; m * n];
                gemm_rows(0, [m, n, k], a, b, 1.0, &mut one);
                for threads in [2, 3, 8] {
                    let mut several = vec![0.5; m * n];
                    share_out_to(threads, &mut several, ROWS * n, 1, |start, c| {
                        gemm_rows(start / n, [m, n, k], a, b, 1.0, c)
                    });
                    assert!(one.iter().zip(&several).all(|(x, y)| x.to_bits() == y.to_bits()), "{m} {n} {k}");
                }
            }
        }
    }
}
