//! The records of each word of memory for the check of races.

use super::super::effect::Scope;
use super::order::{Thread, Time};
use super::records::Records;
use bytemuck::Zeroable;
use std::ops::Range;

/// An access that a word remembers. All zeros mean none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroable)]
pub(super) struct Record {
    /// The time, in the highest bit whether the access is strong, and in the one below whether its
    /// scope is the block.
    time: u32,
    block: u32,
    /// From the lowest bit: 4 bits for the bytes, 10 for the thread and 18 for the place of the op.
    rest: u32,
}

const STRONG: u32 = 1 << 31;
const OF_BLOCK: u32 = 1 << 30;

impl Record {
    /// The place of an op that is too far behind.
    const FAR: u32 = (1 << 18) - 1;

    /// Returns the record of an access to no bytes, which is strong if it has a scope.
    pub(super) fn new(thread: Thread, time: Time, strong: Option<Scope>, place: u32) -> Self {
        let flags = match strong {
            None => 0,
            Some(Scope::Cluster | Scope::Device) => STRONG,
            Some(Scope::Block) => STRONG | OF_BLOCK,
        };
        Record {
            time: time | flags,
            block: thread.block,
            rest: place.min(Self::FAR) << 14 | (thread.number & 0x3ff) << 4,
        }
    }

    /// Returns the same access of another lane of the warp, to these bytes of a word.
    #[inline(always)]
    pub(super) fn at(self, lane: usize, bytes: u32) -> Self {
        Record { rest: self.rest | (lane as u32) << 4 | bytes, ..self }
    }

    #[inline(always)]
    pub(super) fn bytes(self) -> u32 {
        self.rest & 0xf
    }

    #[inline(always)]
    pub(super) fn time(self) -> Time {
        self.time & !(STRONG | OF_BLOCK)
    }

    #[inline(always)]
    pub(super) fn is_strong(self) -> bool {
        self.time & STRONG != 0
    }

    #[inline(always)]
    pub(super) fn block(self) -> u32 {
        self.block
    }

    #[inline(always)]
    pub(super) fn thread(self) -> Thread {
        Thread { block: self.block, number: self.rest >> 4 & 0x3ff }
    }

    /// Returns the place of the op, unless that is too far behind.
    pub(super) fn place(self) -> Option<u32> {
        Some(self.rest >> 14).filter(|place| *place != Self::FAR)
    }

    #[inline(always)]
    pub(super) fn is_of_warp(self, other: Record) -> bool {
        self.block == other.block && (self.rest ^ other.rest) & (0x1f << 9) == 0
    }

    #[inline(always)]
    pub(super) fn is_of_thread(self, other: Record) -> bool {
        self.block == other.block && (self.rest ^ other.rest) & (0x3ff << 4) == 0
    }

    /// Replaces the last read of a word by one that follows, and the other one where needed.
    #[inline(always)]
    fn follow(&mut self, other: &mut Record, by: Record) {
        let is_of_thread = self.is_of_thread(by);
        let stays = is_of_thread | (self.bytes() == 0) | (other.bytes() != 0) & self.is_of_warp(by);
        *other = if stays { *other } else { *self };
        // Reads of one thread at one time count as one.
        let bytes = if is_of_thread & (self.time == by.time) { self.bytes() } else { 0 };
        *self = Record { rest: by.rest | bytes, ..by };
    }

    /// Returns whether the accesses touch the same bytes, and not both of them are strong for each
    /// other's thread.
    #[inline(always)]
    fn may_race(self, other: Record) -> bool {
        let is_apart = self.block != other.block && (self.time | other.time) & OF_BLOCK != 0;
        self.rest & other.rest & 0xf != 0 && (self.time & other.time & STRONG == 0 || is_apart)
    }
}

/// The records of each word of a piece of memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Words {
    /// The last write.
    writes: Records,
    /// The last read since. There are none before the first read.
    reads: Records,
    /// Another read since, of another thread, of another warp if there was one. There are none
    /// before a word has two.
    others: Records,
}

impl Words {
    pub(super) fn new(len: usize) -> Self {
        Words { writes: Records::new(len), ..Words::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Returns the write that a read races with, if there is one, and notes the read.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        at: usize,
        by: Record,
        is_before: impl Fn(Record) -> bool,
    ) -> Option<Record> {
        let write = self.writes[at];
        if write.may_race(by) && !is_before(write) {
            return Some(write);
        }
        self.note_read(at, by);
        None
    }

    /// Notes a read.
    #[inline(always)]
    fn note_read(&mut self, at: usize, by: Record) {
        if self.reads.is_empty() {
            self.reads = Records::new(self.writes.len());
        }
        let last = &mut self.reads[at];
        if last.bytes() != 0 && !last.is_of_thread(by) && self.others.is_empty() {
            self.others = Records::new(self.writes.len());
        }
        last.follow(self.others.get_mut(at).unwrap_or(&mut Record::default()), by);
    }

    /// Notes a read of each of some words.
    #[inline(always)]
    pub(super) fn note_reads(&mut self, words: Range<usize>, by: impl Fn(usize) -> Record) {
        if self.others.is_empty() {
            words.enumerate().for_each(|(word, at)| self.note_read(at, by(word)));
            return;
        }
        let reads = self.reads[words.clone()].iter_mut().zip(&mut self.others[words]);
        reads.enumerate().for_each(|(word, (last, other))| last.follow(other, by(word)));
    }

    /// Returns the last writes of some words.
    #[inline(always)]
    pub(super) fn writes(&self, words: Range<usize>) -> &[Record] {
        &self.writes[words]
    }

    /// Returns the last reads of some words, and the other ones. Empty if no word has one.
    #[inline(always)]
    pub(super) fn reads(&self, words: Range<usize>) -> [&[Record]; 2] {
        [&self.reads, &self.others]
            .map(|records| if records.is_empty() { &[] } else { &records[words.clone()] })
    }

    /// Notes a write.
    #[inline(always)]
    pub(super) fn note_write(&mut self, at: usize, by: Record) {
        for read in [self.reads.get_mut(at), self.others.get_mut(at)].into_iter().flatten() {
            read.rest &= !by.bytes();
        }
        self.writes[at] = by;
    }

    /// Returns an access that a write races with, if there is one, and whether that is a write.
    /// `is_silent` returns whether a write leaves the word as the earlier one left it, and
    /// `is_harmless` whether a read does not race.
    #[inline(always)]
    pub(super) fn racing(
        &self,
        at: usize,
        by: Record,
        is_before: impl Fn(Record) -> bool,
        is_silent: impl Fn(Record) -> bool,
        is_harmless: impl Fn(Record) -> bool,
    ) -> Option<(Record, bool)> {
        let write = self.writes[at];
        if write.may_race(by) && !is_before(write) && !is_silent(write) {
            return Some((write, true));
        }
        let reads = [self.reads.get(at), self.others.get(at)].into_iter().flatten();
        let racing = |read: &&Record| read.may_race(by) && !is_harmless(**read);
        reads.into_iter().find(racing).map(|read| (*read, false))
    }
}
