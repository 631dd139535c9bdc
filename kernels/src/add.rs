//! The in-place sum of two vectors, y ← y + x.
//!
//! Sums into another buffer are in `elementwise.rs`.
//!
//! Reads 8 bytes and writes 4 bytes per element. Reads 4 bytes per element if `x` is `y`.

use std::cell::Cell;

const PTX: &str = include_str!("../ptx/add.ptx");

warpline_runtime::kernel! {
    /// Computes y ← y + x, element by element. `x` may be `y` itself, which doubles it.
    pub in_place unsafe fn add_(n: u64, y: &mut [f32], x: &[f32])
    where n == x.len() as u64 && n == y.len() as u64
    {
        descriptor: ADD_IN_PLACE,
        ptx_from_sm_60: PTX,
        cpu: add_cells,
    }
}

fn add_cells(_: u64, y: &[Cell<f32>], x: &[Cell<f32>]) {
    if std::ptr::eq(y, x) {
        // Separate from the loop below, which is vectorised only for memory that does not overlap.
        y.iter().for_each(|y| y.set(y.get() + y.get()));
    } else {
        y.iter().zip(x).for_each(|(y, x)| y.set(y.get() + x.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::{ADD_IN_PLACE, add_cells};
    use crate::twin::{read, run, value, written};
    use std::cell::Cell;

    #[test]
    fn agrees_with_the_formula_at_every_length() {
        for n in [0usize, 1, 7, 64, 1001] {
            let x: Vec<f32> = (0..n).map(|i| i as f32 / 3.0).collect();
            let mut y: Vec<f32> = (0..n).map(|i| 10.0 - i as f32).collect();
            let mut expected = y.clone();
            (0..n).for_each(|i| expected[i] += x[i]);
            run(&ADD_IN_PLACE, &[value(n as u64), written(&mut y), read(&x)]);
            assert_eq!(y, expected);
        }
    }

    #[test]
    fn adding_memory_to_itself_doubles_it() {
        let mut y = [1.0, -2.0, f32::MAX];
        let cells = Cell::from_mut(&mut y[..]).as_slice_of_cells();
        add_cells(3, cells, cells);
        assert_eq!(y, [2.0, -4.0, f32::INFINITY]);
        assert!(ADD_IN_PLACE.in_place);
    }
}
