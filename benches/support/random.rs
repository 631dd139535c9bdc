//! A generator that gives the same numbers in every run.

/// xorshift64*, Vigna 2016. The seed is not 0.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as usize * n) >> 32
    }
}
