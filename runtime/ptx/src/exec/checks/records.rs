//! The memory of many records, which launches hand on to each other.
//!
//! A launch needs three records for each word that it reads and writes. The system takes longer to
//! hand out that many new pages than a launch takes to clear old ones.

use super::shadow::Record;
use bytemuck::{fill_zeroes, zeroed_vec};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most bytes that are kept for later launches.
const MOST_BYTES: usize = 64 << 20;
/// The fewest bytes that are kept: shorter memory returns to the allocator.
const LEAST_BYTES: usize = 64 << 10;

/// Memory of launches that have ended, for later ones.
static SPARE: Mutex<Vec<Vec<u32>>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<Vec<u32>>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes(records: &Vec<u32>) -> usize {
    records.capacity() * size_of::<u32>()
}

/// Records, at first of no accesses. Each of their three fields has a part of the memory for
/// itself, so that loops over several records work on vectors.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Records {
    len: usize,
    /// The times, then the blocks, then the rests.
    fields: Vec<u32>,
}

impl Records {
    pub(super) fn new(len: usize) -> Self {
        let fields_len = 3 * len;
        let mut spare = spare();
        let fits = spare.iter().enumerate().filter(|(_, fields)| fields.capacity() >= fields_len);
        let Some((at, _)) = fits.min_by_key(|(_, fields)| fields.capacity()) else {
            drop(spare);
            // The system hands out zeros, and no page before it is touched.
            return Records { len, fields: zeroed_vec(fields_len) };
        };
        let mut fields = spare.swap_remove(at);
        drop(spare);
        fields.truncate(fields_len);
        fill_zeroes(&mut fields);
        fields.resize(fields_len, 0);
        Records { len, fields }
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> Record {
        let Records { len, fields } = self;
        Record::of_fields([fields[at], fields[at + len], fields[at + 2 * len]])
    }

    #[inline(always)]
    pub(super) fn set(&mut self, at: usize, record: Record) {
        let Records { len, fields } = self;
        [fields[at], fields[at + *len], fields[at + 2 * *len]] = record.fields();
    }

    /// Takes bytes from a record.
    #[inline(always)]
    pub(super) fn end_bytes(&mut self, at: usize, bytes: u32) {
        self.fields[at + 2 * self.len] &= !bytes;
    }

    /// Returns the times, the blocks and the rests of some records.
    #[inline(always)]
    pub(super) fn fields(&self, range: Range<usize>) -> [&[u32]; 3] {
        let (times, behind) = self.fields.split_at(self.len);
        let (blocks, rests) = behind.split_at(self.len);
        [&times[range.clone()], &blocks[range.clone()], &rests[range]]
    }

    #[inline(always)]
    pub(super) fn fields_mut(&mut self, range: Range<usize>) -> [&mut [u32]; 3] {
        let (times, behind) = self.fields.split_at_mut(self.len);
        let (blocks, rests) = behind.split_at_mut(self.len);
        [&mut times[range.clone()], &mut blocks[range.clone()], &mut rests[range]]
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let records = std::mem::take(&mut self.fields);
        if bytes(&records) < LEAST_BYTES {
            return;
        }
        let mut spare = spare();
        let kept: usize = spare.iter().map(bytes).sum();
        if kept + bytes(&records) <= MOST_BYTES {
            spare.push(records);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::effect::Scope;
    use super::super::order::Thread;
    use super::*;

    #[test]
    fn records_of_an_earlier_launch_are_cleared_whatever_the_lengths() {
        let lens = [10_000, 20_000, 9_000, 20_000, 0, 10_001];
        for len in lens {
            let mut records = Records::new(len);
            assert_eq!(records.len(), len);
            assert!((0..len).all(|at| records.get(at) == Record::default()));
            let by = Record::new(Thread { block: 1, number: 2 }, 3, Some(Scope::Device), 4).at(5, 0xf);
            (0..len).for_each(|at| records.set(at, by));
            assert!((0..len).all(|at| records.get(at) == by));
        }
    }
}
