//! Weak accesses of a whole warp in runs (`exec::runs`), which most accesses are.
//!
//! Their words are compared and noted in loops without branches. The records are left as `compare`
//! leaves them, which looks at one lane after the other. An access is noted here only if a simple
//! rule orders every earlier access to its words ([`Weak::is_after`]). So there is nothing to
//! report. Any other access is left to `compare`, with the records unchanged.

use super::super::registers::LANES;
use super::super::runs::{RUN, Runs};
use super::compare::Known;
use super::order::Time;
use super::shadow::{Record, Words};
use std::ops::Range;

/// A weak access of all lanes of a warp.
pub(super) struct Weak {
    pub(super) runs: Runs,
    /// The bytes that each lane accesses.
    pub(super) bytes: u64,
    pub(super) is_load: bool,
    /// The record of the first lane, from which `of_word` makes those of the others.
    pub(super) by: Record,
    /// The floor of the warp (`ClusterClocks::floor`): accesses that its block made earlier are
    /// before this one.
    pub(super) floor: Time,
    /// The numbers of the blocks of the cluster.
    pub(super) blocks: Range<u32>,
}

impl Weak {
    fn run_bytes(&self) -> u64 {
        if self.runs.is_same { self.bytes } else { self.bytes * RUN as u64 }
    }

    /// Returns the first byte and the end of the last one.
    pub(super) fn extent(&self) -> (u64, u64) {
        let [first, second] = self.runs.starts;
        (first.min(second), first.max(second) + self.run_bytes())
    }

    /// Notes the access, unless it is left to `compare`. Returns whether it is noted.
    pub(super) fn note(&self, known: &mut Known<'_>) -> bool {
        let starts = self.runs.starts.map(|start| start - known.start);
        // Lanes that share a word by a store race, and so may those that share one by its bytes.
        let is_shared = self.runs.is_same || starts[0].abs_diff(starts[1]) < self.run_bytes();
        if self.bytes < 4 || !self.is_load && is_shared {
            return false;
        }
        let ends = starts.map(|start| (start, start + self.run_bytes()));
        if self.is_load
            && let Some(defined) = &known.defined
            && !ends.iter().all(|&(from, to)| defined.are_set(from, to))
        {
            return false;
        }
        if !known.words.is_empty() {
            let words = ends.map(|(from, to)| from as usize / 4..to as usize / 4);
            // The runs of a load may have all words in common, which are then looked at once.
            let is_common = words[0] == words[1];
            let words = if is_common { &words[..1] } else { &words[..] };
            if !words.iter().enumerate().all(|(run, words)| self.is_after(run, words, known, is_common)) {
                return false;
            }
            for (run, words) in words.iter().enumerate() {
                self.note_words(run, words.clone(), known.words, is_common);
            }
        }
        if !self.is_load
            && let Some(defined) = known.defined.as_deref_mut()
        {
            ends.iter().for_each(|&(from, to)| defined.set_all(from, to));
        }
        true
    }

    /// Returns the record of the lane that accesses this word of this run.
    #[inline(always)]
    fn of_word(&self, run: usize, word: usize) -> Record {
        // The size of an access is a power of two.
        let shift = self.bytes.trailing_zeros() - 2;
        // 32 bits, so that a vector holds as many of them as of the fields of records.
        self.by.at(run * RUN + (word as u32 >> shift) as usize, 0xf)
    }

    /// Returns whether each earlier access to the words of a run that matters is of the same
    /// thread, or known by all lanes of the warp, or one of another cluster to shared memory of
    /// its own. `is_common` tells whether the other run has the same words.
    #[inline(always)]
    fn is_after(&self, run: usize, words: &Range<usize>, known: &Known<'_>, is_common: bool) -> bool {
        let has_own_words = !self.runs.is_same && !is_common;
        let is_before = |earlier: Record, by: Record| {
            let is_of_block = earlier.block() == by.block();
            (earlier.bytes() == 0)
                | (is_of_block & (earlier.time() < self.floor))
                | (known.is_own & !self.blocks.contains(&earlier.block()))
                | (has_own_words & earlier.is_of_thread(by))
        };
        let mut all = true;
        for writes in known.words.writes(words.clone()) {
            for (at, write) in writes.enumerate() {
                all &= is_before(write, self.of_word(run, at));
            }
        }
        if !self.is_load {
            for reads in known.words.reads(words.clone()) {
                for (at, read) in reads.enumerate() {
                    all &= is_before(read, self.of_word(run, at));
                }
            }
        }
        all
    }

    /// Notes the access to the words of a run, or of both runs.
    #[inline(always)]
    fn note_words(&self, run: usize, words: Range<usize>, known: &mut Words, is_common: bool) {
        if self.runs.is_same {
            let end = if is_common { LANES } else { (run + 1) * RUN };
            let lanes = [run * RUN, end - 1].map(|lane| self.by.at(lane, 0xf));
            known.note_reads_of_lanes(words, |_| lanes);
        } else if is_common {
            known.note_reads_of_lanes(words, |word| [0, 1].map(|run| self.of_word(run, word)));
        } else if self.is_load {
            known.note_reads(words, |word| self.of_word(run, word));
        } else {
            known.note_writes(words, |word| self.of_word(run, word));
        }
    }
}

#[cfg(test)]
mod tests;
