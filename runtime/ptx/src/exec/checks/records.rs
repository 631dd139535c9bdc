//! The memory of many records, which launches hand on to each other.
//!
//! A launch needs three records for each word that it reads and writes. The system takes longer to
//! hand out that many new pages than a launch takes to clear old ones.

use super::shadow::Record;
use bytemuck::{fill_zeroes, zeroed_vec};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most bytes that are kept for later launches.
const MOST_BYTES: usize = 64 << 20;
/// The least bytes that are worth it.
const LEAST_BYTES: usize = 64 << 10;

/// The memory that no launch uses.
static SPARE: Mutex<Vec<Vec<Record>>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<Vec<Record>>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes(records: &Vec<Record>) -> usize {
    records.capacity() * size_of::<Record>()
}

/// Records, at first of no accesses.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Records(Vec<Record>);

impl Records {
    pub(super) fn new(len: usize) -> Self {
        let mut spare = spare();
        let fits = spare.iter().enumerate().filter(|(_, records)| records.capacity() >= len);
        let Some((at, _)) = fits.min_by_key(|(_, records)| records.capacity()) else {
            drop(spare);
            // The system hands out zeros, and no page before it is touched.
            return Records(zeroed_vec(len));
        };
        let mut records = spare.swap_remove(at);
        drop(spare);
        records.truncate(len);
        fill_zeroes(&mut records);
        records.resize(len, Record::default());
        Records(records)
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let records = std::mem::take(&mut self.0);
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

impl Deref for Records {
    type Target = [Record];

    #[inline(always)]
    fn deref(&self) -> &[Record] {
        &self.0
    }
}

impl DerefMut for Records {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Record] {
        &mut self.0
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
            assert!(records.iter().all(|record| *record == Record::default()));
            let by = Record::new(Thread { block: 1, number: 2 }, 3, Some(Scope::Device), 4).at(5, 0xf);
            records.fill(by);
        }
    }
}
