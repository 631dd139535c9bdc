//! What a node knows of its records, and the records that a search is about.

use super::position::Axis;
use crate::clock::Use;
use crate::range::ByteRange;
use crate::records::Record;
use arrayvec::ArrayVec;

/// The maximum number of streams that a node names.
const MOST_USERS: usize = 16;

/// The records that a search is about.
#[derive(Clone, Copy)]
pub(in crate::records) struct Window {
    /// Their spans start in `from..to`.
    pub(in crate::records) from: u64,
    pub(in crate::records) to: u64,
    /// Their spans end after it.
    past: u64,
    /// They share some of these bytes.
    bytes: Bytes,
    /// They have at most this many bytes from the first to the last.
    most: u64,
    /// Their runs have at most this many bytes.
    most_in_run: u64,
}

impl Window {
    /// Returns the window of all records that may overlap `range`.
    pub(in crate::records) fn overlapping(axis: Axis, range: &ByteRange) -> Self {
        let span = axis.span(range);
        let (bytes, any) = (Bytes::of(range), u64::MAX);
        Window { from: 0, to: span.end, past: span.start, bytes, most: any, most_in_run: any }
    }

    /// Returns the window of all records that `range` may cover.
    pub(in crate::records) fn covered_by(axis: Axis, range: &ByteRange) -> Self {
        let span = axis.span(range);
        let (bytes, most_in_run) = (Bytes::of(range), range.run_len());
        Window { from: span.start, to: span.end, past: 0, bytes, most: bytes.len(), most_in_run }
    }

    /// Returns the window of all records whose runs have at most `most_in_run` bytes.
    pub(in crate::records) fn of_runs_up_to(most_in_run: u64) -> Self {
        let any = u64::MAX;
        Window { from: 0, to: any, past: 0, bytes: Bytes { start: 0, end: any }, most: any, most_in_run }
    }

    /// Returns whether none of a node's records is in the window.
    pub(in crate::records) fn misses(self, known: &Known) -> bool {
        known.end <= self.past
            || !self.bytes.meet(known.bytes)
            || known.shortest > self.most
            || known.shortest_run > self.most_in_run
    }
}

/// All bytes from a first one to a last one, over gaps between runs.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    start: u64,
    end: u64,
}

impl Bytes {
    const NONE: Bytes = Bytes { start: u64::MAX, end: 0 };

    fn of(range: &ByteRange) -> Self {
        Bytes { start: range.offset(), end: range.end() }
    }

    fn len(self) -> u64 {
        self.end - self.start
    }

    fn and(self, other: Bytes) -> Self {
        Bytes { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    fn meet(self, other: Bytes) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The streams that made some records, each with its newest ticket.
#[derive(Clone, Debug, Default)]
pub(in crate::records) struct Users {
    few: ArrayVec<Use, MOST_USERS>,
    /// True if there are more streams than `few` can name.
    more: bool,
}

impl Users {
    pub(in crate::records) fn add(&mut self, used: Use) {
        match self.few.iter_mut().find(|user| user.stream == used.stream) {
            Some(user) => user.ticket = user.ticket.max(used.ticket),
            None => self.more |= self.few.try_push(used).is_err(),
        }
    }

    fn add_all(&mut self, other: &Users) {
        other.few.iter().for_each(|used| self.add(*used));
        self.more |= other.more;
    }

    /// Returns whether all uses satisfy `is_before`, if that can be told.
    pub(in crate::records) fn are(&self, is_before: impl Fn(Use) -> bool) -> bool {
        !self.more && self.few.iter().all(|used| is_before(*used))
    }
}

/// What a node knows of its records.
#[derive(Clone, Debug)]
pub(in crate::records) struct Known {
    /// No record's span ends after it.
    end: u64,
    /// All records lie in it.
    bytes: Bytes,
    /// No record has fewer bytes from its first one to its last.
    shortest: u64,
    /// No record has a shorter run.
    shortest_run: u64,
    pub(in crate::records) users: Users,
}

impl Known {
    pub(in crate::records) fn nothing() -> Self {
        let (shortest, shortest_run) = (u64::MAX, u64::MAX);
        Known { end: 0, bytes: Bytes::NONE, shortest, shortest_run, users: Users::default() }
    }

    /// Adds a record whose span ends at `end`.
    pub(in crate::records) fn add(&mut self, record: &Record, end: u64) {
        let bytes = Bytes::of(&record.range);
        self.end = self.end.max(end);
        self.bytes = self.bytes.and(bytes);
        self.shortest = self.shortest.min(bytes.len());
        self.shortest_run = self.shortest_run.min(record.range.run_len());
        self.users.add(record.used);
    }

    pub(in crate::records) fn add_all(&mut self, other: &Known) {
        self.end = self.end.max(other.end);
        self.bytes = self.bytes.and(other.bytes);
        self.shortest = self.shortest.min(other.shortest);
        self.shortest_run = self.shortest_run.min(other.shortest_run);
        self.users.add_all(&other.users);
    }
}

#[cfg(test)]
impl Known {
    /// Returns whether a record whose span ends at `end` is within what is known.
    pub(in crate::records) fn includes(&self, record: &Record, end: u64) -> bool {
        let (bytes, used) = (Bytes::of(&record.range), record.used);
        let is_newer = |user: &Use| user.stream == used.stream && user.ticket >= used.ticket;
        end <= self.end
            && self.bytes.start <= bytes.start
            && bytes.end <= self.bytes.end
            && self.shortest <= bytes.len()
            && self.shortest_run <= record.range.run_len()
            && (self.users.more || self.users.few.iter().any(is_newer))
    }
}
