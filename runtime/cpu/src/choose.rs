//! The rule by which a seed draws who goes next: which stream, or the tasks that wait for the device.
//!
//! The choice follows PCT (Burckhardt and others, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs",
//! ASPLOS 2010): every stream has a priority drawn from the seed, the highest goes first, and at a few random points the one
//! about to run drops below all others. Choosing uniformly at each step would hardly ever hold one stream back for long, which
//! is what deep races need. How many such points there are is drawn too, and all priorities are drawn anew now and then, so
//! that a long program sees more than one order.

use std::collections::HashMap;

/// After so many steps all priorities are drawn anew.
const STEPS_PER_EPOCH: u64 = 256;

/// A seed, and how far it has been used.
pub(super) struct Chooser {
    random: SplitMix,
    seed: u64,
    epoch: u64,
    steps: u64,
    /// One step in so many is a change point.
    change_every: u64,
    /// Streams that were dropped below all others in this epoch, the later the lower.
    demoted: HashMap<u64, u64>,
    tasks: Option<Tasks>,
}

/// How much of the time is for the tasks of an executor, which otherwise run a device's op in every
/// poll.
struct Tasks {
    random: SplitMix,
    /// The number of polls of eight that run nothing: from none, a device that is always ahead, to
    /// six.
    eighths: u64,
}

/// The generator of Steele, Lea and Flood ("Fast Splittable Pseudorandom Number Generators", 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

impl Chooser {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let change_every = 4 << (random.next() % 4);
        Chooser { random, seed, epoch: 0, steps: 0, change_every, demoted: HashMap::new(), tasks: None }
    }

    /// Lets the seed decide as well whether a poll runs an op or leaves that to a later one.
    pub(super) fn draw_for_tasks(&mut self) {
        let mut random = SplitMix(!self.seed);
        let eighths = random.next() % 7;
        self.tasks = Some(Tasks { random, eighths });
    }

    /// Returns whether the tasks go on before the next op runs. Never for good.
    pub(super) fn is_turn_of_tasks(&mut self) -> bool {
        self.tasks.as_mut().is_some_and(|tasks| tasks.random.next() % 8 < tasks.eighths)
    }

    /// A stream's priority in this epoch.
    fn priority(&self, number: u64) -> u64 {
        match self.demoted.get(&number) {
            Some(low) => *low,
            None => {
                SplitMix(self.seed ^ self.epoch.rotate_left(32) ^ number.rotate_left(48)).next() | 1 << 63
            }
        }
    }

    /// Which of the streams with these numbers goes next, as an index.
    pub(super) fn choose(&mut self, numbers: &[u64]) -> usize {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_EPOCH) {
            self.epoch += 1;
            self.demoted.clear();
        }
        if self.random.next().is_multiple_of(self.change_every) {
            let demoted = numbers[self.highest(numbers)];
            self.demoted.insert(demoted, (1 << 62) - self.steps);
        }
        self.highest(numbers)
    }

    fn highest(&self, numbers: &[u64]) -> usize {
        let rank = |at: &usize| (self.priority(numbers[*at]), numbers[*at]);
        (0..numbers.len()).max_by_key(rank).expect("there is something to choose from")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_comes_first_for_some_seed_and_is_held_back_for_long_by_another() {
        let mut first = [false; 4];
        let mut held_back = [false; 4];
        for seed in 0..200 {
            let mut chooser = Chooser::new(seed);
            let chosen: Vec<_> = (0..20).map(|_| chooser.choose(&[0, 1, 2, 3])).collect();
            first[chosen[0]] = true;
            for (stream, held_back) in held_back.iter_mut().enumerate() {
                *held_back |= !chosen.contains(&stream);
            }
        }
        assert_eq!((first, held_back), ([true; 4], [true; 4]));
    }
}
