//! The records of each word of memory for the check of races.

use super::super::effect::Scope;
use super::order::{Thread, Time};
use super::records::Records;
use std::ops::Range;

/// An access that a word remembers. All zeros mean none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// The value for places that do not fit in the 18 bits.
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

    #[inline(always)]
    pub(super) fn of_fields([time, block, rest]: [u32; 3]) -> Self {
        Record { time, block, rest }
    }

    #[inline(always)]
    pub(super) fn fields(self) -> [u32; 3] {
        [self.time, self.block, self.rest]
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

    /// Returns 0 for a weak access, 1 for one that is strong for its block, and 2 for one that is
    /// strong for the device: each races with more than the next.
    fn strength(self) -> u32 {
        u32::from(self.is_strong()) + u32::from(self.time & (STRONG | OF_BLOCK) == STRONG)
    }

    #[inline(always)]
    pub(super) fn block(self) -> u32 {
        self.block
    }

    #[inline(always)]
    pub(super) fn thread(self) -> Thread {
        Thread { block: self.block, number: self.rest >> 4 & 0x3ff }
    }

    /// Returns the place of the op, unless that did not fit in the record.
    pub(super) fn place(self) -> Option<u32> {
        Some(self.rest >> 14).filter(|place| *place != Self::FAR)
    }

    #[inline(always)]
    pub(super) fn is_of_warp(self, other: Record) -> bool {
        (self.block == other.block) & ((self.rest ^ other.rest) & (0x1f << 9) == 0)
    }

    /// Returns whether both are of one op of one thread.
    #[inline(always)]
    fn is_of_op(self, other: Record) -> bool {
        (self.block == other.block) & ((self.rest ^ other.rest) & !0xf == 0)
    }

    #[inline(always)]
    pub(super) fn is_of_thread(self, other: Record) -> bool {
        (self.block == other.block) & ((self.rest ^ other.rest) & (0x3ff << 4) == 0)
    }

    /// Returns the last read of a word and the other one, after one more read.
    #[inline(always)]
    fn followed([last, other]: [Record; 2], by: Record) -> [Record; 2] {
        // Reads by one op of a thread at one time count as one. A read by another op does not: its
        // value may be dropped where that of the other one is used. If it has not all the bytes,
        // both stay, as those of two threads do.
        let (is_of_op, is_later) = (last.is_of_op(by), last.time != by.time);
        let has_all = last.bytes() & !by.bytes() == 0;
        let is_replaced = last.is_of_thread(by) & (is_of_op | is_later | has_all);
        let stays = is_replaced | (last.bytes() == 0) | (other.bytes() != 0) & last.is_of_warp(by);
        let other = if stays { other } else { last };
        let bytes = if is_of_op & !is_later { last.bytes() } else { 0 };
        [Record { rest: by.rest | bytes, ..by }, other]
    }

    /// Returns the last read of a word and the other one, after several lanes of a warp have read
    /// all bytes of it at one time. `first` and `last` are of two lanes.
    #[inline(always)]
    fn followed_by_lanes(reads: [Record; 2], first: Record, last: Record) -> [Record; 2] {
        let [read, other] = Record::followed(reads, first);
        // Each lane replaces the one before, which is kept if there is no other one.
        [last, if other.bytes() == 0 { read } else { other }]
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
    /// The last write of each word.
    writes: Records,
    /// A write of each word before the last one, if that does not replace it: one that races with
    /// more, such as a weak one before a strong one or one for the block alone before one for the
    /// device, or a weak one of other bytes. Of several, the last of those that race with most.
    /// There are none before the first such pair.
    covered: Records,
    /// The weak reads since the last weak write.
    weak_reads: Reads,
    /// The strong reads since the last weak write.
    strong_reads: Reads,
}

/// Two reads of each word.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reads {
    /// The last one. There are none before the first read.
    last: Records,
    /// Another one: of another thread, of another warp if there was one, or of other bytes by
    /// another op. There are none before a word has two.
    others: Records,
}

