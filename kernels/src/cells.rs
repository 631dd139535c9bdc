//! Elementwise loops over slices of cells, for twins whose result may be one of their operands.
//!
//! If two slices are the same memory, the loop runs over one of them. A loop over both is
//! vectorised only for memory that does not overlap.

use std::cell::Cell;

/// Computes y ← f(x) for slices of equal length. `y` may be `x`.
#[inline]
pub(crate) fn map<T: Copy>(x: &[Cell<T>], y: &[Cell<T>], f: impl Fn(T) -> T) {
    if std::ptr::eq(x, y) {
        y.iter().for_each(|y| y.set(f(y.get())));
    } else {
        y.iter().zip(x).for_each(|(y, x)| y.set(f(x.get())));
    }
}

/// Computes z\[i\] ← f(x\[i\], y\[i mod y.len()\]), which repeats `y` along `x`.
///
/// The length of `x` is a multiple of the length of `y`. `z` is as long as `x`. `z` may be `x`, or
/// `y` if `y` is as long.
#[inline]
pub(crate) fn zip<T: Copy>(x: &[Cell<T>], y: &[Cell<T>], z: &[Cell<T>], f: impl Fn(T, T) -> T) {
    match y {
        [] => {}
        [y] => {
            let y = y.get();
            map(x, z, |x| f(x, y));
        }
        _ => {
            let rows = x.chunks_exact(y.len()).zip(z.chunks_exact(y.len()));
            rows.for_each(|(x, z)| zip_row(x, y, z, &f));
        }
    }
}

#[inline]
fn zip_row<T: Copy>(x: &[Cell<T>], y: &[Cell<T>], z: &[Cell<T>], f: impl Fn(T, T) -> T) {
    if std::ptr::eq(z, x) {
        z.iter().zip(y).for_each(|(z, y)| z.set(f(z.get(), y.get())));
    } else if std::ptr::eq(z, y) {
        z.iter().zip(x).for_each(|(z, x)| z.set(f(x.get(), z.get())));
    } else {
        z.iter().zip(x).zip(y).for_each(|((z, x), y)| z.set(f(x.get(), y.get())));
    }
}

#[cfg(test)]
mod tests {
    use super::{map, zip};
    use std::cell::Cell;

    fn cells(values: &mut [f32]) -> &[Cell<f32>] {
        Cell::from_mut(values).as_slice_of_cells()
    }

    #[test]
    fn a_shorter_operand_is_repeated() {
        let (mut x, mut y) = ([10.0, 20.0, 30.0, 40.0, 50.0, 60.0], [1.0, 2.0, 3.0]);
        let mut z = [0.0; 6];
        zip(cells(&mut x), cells(&mut y), cells(&mut z), |x, y| x - y);
        assert_eq!(z, [9.0, 18.0, 27.0, 39.0, 48.0, 57.0]);
        zip(cells(&mut x), cells(&mut [4.0]), cells(&mut z), |x, y| x - y);
        assert_eq!(z, [6.0, 16.0, 26.0, 36.0, 46.0, 56.0]);
        zip(cells(&mut []), cells(&mut []), cells(&mut []), |x, y| x - y);
    }

    #[test]
    fn the_result_may_be_either_operand_or_both() {
        let mut x = [10.0, 20.0, 30.0];
        let y = cells(&mut x);
        zip(y, y, y, |x, y| x + y);
        assert_eq!(x, [20.0, 40.0, 60.0]);
        let (mut x, mut y) = ([1.0, 2.0], [10.0, 20.0]);
        let (a, b) = (cells(&mut x), cells(&mut y));
        zip(a, b, b, |x, y| x - y);
        zip(a, b, a, |x, y| x - y);
        assert_eq!((x, y), ([10.0, 20.0], [-9.0, -18.0]));
        let y = cells(&mut y);
        map(y, y, |y| -y);
        assert_eq!(*cells(&mut [9.0, 18.0]), *y);
    }
}
