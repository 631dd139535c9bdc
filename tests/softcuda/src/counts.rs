//! Call counts of the entry points.
//!
//! # Rules
//! 1. Each thread counts in a block of its own, so two threads never write the same cache line.
//! 2. Only the block's thread writes it: an addition is a load and a store.
//! 3. A block outlives its thread. The next new thread reuses it and continues from its counts.
//! 4. The number of calls is the sum over all blocks minus that sum at the last reset.

use crate::entries::{Entry, NAMES};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[repr(align(128))]
struct Block([AtomicU64; NAMES.len()]);

struct Blocks {
    all: Vec<&'static Block>,
    unused: Vec<&'static Block>,
    at_reset: [u64; NAMES.len()],
}

static BLOCKS: Mutex<Blocks> =
    Mutex::new(Blocks { all: Vec::new(), unused: Vec::new(), at_reset: [0; NAMES.len()] });

/// Makes the block available to new threads when its thread ends.
struct Lease(&'static Block);

impl Drop for Lease {
    fn drop(&mut self) {
        MINE.set(None);
        BLOCKS.lock().unused.push(self.0);
    }
}

thread_local! {
    static MINE: Cell<Option<&'static Block>> = const { Cell::new(None) };
    static LEASE: Cell<Option<Lease>> = const { Cell::new(None) };
}

/// Counts one call.
#[inline]
pub(crate) fn count(entry: Entry) {
    let block = MINE.get().unwrap_or_else(lease);
    let count = &block.0[entry as usize];
    count.store(count.load(Relaxed) + 1, Relaxed);
}

#[cold]
fn lease() -> &'static Block {
    let mut blocks = BLOCKS.lock();
    let block = blocks.unused.pop().unwrap_or_else(|| {
        let block: &'static Block = Box::leak(Box::new(Block([const { AtomicU64::new(0) }; NAMES.len()])));
        blocks.all.push(block);
        block
    });
    drop(blocks);
    // This fails on a thread whose thread-locals are already destroyed. Its block is not reused.
    let _ = LEASE.try_with(|place| place.set(Some(Lease(block))));
    MINE.set(Some(block));
    block
}

fn sums(blocks: &Blocks) -> [u64; NAMES.len()] {
    std::array::from_fn(|entry| blocks.all.iter().map(|block| block.0[entry].load(Relaxed)).sum())
}

/// Returns the calls since the start or the last reset, by entry point.
pub(crate) fn all() -> [u64; NAMES.len()] {
    let blocks = BLOCKS.lock();
    let sums = sums(&blocks);
    std::array::from_fn(|entry| sums[entry] - blocks.at_reset[entry])
}

/// Returns a number that grows by one with each of the calling thread's calls of an entry point. It
/// starts at any number.
pub(crate) fn of_this_thread(index: usize) -> u64 {
    MINE.get().unwrap_or_else(lease).0[index].load(Relaxed)
}

/// Resets the counts to zero.
pub(crate) fn reset() {
    let mut blocks = BLOCKS.lock();
    blocks.at_reset = sums(&blocks);
}

/// Prints the nonzero counts to stderr.
pub(crate) fn print() {
    for (name, count) in NAMES.iter().zip(all()).filter(|(_, count)| *count > 0) {
        eprintln!("{name} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_ended_threads_still_count() {
        let before = all()[Entry::cuCtxGetFlags as usize];
        for _ in 0..3 {
            std::thread::spawn(|| count(Entry::cuCtxGetFlags)).join().unwrap();
        }
        assert_eq!(all()[Entry::cuCtxGetFlags as usize] - before, 3);
    }

    #[test]
    fn a_thread_is_told_of_its_own_calls() {
        let entry = Entry::cuCtxGetApiVersion;
        let before = of_this_thread(entry as usize);
        std::thread::spawn(move || count(entry)).join().unwrap();
        assert_eq!(of_this_thread(entry as usize), before);
        count(entry);
        assert_eq!(of_this_thread(entry as usize), before + 1);
    }
}
