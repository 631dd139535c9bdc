//! The gradient of y = max(x, 0), computed from its output.
//!
//! Reads 8 bytes and writes 4 bytes per element.

use crate::cells::zip;

warpline_runtime::kernel! {
    /// Computes dx ← grad where y > 0 or y is NaN, else +0, for `n` elements.
    ///
    /// `dx` may be `grad` or `y`. `y` is the output of [`relu`](fn@crate::relu). The input of
    /// `relu` works as well, since it is positive or NaN in the same places.
    pub in_place unsafe fn relu_backward(n: u64, grad: &[f32], y: &[f32], write dx: &mut [f32])
    where n == grad.len() as u64 && n == y.len() as u64 && n == dx.len() as u64
    {
        descriptor: RELU_BACKWARD,
        ptx_from_sm_60: include_str!("../ptx/relu_backward.ptx"),
        cpu: |_, grad, y, dx| zip(grad, y, dx, |grad, y| if y <= 0.0 { 0.0 } else { grad }),
    }
}

#[cfg(test)]
mod tests {
    use super::RELU_BACKWARD;
    use crate::twin::{read, run, value, written};

    #[test]
    fn passes_where_the_output_is_positive_or_nan() {
        let y = [0.0, -0.0, 1e-40, 2.0, f32::INFINITY, f32::NAN, -1.0];
        let grad = [1.0, 2.0, 3.0, f32::NAN, 5.0, 6.0, f32::NAN];
        let mut dx = [9.0f32; 7];
        run(&RELU_BACKWARD, &[value(7u64), read(&grad), read(&y), written(&mut dx)]);
        assert_eq!([&dx[..3], &dx[4..]].concat(), [0.0, 0.0, 3.0, 5.0, 6.0, 0.0]);
        assert!(dx[3].is_nan());
    }
}
