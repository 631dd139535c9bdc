//! Repetition along one dimension, y\[o, r, i\] ← x\[o, i\].
//!
//! Broadcasting to another shape is a sequence of these. The elements are only copied, so there is
//! a kernel for each element size, over unsigned integers of that size.
//!
//! Writes each element once. A repeated element comes from a cache after the first read.

use crate::convert::size;

/// Declares the kernel for one element size.
macro_rules! expand {
    ($ty:ty, $name:ident $descriptor:ident) => {
        warpline_runtime::kernel! {
            #[doc = concat!(
                "Computes y\\[o, r, i\\] ← x\\[o, i\\] with `repeat` values of r and `inner` of i.\n\n`y` has `n` elements of the size of `",
                stringify!($ty), "`."
            )]
            pub unsafe fn $name(n: u64, repeat: u64, inner: u64, x: &[$ty], write y: &mut [$ty])
            where n == y.len() as u64
                && (x.len() as u64).checked_mul(repeat) == Some(n)
                && (x.is_empty() || inner != 0 && (x.len() as u64).is_multiple_of(inner))
            {
                descriptor: $descriptor,
                ptx_from_sm_60: include_str!("../ptx/expand.ptx"),
                cpu: |_, repeat, inner, x, y| expanded(size(repeat), size(inner), x, y),
            }
        }
    };
}

expand!(u8, expand_1 EXPAND_1);
expand!(u16, expand_2 EXPAND_2);
expand!(u32, expand_4 EXPAND_4);
expand!(u64, expand_8 EXPAND_8);

fn expanded<T: Copy>(repeat: usize, inner: usize, x: &[T], y: &mut [T]) {
    if y.is_empty() {
        return;
    }
    for (x, y) in x.chunks_exact(inner).zip(y.chunks_exact_mut(repeat * inner)) {
        match x {
            [x] => y.fill(*x),
            _ => y.chunks_exact_mut(inner).for_each(|y| y.copy_from_slice(x)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{read, run, value, written};

    #[test]
    fn agrees_with_the_formula() {
        for [outer, repeat, inner] in
            [[1, 1, 1], [3, 2, 1], [1, 4, 5], [2, 3, 4], [0, 3, 2], [2, 0, 3], [2, 3, 0]]
        {
            let x: Vec<u32> = (0..(outer * inner) as u32).collect();
            let mut y = vec![9; outer * repeat * inner];
            let n = y.len() as u64;
            run(&EXPAND_4, &[value(n), value(repeat as u64), value(inner as u64), read(&x), written(&mut y)]);
            let at = |i: usize| x[i / (repeat * inner) * inner + i % inner];
            let expected: Vec<_> = (0..y.len()).map(at).collect();
            assert_eq!(y, expected, "{outer} {repeat} {inner}");
        }
    }

    #[test]
    fn every_size_is_copied_whole() {
        let (x, mut y) = ([1u8, 255], [0u8; 4]);
        run(&EXPAND_1, &[value(4u64), value(2u64), value(1u64), read(&x), written(&mut y)]);
        assert_eq!(y, [1, 1, 255, 255]);
        let (x, mut y) = ([1u16, 65535], [0u16; 4]);
        run(&EXPAND_2, &[value(4u64), value(2u64), value(2u64), read(&x), written(&mut y)]);
        assert_eq!(y, [1, 65535, 1, 65535]);
        let (x, mut y) = ([u64::MAX - 1], [0u64; 2]);
        run(&EXPAND_8, &[value(2u64), value(2u64), value(1u64), read(&x), written(&mut y)]);
        assert_eq!(y, [u64::MAX - 1; 2]);
    }
}
