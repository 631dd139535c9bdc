//! The rectified linear unit, y ← max(x, 0).
//!
//! Reads 4 bytes and writes 4 bytes per element.

use std::cell::Cell;

warpline_runtime::kernel! {
    /// Computes y ← x where x > 0 or x is NaN, else +0.
    ///
    /// `y` has `n` elements and may be `x` itself.
    pub in_place unsafe fn relu(n: u64, x: &[f32], write y: &mut [f32])
    where n == x.len() as u64 && n == y.len() as u64
    {
        descriptor: RELU,
        ptx_from_sm_60: include_str!("../ptx/relu.ptx"),
        cpu: relu_cells,
    }
}

fn relu_cells(_: u64, x: &[Cell<f32>], y: &[Cell<f32>]) {
    if std::ptr::eq(x, y) {
        // Separate from the loop below, which is vectorised only for memory that does not overlap.
        y.iter().for_each(|y| y.set(clamped(y.get())));
    } else {
        y.iter().zip(x).for_each(|(y, x)| y.set(clamped(x.get())));
    }
}

#[inline]
fn clamped(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use super::{RELU, relu_cells};
    use crate::twin::{read, run, value, written};
    use std::cell::Cell;

    #[test]
    fn negative_values_and_zeros_become_plus_zero_and_nan_stays() {
        let x = [-1.0, -0.0, 0.0, 2.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let mut y = [9.0; 7];
        run(&RELU, &[value(7u64), read(&x), written(&mut y)]);
        assert_eq!(y[..6], [0.0, 0.0, 0.0, 2.5, f32::INFINITY, 0.0]);
        assert!(y[6].is_nan() && y[..6].iter().all(|y| y.is_sign_positive()));
    }

    #[test]
    fn agrees_with_the_formula_at_every_length() {
        for n in [0usize, 1, 7, 64, 1001] {
            let x: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin()).collect();
            let mut y = vec![9.0; n];
            run(&RELU, &[value(n as u64), read(&x), written(&mut y)]);
            assert_eq!(y, x.iter().map(|x| x.max(0.0)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn works_in_place() {
        let mut y = [-1.0, 2.0, -3.0];
        let cells = Cell::from_mut(&mut y[..]).as_slice_of_cells();
        relu_cells(3, cells, cells);
        assert_eq!(y, [0.0, 2.0, 0.0]);
    }
}
