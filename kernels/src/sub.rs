//! z ← x − y, with `y` repeated along `x`.
//!
//! Reads 8 bytes and writes 4 bytes an element of f32, twice that of i64.

use crate::cells::zip;

const PTX: &str = include_str!("../ptx/sub.ptx");

warpline_runtime::kernel! {
    /// z\[i\] ← x\[i\] − y\[i mod `period`\], for `n` elements. `z` may be `x`, or `y` where `period` is `n`.
    pub in_place unsafe fn sub(n: u64, period: u64, x: &[f32], y: &[f32], write z: &mut [f32])
    where n == x.len() as u64
        && n == z.len() as u64
        && period == y.len() as u64
        && (n == 0 || n.is_multiple_of(period))
    {
        descriptor: SUB,
        ptx: PTX,
        cpu: |_, _, x, y, z| zip(x, y, z, |x, y| x - y),
    }

    /// As [`sub`](fn@sub), wrapping around at the ends of the range.
    pub in_place unsafe fn sub_i64(n: u64, period: u64, x: &[i64], y: &[i64], write z: &mut [i64])
    where n == x.len() as u64
        && n == z.len() as u64
        && period == y.len() as u64
        && (n == 0 || n.is_multiple_of(period))
    {
        descriptor: SUB_I64,
        ptx: PTX,
        cpu: |_, _, x, y, z| zip(x, y, z, i64::wrapping_sub),
    }
}

#[cfg(test)]
mod tests {
    use super::{SUB, SUB_I64};
    use crate::twin::{read, run, value, written};

    #[test]
    fn agrees_with_the_formula_at_every_length_and_period() {
        for (rows, period) in [(0usize, 0usize), (0, 3), (1, 1), (7, 1), (1, 65), (5, 33), (3, 1001)] {
            let x: Vec<f32> = (0..rows * period).map(|i| i as f32 / 3.0).collect();
            let y: Vec<f32> = (0..period).map(|i| 10.0 - i as f32).collect();
            let mut z = vec![f32::NAN; x.len()];
            run(&SUB, &[value(x.len() as u64), value(period as u64), read(&x), read(&y), written(&mut z)]);
            let expected: Vec<f32> = (0..x.len()).map(|i| x[i] - y[i % period]).collect();
            assert_eq!(z, expected);
        }
    }

    #[test]
    fn integers_wrap_around() {
        let (x, y, mut z) = ([i64::MIN, 7], [1i64, -3], [0i64; 2]);
        run(&SUB_I64, &[value(2u64), value(2u64), read(&x), read(&y), written(&mut z)]);
        assert_eq!(z, [x[0].wrapping_sub(y[0]), 7 - -3]);
    }
}
