//! The generator of the random numbers that ops draw.

use parking_lot::Mutex;
use std::fmt;

/// A position in the sequence of Philox4x32-10 random numbers for a seed.
///
/// The generator holds no numbers and touches no device. An op takes its part of the sequence when
/// it is enqueued, and computes each element from the seed and the element's position alone. So the
/// same calls after the same [`manual_seed`](Self::manual_seed) give the same numbers, on any
/// device, stream, schedule and number of threads. If several threads draw from one generator at
/// the same time, the order of their calls decides which part each gets. An op that is refused
/// because an edge is missing has used its part up. One that is refused earlier, for its type, its
/// shape or a lack of memory, may not have: set the seed before you repeat it.
///
/// # Examples
/// ```
/// use warpline::Generator;
///
/// let generator = Generator::new(7);
/// let first = generator.take(10);
/// assert_eq!((first.seed, first.offset), (7, 0));
/// assert_eq!(
///     generator.take(1).offset,
///     12,
///     "parts start at a block of four numbers"
/// );
/// ```
#[derive(Default)]
pub struct Generator(Mutex<Draw>);

/// A part of a generator's sequence, given by its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// The seed of the sequence.
    pub seed: u64,
    /// The position of its first number in the sequence, counted from 0.
    pub offset: u64,
}

impl Generator {
    /// Philox generates four numbers at a time, and normal numbers come in pairs. A part that
    /// starts inside a block would share words with the previous part.
    const BLOCK: u64 = 4;

    /// Makes a generator at the start of the sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Generator(Mutex::new(Draw { seed, offset: 0 }))
    }

    /// Moves to the start of the sequence of `seed`.
    pub fn manual_seed(&self, seed: u64) {
        *self.0.lock() = Draw { seed, offset: 0 };
    }

    /// Takes the next `n` numbers, rounded up to a multiple of four.
    pub fn take(&self, n: u64) -> Draw {
        let mut next = self.0.lock();
        let draw = *next;
        // At the end of the number range, the sequence starts again.
        let blocks = n.checked_next_multiple_of(Self::BLOCK).unwrap_or(0);
        next.offset = next.offset.wrapping_add(blocks);
        draw
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Draw { seed, offset } = *self.0.lock();
        write!(f, "Generator(seed {seed}, {offset} taken)")
    }
}