impl Reads {
    /// Replaces the last read and the other one of each of some words, of `len` in all.
    #[inline(always)]
    fn change(
        &mut self,
        len: usize,
        words: Range<usize>,
        change: impl Fn(usize, [Record; 2]) -> [Record; 2],
    ) {
        if self.last.is_empty() {
            self.last = Records::new(len);
        }
        // For a single word, slices cost more than vectors gain.
        if words.len() > 1 && !self.others.is_empty() {
            let [times, blocks, rests] = self.last.fields_mut(words.clone());
            let [other_times, other_blocks, other_rests] = self.others.fields_mut(words);
            change_all(times, blocks, rests, other_times, other_blocks, other_rests, change);
            return;
        }
        for (word, at) in words.enumerate() {
            let other = if self.others.is_empty() { Record::default() } else { self.others.get(at) };
            let [last, other] = change(word, [self.last.get(at), other]);
            if other.bytes() != 0 && self.others.is_empty() {
                self.others = Records::new(len);
            }
            self.last.set(at, last);
            if !self.others.is_empty() {
                self.others.set(at, other);
            }
        }
    }
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
        let racing = |write: &Record| write.may_race(by) && !is_before(*write);
        if let Some(write) = self.writes_of(at).find(racing) {
            return Some(write);
        }
        if by.is_strong() {
            self.strong_reads.change(self.writes.len(), at..at + 1, |_, reads| Record::followed(reads, by));
        } else {
            self.note_reads(at..at + 1, |_| by);
        }
        None
    }

    /// Returns the last write of a word and the one that it covers.
    #[inline(always)]
    fn writes_of(&self, at: usize) -> impl Iterator<Item = Record> {
        self.all_writes().map(move |writes| writes.get(at))
    }

    #[inline(always)]
    fn all_writes(&self) -> impl Iterator<Item = &Records> {
        [&self.writes, &self.covered].into_iter().filter(|writes| !writes.is_empty())
    }

    /// Notes a weak read of each of some words.
    #[inline(always)]
    pub(super) fn note_reads(&mut self, words: Range<usize>, by: impl Fn(usize) -> Record) {
        let change = |word, reads| Record::followed(reads, by(word));
        self.weak_reads.change(self.writes.len(), words, change);
    }

    /// Notes that several lanes of a warp make weak reads of all bytes of each of some words, by
    /// the first and the last of these lanes.
    #[inline(always)]
    pub(super) fn note_reads_of_lanes(
        &mut self,
        words: Range<usize>,
        first_and_last: impl Fn(usize) -> [Record; 2],
    ) {
        self.weak_reads.change(self.writes.len(), words, |word, reads| {
            let [first, last] = first_and_last(word);
            Record::followed_by_lanes(reads, first, last)
        });
    }

    /// Returns the last writes of some words and those that they cover, as far as there are any.
    #[inline(always)]
    pub(super) fn writes(&self, words: Range<usize>) -> impl Iterator<Item = impl Iterator<Item = Record>> {
        self.all_writes().map(move |writes| of_fields(writes.fields(words.clone())))
    }

    /// Returns the reads of some words, as far as there are any.
    #[inline(always)]
    pub(super) fn reads(&self, words: Range<usize>) -> impl Iterator<Item = impl Iterator<Item = Record>> {
        self.all_reads().map(move |reads| of_fields(reads.fields(words.clone())))
    }

    #[inline(always)]
    fn all_reads(&self) -> impl Iterator<Item = &Records> {
        let Words { weak_reads, strong_reads, .. } = self;
        [&weak_reads.last, &weak_reads.others, &strong_reads.last, &strong_reads.others]
            .into_iter()
            .filter(|reads| !reads.is_empty())
    }

    #[inline(always)]
    fn all_but_last_writes(&mut self) -> impl Iterator<Item = &mut Records> {
        let Words { covered, weak_reads, strong_reads, .. } = self;
        [
            covered,
            &mut weak_reads.last,
            &mut weak_reads.others,
            &mut strong_reads.last,
            &mut strong_reads.others,
        ]
        .into_iter()
        .filter(|accesses| !accesses.is_empty())
    }

    /// Notes a write.
    #[inline(always)]
    pub(super) fn note_write(&mut self, at: usize, by: Record) {
        match by.is_strong() {
            true => self.note_strong_write(at, by),
            false => self.note_weak_write(at, by),
        }
    }

    /// Notes a strong write, which races with less than a weak access does: those before it stay.
    fn note_strong_write(&mut self, at: usize, by: Record) {
        let write = self.writes.get(at);
        if write.bytes() != 0 && write.strength() < by.strength() {
            self.cover(at, write);
        }
        self.writes.set(at, by);
    }

    /// Notes a weak write, which ends what is known of its bytes. A weak one of other bytes stays.
    #[inline(always)]
    fn note_weak_write(&mut self, at: usize, by: Record) {
        self.all_but_last_writes().for_each(|accesses| accesses.end_bytes(at, by.bytes()));
        let write = self.writes.get(at);
        let left = Record { rest: write.rest & !by.bytes(), ..write };
        let is_repeated = write.is_of_op(by) & (write.time == by.time);
        if left.bytes() != 0 && !write.is_strong() && !is_repeated {
            self.cover(at, left);
        }
        let bytes = if is_repeated { left.bytes() } else { 0 };
        self.writes.set(at, Record { rest: by.rest | bytes, ..by });
    }

    /// Keeps a write behind which another one follows, unless one is kept that races with more.
    #[inline(always)]
    fn cover(&mut self, at: usize, write: Record) {
        if self.covered.is_empty() {
            self.covered = Records::new(self.writes.len());
        }
        let covered = self.covered.get(at);
        if covered.bytes() == 0 || covered.strength() >= write.strength() {
            self.covered.set(at, write);
        }
    }

    /// Notes a weak write of each of some words. All are to the same bytes of a word.
    #[inline(always)]
    pub(super) fn note_writes(&mut self, words: Range<usize>, by: impl Fn(usize) -> Record) {
        let bytes = by(0).bytes();
        for accesses in self.all_but_last_writes() {
            let [_, _, rests] = accesses.fields_mut(words.clone());
            rests.iter_mut().for_each(|rest| *rest &= !bytes);
        }
        for (which, field) in self.writes.fields_mut(words).into_iter().enumerate() {
            for (word, value) in field.iter_mut().enumerate() {
                *value = by(word).fields()[which];
            }
        }
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
        let racing = |write: &Record| write.may_race(by) && !is_before(*write) && !is_silent(*write);
        if let Some(write) = self.writes_of(at).find(racing) {
            return Some((write, true));
        }
        let racing = |read: &Record| read.may_race(by) && !is_harmless(*read);
        self.all_reads().map(|reads| reads.get(at)).find(racing).map(|read| (read, false))
    }
}

