//! A scaled vector addition, y ← a·x + y, like `SAXPY` of the BLAS (level 1).
//!
//! Reads 8 bytes and writes 4 bytes per element. The product is rounded before the sum.

warpline_runtime::kernel! {
    /// Computes y ← a·x + y for `n` elements.
    ///
    /// The product is rounded before the sum. NaN and infinities propagate as in IEEE 754, also if
    /// `a` is 0.
    pub unsafe fn axpy(n: u64, a: f32, x: &[f32], y: &mut [f32])
    where n == x.len() as u64 && n == y.len() as u64
    {
        descriptor: AXPY,
        ptx_from_sm_60: include_str!("../ptx/axpy.ptx"),
        cpu: |_, a, x, y| for (y, &x) in y.iter_mut().zip(x) { *y += a * x },
    }
}

#[cfg(test)]
mod tests {
    use super::AXPY;
    use crate::twin::{read, run, value, written};

    #[test]
    fn agrees_with_the_formula_at_every_length() {
        for n in [0usize, 1, 7, 64, 1001] {
            let x: Vec<f32> = (0..n).map(|i| i as f32 - 3.5).collect();
            let mut y: Vec<f32> = (0..n).map(|i| 1.0 / (i as f32 + 1.0)).collect();
            let mut expected = y.clone();
            (0..n).for_each(|i| expected[i] += 0.3 * x[i]);
            run(&AXPY, &[value(n as u64), value(0.3f32), read(&x), written(&mut y)]);
            assert_eq!(y, expected);
        }
    }

    #[test]
    fn nan_and_infinity_pass_also_when_a_is_zero() {
        let mut y = [1.0, 1.0, f32::INFINITY];
        run(&AXPY, &[value(3u64), value(0.0f32), read(&[f32::NAN, f32::INFINITY, 1.0]), written(&mut y)]);
        assert!(y[0].is_nan() && y[1].is_nan() && y[2] == f32::INFINITY);
    }
}
