//! Random draws that are the same for a seed on every machine.
//!
//! Draw d of epoch e, both counted from 0, is u = w₀ + 2³²·w₁. w₀ and w₁ are the first two words of
//! the Philox4x32-10 block whose key is the seed and whose counter is (d, e). Seed, d and e are
//! each a `u64`, low word first.

use warpline_kernels::philox4x32_10;

pub(super) struct Draws {
    seed: u64,
    epoch: u64,
    next: u64,
}

impl Draws {
    pub(super) fn new(seed: u64, epoch: u64) -> Self {
        Draws { seed, epoch, next: 0 }
    }

    fn word(&mut self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "the other half is the other word")]
        let words = |x: u64| [x as u32, (x >> 32) as u32];
        let [[d0, d1], [e0, e1], key] = [self.next, self.epoch, self.seed].map(words);
        self.next += 1;
        let words = philox4x32_10([d0, d1, e0, e1], key);
        u64::from(words[0]) | u64::from(words[1]) << 32
    }

    /// Draws ⌊u·n / 2⁶⁴⌋: each number below `n` with probability 1/n, with an error of less than
    /// n/2⁶⁴.
    pub(super) fn below(&mut self, n: usize) -> usize {
        let product = u128::from(self.word()) * n as u128;
        usize::try_from(product >> 64).expect("below n")
    }

    /// Draws a number of at least 0 and less than 1: the highest 53 bits of u, times 2⁻⁵³.
    pub(super) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}
