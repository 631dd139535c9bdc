//! The number of equal elements of two vectors, for example of right answers.
//!
//! Reads 16 bytes per element and writes 8 bytes.

warpline_runtime::kernel! {
    /// Computes count\[0\] ← the number of the `n` places where `x` and `y` are equal.
    pub unsafe fn count_equal(n: u64, x: &[i64], y: &[i64], write count: &mut [i64])
    where n == x.len() as u64 && n == y.len() as u64 && count.len() == 1
    {
        descriptor: COUNT_EQUAL,
        ptx_from_sm_60: include_str!("../ptx/count_equal.ptx"),
        cpu: |_, x, y, count| count[0] = x.iter().zip(y).map(|(x, y)| i64::from(x == y)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::COUNT_EQUAL;
    use crate::twin::{read, run, value, written};

    #[test]
    fn counts() {
        for (x, y, expected) in [(&[1i64, 2, 3, -4][..], &[1i64, 3, 3, 4][..], 2i64), (&[], &[], 0)] {
            let mut count = [-1i64];
            run(&COUNT_EQUAL, &[value(x.len() as u64), read(x), read(y), written(&mut count)]);
            assert_eq!(count, [expected]);
        }
    }
}
