//! Where in the random sequence the next op draws.

use parking_lot::Mutex;
use std::fmt;

/// A place in the sequence of Philox4x32-10 random numbers that belongs to a seed.
///
/// The generator holds no numbers and touches no device: an op takes its part of the sequence when it is enqueued, and
/// element i of it is computed from the seed and the place of i alone. So the same calls after the same
/// [`manual_seed`](Self::manual_seed) give the same numbers, on any device, stream, schedule and number of threads; only calls
/// from several threads at once take their turns as they come. A refused op has taken its part too.
///
/// # Examples
/// ```
/// use warpline_runtime::Generator;
///
/// let generator = Generator::new(7);
/// let first = generator.take(10);
/// assert_eq!((first.seed, first.offset), (7, 0));
/// assert_eq!(generator.take(1).offset, 12, "parts start at a block of four numbers");
/// ```
#[derive(Default)]
pub struct Generator(Mutex<Draw>);

/// A part of a generator's sequence: where it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// Whose sequence.
    pub seed: u64,
    /// Numbers before it.
    pub offset: u64,
}

impl Generator {
    /// Philox makes four numbers at a time, and normal numbers come in pairs: a part that starts inside a block would share
    /// words with the one before.
    const BLOCK: u64 = 4;

    /// At the start of the sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Generator(Mutex::new(Draw { seed, offset: 0 }))
    }

    /// Goes to the start of the sequence of `seed`.
    pub fn manual_seed(&self, seed: u64) {
        *self.0.lock() = Draw { seed, offset: 0 };
    }

    /// Takes the next `n` numbers, rounded up to a multiple of four.
    pub fn take(&self, n: u64) -> Draw {
        let mut next = self.0.lock();
        let draw = *next;
        // As many as there are numbers: the sequence starts again.
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
