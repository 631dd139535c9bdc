//! A bit for each byte of memory, for the check of undefined bytes.

/// A bit for each byte of a piece of memory, which starts at a multiple of 16.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// Returns `len` bits that are 0.
    pub(super) fn new(len: u64) -> Self {
        Bits(vec![0; len.div_ceil(64) as usize])
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Returns the bits of an aligned access, which are in one word.
    #[inline(always)]
    pub(super) fn of(&self, at: u64, len: u64) -> u64 {
        self.0[at as usize / 64] >> (at % 64) & ((1 << len) - 1)
    }

    /// Sets the bits of an aligned access.
    #[inline(always)]
    pub(super) fn set(&mut self, at: u64, len: u64) {
        self.0[at as usize / 64] |= ((1 << len) - 1) << (at % 64);
    }

    /// Sets the bits `from..to`, which may span words.
    pub(super) fn set_all(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let end = (at / 64 * 64 + 64).min(to);
            self.0[at as usize / 64] |= u64::MAX >> (64 - (end - at)) << (at % 64);
            at = end;
        }
    }

    /// Returns whether all of some bits are set.
    #[inline(always)]
    pub(super) fn are_set(&self, from: u64, to: u64) -> bool {
        let mut at = from;
        let mut all = true;
        while at < to {
            let end = (at / 64 * 64 + 64).min(to);
            let bits = u64::MAX >> (64 - (end - at)) << (at % 64);
            all &= self.0[at as usize / 64] & bits == bits;
            at = end;
        }
        all
    }

    /// Returns the first bit that is not set, and the number of such bits.
    pub(super) fn missing(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let is_missing = |at: &u64| self.of(*at, 1) == 0;
        let first = (from..to).find(is_missing)?;
        Some((first, (first..to).filter(is_missing).count() as u64))
    }
}
