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
//! Among n rows, the buffer draws a number below n as `draws.rs` describes. The rows in the buffer
//! are numbered from 0. A new row gets the lowest number that is free. When a row is drawn, the row
//! with the highest number takes over its number.

use super::draws::Draws;
use super::sample::Sample;
use warpline_runtime::Result;

pub(super) struct Shuffle<S: Sample> {
    capacity: usize,
    widths: S::Widths,
    /// One row per slot. There are as many slots as the buffer has ever held rows at once.
    rows: S::Columns,
    slots: usize,
    /// The slots that hold a row.
    held: Vec<usize>,
    /// The slot that was drawn last.
    free: Option<usize>,
    ended: bool,
    draws: Draws,
}

impl<S: Sample> Shuffle<S> {
    pub(super) fn new(capacity: usize, widths: S::Widths, seed: u64, epoch: u64) -> Self {
        Shuffle {
            capacity,
            widths,
            rows: S::Columns::default(),
            slots: 0,
            held: Vec::new(),
            free: None,
            ended: false,
            draws: Draws::new(seed, epoch),
        }
    }

    /// Writes the next row, like [`Rows::next_row`](super::Rows::next_row), from the rows that
    /// `read` writes in the same way.
    pub(super) fn next_row(
        &mut self,
        mut read: impl FnMut(S::Slots<'_>) -> Result<bool>,
        into: S::Slots<'_>,
    ) -> Result<bool> {
        while self.fill_one(&mut read)? {}
        if self.held.is_empty() {
            return Ok(false);
        }
        let slot = self.held.swap_remove(self.draws.below(self.held.len()));
        S::copy_row(&self.rows, self.widths, slot, into);
        self.free = Some(slot);
        Ok(true)
    }

    /// Reads one row into the buffer. Returns `false` if there was no row, or no room for one.
    pub(super) fn fill_one(&mut self, read: impl FnOnce(S::Slots<'_>) -> Result<bool>) -> Result<bool> {
        if self.ended || self.held.len() >= self.capacity {
            return Ok(false);
        }
        let slot = self.free.take().unwrap_or_else(|| self.grow());
        if !read(S::column_slots(&mut self.rows, self.widths, slot))? {
            self.ended = true;
            return Ok(false);
        }
        self.held.push(slot);
        Ok(true)
    }

    fn grow(&mut self) -> usize {
        S::grow(&mut self.rows, self.widths);
        self.slots += 1;
        self.slots - 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::sampler::{Sampler as _, Shuffled};
    use super::*;
    use proptest::prelude::*;

    /// Returns the labels of rows 0 to n - 1 in shuffled order. Checks that a row's features stay
    /// with its label.
    fn order(n: usize, capacity: usize, seed: u64, epoch: u64) -> Vec<i64> {
        let mut rows = 0..n as i64;
        let mut read = |(features, label): (&mut [f32], &mut [i64])| {
            let Some(row) = rows.next() else { return Ok(false) };
            features.copy_from_slice(&[row as f32, -row as f32]);
            label[0] = row;
            Ok(true)
        };
        let mut shuffle = Shuffle::<(f32, i64)>::new(capacity, [2, 1], seed, epoch);
        let (mut order, mut features, mut label) = (Vec::new(), [0.0; 2], [0]);
        while shuffle.next_row(&mut read, (&mut features, &mut label)).unwrap() {
            assert_eq!(features, [label[0] as f32, -label[0] as f32]);
            order.push(label[0]);
        }
        assert!(shuffle.slots <= capacity, "{} slots for {capacity}", shuffle.slots);
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
    fn with_room_for_all_rows_it_gives_the_order_of_the_sampler() {
        for (n, seed, epoch) in [(1, 0, 0), (10, 2026, 3), (100, 7, 0)] {
            let sampler = Shuffled::new(seed).indices(n, epoch).unwrap();
            let expected: Vec<_> = sampler.map(|index| index as i64).collect();
            assert_eq!(order(n, n, seed, epoch), expected);
            assert_eq!(order(n, 2 * n, seed, epoch), expected);
        }
    }

    #[test]
    fn the_order_is_what_it_was_in_the_first_version() {
        // Computed by a second implementation of the algorithm at the top of this file. A change
        // here changes the order of rows in every program that shuffles.
        assert_eq!(order(10, 4, 2026, 0), [2, 1, 3, 6, 0, 7, 9, 5, 8, 4]);
    }
}
