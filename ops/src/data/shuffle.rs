//! Shuffles rows through a buffer of bounded size, in the same order for a seed on every machine.
//!
//! # The algorithm
//! The buffer is filled with the first `capacity` rows. Then, for each row that is requested, one
//! of the rows in the buffer is drawn with equal probability. The next row of the source takes its
//! place. At the end of the source, the buffer empties. So each row is returned exactly once, and
//! at most `capacity` - 1 places early. With a capacity of at least the number of rows, every order
//! is equally likely. With a capacity of 1, the rows stay in order.
//!
//! # The draws
//! Draw d of epoch e, both counted from 0, is u = w₀ + 2³²·w₁. w₀ and w₁ are the first two words of
//! the Philox4x32-10 block whose key is the seed and whose counter is (d, e). Seed, d and e are
//! each a `u64`, low word first. Among n rows, the draw picks ⌊u·n / 2⁶⁴⌋: each row with
//! probability 1/n, with an error of less than n/2⁶⁴. The rows in the buffer are numbered from 0. A
//! new row gets the lowest number that is free. When a row is drawn, the row with the highest
//! number takes over its number.

use warpline_kernels::philox4x32_10;
use warpline_runtime::Result;

pub(super) struct Shuffle {
    capacity: usize,
    features: usize,
    /// The features, one row per slot. There are as many slots as the buffer has ever held rows at
    /// once.
    x: Vec<f32>,
    labels: Vec<i64>,
    /// The slots that hold a row.
    held: Vec<usize>,
    /// The slot that was drawn last.
    free: Option<usize>,
    ended: bool,
    draws: Draws,
}

impl Shuffle {
    pub(super) fn new(capacity: usize, features: usize, seed: u64, epoch: u64) -> Self {
        Shuffle {
            capacity,
            features,
            x: Vec::new(),
            labels: Vec::new(),
            held: Vec::new(),
            free: None,
            ended: false,
            draws: Draws { seed, epoch, next: 0 },
        }
    }

    /// Returns the next row, like [`Rows::next_row`](super::Rows::next_row), from the rows that
    /// `read` returns in the same way.
    pub(super) fn next_row(
        &mut self,
        mut read: impl FnMut(&mut [f32]) -> Result<Option<i64>>,
        features: &mut [f32],
    ) -> Result<Option<i64>> {
        while self.fill_one(&mut read)? {}
        if self.held.is_empty() {
            return Ok(None);
        }
        let slot = self.held.swap_remove(self.draws.below(self.held.len()));
        features.copy_from_slice(&self.x[slot * self.features..][..self.features]);
        self.free = Some(slot);
        Ok(Some(self.labels[slot]))
    }

    /// Reads one row into the buffer. Returns `false` if there was no row, or no room for one.
    pub(super) fn fill_one(&mut self, read: impl FnOnce(&mut [f32]) -> Result<Option<i64>>) -> Result<bool> {
        if self.ended || self.held.len() >= self.capacity {
            return Ok(false);
        }
        let slot = self.free.take().unwrap_or_else(|| self.grow());
        let Some(label) = read(&mut self.x[slot * self.features..][..self.features])? else {
            self.ended = true;
            return Ok(false);
        };
        self.labels[slot] = label;
        self.held.push(slot);
        Ok(true)
    }

    fn grow(&mut self) -> usize {
        self.x.resize(self.x.len() + self.features, 0.0);
        self.labels.push(0);
        self.labels.len() - 1
    }
}

struct Draws {
    seed: u64,
    epoch: u64,
    next: u64,
}

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        let [[d0, d1], [e0, e1], key] =
            [self.next, self.epoch, self.seed].map(|x| [x as u32, (x >> 32) as u32]);
        self.next += 1;
        let words = philox4x32_10([d0, d1, e0, e1], key);
        let u = u64::from(words[0]) | u64::from(words[1]) << 32;
        ((u128::from(u) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::dataset::Dataset;
    use super::super::in_memory::InMemory;
    use super::*;
    use proptest::prelude::*;

    /// Returns the labels of rows 0 to n - 1 in shuffled order. Checks that a row's features stay
    /// with its label.
    fn order(n: usize, capacity: usize, seed: u64, epoch: u64) -> Vec<i64> {
        let labels: Vec<_> = (0..n as i64).collect();
        let x = labels.iter().flat_map(|&label| [label as f32, -label as f32]).collect();
        let mut rows = InMemory::new(2, x, labels).unwrap().open().unwrap();
        let mut shuffle = Shuffle::new(capacity, 2, seed, epoch);
        let (mut order, mut features) = (Vec::new(), [0.0; 2]);
        while let Some(label) = shuffle.next_row(|x| rows.next_row(x), &mut features).unwrap() {
            assert_eq!(features, [label as f32, -label as f32]);
            order.push(label);
        }
        assert!(shuffle.labels.len() <= capacity, "{} slots for {capacity}", shuffle.labels.len());
        order
    }

    proptest! {
        #[test]
        fn every_row_comes_once_and_none_earlier_than_the_buffer_allows(
            n in 0_usize..300, capacity in 1_usize..320, seed: u64, epoch: u64,
        ) {
            let shuffled = order(n, capacity, seed, epoch);
            for (place, &label) in shuffled.iter().enumerate() {
                prop_assert!((label as usize) < place + capacity);
            }
            let mut sorted = shuffled.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..n as i64).collect::<Vec<_>>());
            prop_assert_eq!(order(n, capacity, seed, epoch), shuffled);
        }
    }

    #[test]
    fn a_capacity_of_one_keeps_the_order() {
        assert_eq!(order(50, 1, 7, 3), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn seed_and_epoch_each_give_another_order() {
        let one = order(100, 100, 1, 0);
        assert_ne!(one, (0..100).collect::<Vec<_>>());
        assert_ne!(one, order(100, 100, 2, 0));
        assert_ne!(one, order(100, 100, 1, 1));
    }

    #[test]
    fn each_row_is_first_about_equally_often() {
        let mut first = [0_u32; 8];
        (0..8000).for_each(|epoch| first[order(8, 8, 42, epoch)[0] as usize] += 1);
        // 1000 expected, standard deviation 30.
        assert!(first.iter().all(|n| (850..1150).contains(n)), "{first:?}");
    }

    #[test]
    fn the_order_is_what_it_was_in_the_first_version() {
        // Computed by a second implementation of the algorithm at the top of this file. A change
        // here changes the order of rows in every program that shuffles.
        assert_eq!(order(10, 4, 2026, 0), [2, 1, 3, 6, 0, 7, 9, 5, 8, 4]);
    }
}
