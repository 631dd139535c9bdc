//! The rule by which a seed draws the next stream to run, or the tasks that wait for the device.
//!
//! The choice follows PCT (Burckhardt and others, "A Randomized Scheduler with Probabilistic
//! Guarantees of Finding Bugs", ASPLOS 2010). Every stream has a priority drawn from the seed, and
//! the stream with the highest runs first. At a few random points the stream about to run drops
//! below all others. A uniform choice at each step would hardly ever hold one stream back for long,
//! which deep races need. The number of such points is drawn too. All priorities are drawn anew now
//! and then, so that a long program sees more than one order.

use std::collections::HashMap;

/// The number of steps after which all priorities are drawn anew.
const STEPS_PER_EPOCH: u64 = 256;

/// A seed, and the progress of the draws from it.
pub(super) struct Chooser {
    random: SplitMix,
    seed: u64,
    epoch: u64,
    steps: u64,
    /// The average number of steps per change point.
    change_every: u64,
    /// The streams that dropped below all others in this epoch, each with its priority: the later
    /// it dropped, the lower.
    demoted: HashMap<u64, u64>,
    tasks: Option<Tasks>,
}

/// The share of polls reserved for the tasks of an executor. Without it, tasks run an op of the
/// device in every poll.
struct Tasks {
    random: SplitMix,
    /// The number of polls in eight that run nothing. It ranges from zero, for a device that is
    /// always ahead, to six.
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

    /// Lets the seed also decide whether a poll runs an op or leaves it to a later poll.
    pub(super) fn draw_for_tasks(&mut self) {
        let mut random = SplitMix(!self.seed);
        let eighths = random.next() % 7;
        self.tasks = Some(Tasks { random, eighths });
    }

    /// Returns whether the tasks continue before the next op runs. They never do so for good.
    pub(super) fn is_turn_of_tasks(&mut self) -> bool {
        self.tasks.as_mut().is_some_and(|tasks| tasks.random.next() % 8 < tasks.eighths)
    }

    /// Returns a stream's priority in this epoch.
    fn priority(&self, number: u64) -> u64 {
        match self.demoted.get(&number) {
            Some(low) => *low,
            None => {
                SplitMix(self.seed ^ self.epoch.rotate_left(32) ^ number.rotate_left(48)).next() | 1 << 63
            }
        }
    }

    /// Returns the index in `numbers` of the stream that runs next.
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