/// Returns the records that have these fields.
#[inline(always)]
fn of_fields([times, blocks, rests]: [&[u32]; 3]) -> impl Iterator<Item = Record> {
    times.iter().zip(blocks).zip(rests).map(|((time, block), rest)| Record::of_fields([*time, *block, *rest]))
}

/// Replaces pairs of records whose fields are in these slices, which have one length. They are
/// parameters of their own, which tells the compiler that they do not overlap.
#[inline(always)]
fn change_all(
    times: &mut [u32],
    blocks: &mut [u32],
    rests: &mut [u32],
    other_times: &mut [u32],
    other_blocks: &mut [u32],
    other_rests: &mut [u32],
    change: impl Fn(usize, [Record; 2]) -> [Record; 2],
) {
    let len = times.len();
    let (blocks, rests) = (&mut blocks[..len], &mut rests[..len]);
    let (other_times, other_blocks, other_rests) =
        (&mut other_times[..len], &mut other_blocks[..len], &mut other_rests[..len]);
    for word in 0..len {
        let last = Record { time: times[word], block: blocks[word], rest: rests[word] };
        let other = Record { time: other_times[word], block: other_blocks[word], rest: other_rests[word] };
        let [last, other] = change(word, [last, other]);
        (times[word], blocks[word], rests[word]) = (last.time, last.block, last.rest);
        (other_times[word], other_blocks[word], other_rests[word]) = (other.time, other.block, other.rest);
    }
}
