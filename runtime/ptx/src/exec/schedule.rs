//! The order in which the warps of a block run, and in which the lanes of a warp are split.

use super::registers::Mask;

/// An order of warps and of the parts of a warp.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// By their numbers.
    Fixed,
    /// Drawn from a seed: the order of each round, how long each warp runs, and what `splits`
    /// says.
    Seeded(u64),
}

impl Order {
    /// Returns the warps of a round.
    pub(crate) fn of(&mut self, warps: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..warps).collect();
        for at in (1..warps).rev() {
            if let Some(other) = self.below(at as u64 + 1) {
                order.swap(at, other as usize);
            }
        }
        order
    }

    /// Returns how many ops the next warp runs, at most `most`.
    pub(crate) fn turn(&mut self, most: u32) -> u32 {
        // Half of the turns are short, so that races within a few instructions show.
        match self.below(2) {
            Some(0) => self.below(64).map_or(most, |turn| turn as u32 + 1),
            _ => self.below(u64::from(most)).map_or(most, |turn| turn as u32 + 1),
        }
    }

    pub(crate) fn is_seeded(&self) -> bool {
        matches!(self, Order::Seeded(_))
    }

    /// Returns a number below `n`, and 0 if the order is fixed.
    pub(crate) fn draw(&mut self, n: u32) -> u32 {
        self.below(n.into()).map_or(0, |drawn| drawn as u32)
    }

    /// Returns some of the lanes of a mask with several lanes: at least one, and not all.
    pub(crate) fn some_of(&mut self, mask: Mask) -> Mask {
        let drawn = mask & self.below(1 << 32).map_or(0, |drawn| drawn as Mask);
        if drawn == 0 || drawn == mask { mask & mask.wrapping_neg() } else { drawn }
    }

    /// Returns a number below `n`, or nothing if the order is fixed. (splitmix64; Steele, Lea and
    /// Flood, "Fast splittable pseudorandom number generators", 2014)
    fn below(&mut self, n: u64) -> Option<u64> {
        let Order::Seeded(state) = self else { return None };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(((u128::from(z ^ z >> 31) * u128::from(n)) >> 64) as u64)
    }
}
