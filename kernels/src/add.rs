//! y ← y + x; z ← x + y, with `y` repeated along `x`; y ← x + a.
//!
//! Reads 8 bytes and writes 4 bytes an element of f32, twice that of i64; reads 4 with a scalar or where `x` is `y`.

use crate::cells::{map, zip};
use std::cell::Cell;

const PTX: &str = include_str!("../ptx/add.ptx");

warpline_runtime::kernel! {
    /// y ← y + x, element by element. `x` may be `y` itself, which doubles it.
    pub in_place unsafe fn add_(n: u64, y: &mut [f32], x: &[f32])
    where n <= x.len() as u64 && n <= y.len() as u64
    {
        descriptor: ADD_IN_PLACE,
        ptx: PTX,
        cpu: add_cells,
    }

    /// z\[i\] ← x\[i\] + y\[i mod `period`\], for `n` elements. `z` may be `x`, or `y` where `period` is `n`.
    pub in_place unsafe fn add(n: u64, period: u64, x: &[f32], y: &[f32], write z: &mut [f32])
    where n == x.len() as u64
        && n == z.len() as u64
        && period == y.len() as u64
        && (n == 0 || n.is_multiple_of(period))
    {
        descriptor: ADD,
        ptx: PTX,
        cpu: |_, _, x, y, z| zip(x, y, z, |x, y| x + y),
    }

    /// As [`add`](fn@add), wrapping around at the ends of the range.
    pub in_place unsafe fn add_i64(n: u64, period: u64, x: &[i64], y: &[i64], write z: &mut [i64])
    where n == x.len() as u64
        && n == z.len() as u64
        && period == y.len() as u64
        && (n == 0 || n.is_multiple_of(period))
    {
        descriptor: ADD_I64,
        ptx: PTX,
        cpu: |_, _, x, y, z| zip(x, y, z, i64::wrapping_add),
    }

    /// y ← x + a, for `n` elements. `y` may be `x`.
    pub in_place unsafe fn add_scalar(n: u64, x: &[f32], a: f32, write y: &mut [f32])
    where n == x.len() as u64 && n == y.len() as u64
    {
        descriptor: ADD_SCALAR,
        ptx: PTX,
        cpu: |_, x, a, y| map(x, y, |x| x + a),
    }

    /// As [`add_scalar`](fn@add_scalar), wrapping around at the ends of the range.
    pub in_place unsafe fn add_scalar_i64(n: u64, x: &[i64], a: i64, write y: &mut [i64])
    where n == x.len() as u64 && n == y.len() as u64
    {
        descriptor: ADD_SCALAR_I64,
        ptx: PTX,
        cpu: |_, x, a, y| map(x, y, |x| x.wrapping_add(a)),
    }
}

fn add_cells(n: u64, y: &[Cell<f32>], x: &[Cell<f32>]) {
    let (y, x) = (&y[..n as usize], &x[..n as usize]);
    if std::ptr::eq(y, x) {
        // Apart from the loop below, which is vectorised only for memory that does not overlap.
        y.iter().for_each(|y| y.set(y.get() + y.get()));
    } else {
        y.iter().zip(x).for_each(|(y, x)| y.set(y.get() + x.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::{ADD, ADD_I64, ADD_IN_PLACE, add_cells};
    use crate::twin::{read, run, value, written};
    use std::cell::Cell;

    #[test]
    fn agrees_with_the_formula_at_every_length() {
        for n in [0usize, 1, 7, 64, 1001] {
            let x: Vec<f32> = (0..n + 1).map(|i| i as f32 / 3.0).collect();
            let mut y: Vec<f32> = (0..n + 2).map(|i| 10.0 - i as f32).collect();
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

    #[test]
    fn agrees_with_the_formula_at_every_length_and_period() {
        for (rows, period) in [(0usize, 0usize), (0, 3), (1, 1), (7, 1), (1, 65), (5, 33), (3, 1001)] {
            let x: Vec<f32> = (0..rows * period).map(|i| i as f32 / 3.0).collect();
            let y: Vec<f32> = (0..period).map(|i| 10.0 - i as f32).collect();
            let mut z = vec![f32::NAN; x.len()];
            run(&ADD, &[value(x.len() as u64), value(period as u64), read(&x), read(&y), written(&mut z)]);
            let expected: Vec<f32> = (0..x.len()).map(|i| x[i] + y[i % period]).collect();
            assert_eq!(z, expected);
        }
    }

    #[test]
    fn integers_wrap_around() {
        let (x, y, mut z) = ([i64::MAX, 7], [1i64, -3], [0i64; 2]);
        run(&ADD_I64, &[value(2u64), value(2u64), read(&x), read(&y), written(&mut z)]);
        assert_eq!(z, [x[0].wrapping_add(y[0]), 7 + -3]);
    }
}
