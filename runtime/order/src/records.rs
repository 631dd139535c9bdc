//! The records of a history: which op used which bytes, one record for each.
//!
//! # What is kept
//! A new write removes the records that it covers, if the program has ordered it after them: later
//! work is ordered after the write, and so after them. A new read removes the reads of its own
//! stream that it covers. A record that the host has observed is ordered before everything and is
//! removed at one of the next opportunities. The same applies to all records of a stream that is
//! gone. The number of remaining records is bounded by live streams times distinct ranges.
//!
//! A record stays even if the clocks of all present streams cover it. A new stream has an empty
//! clock, so nothing would order its ops after that use.
//!
//! # Few and many
//! Most memory has a few records, and looking at each of them is cheapest. More than [`MOST_FEW`]
//! records are kept in trees, so that an op looks only at the records that it may touch:
//! * Writes and reads are in separate trees, because a read is not concerned with reads.
//! * A read removes covered reads of its own stream only nearby in the tree. To look for all of
//!   them would take a search among the reads of all streams.
//! * Of the observed records, each eighth op removes those of one leaf of each tree, and of more
//!   leaves while they are plenty.
//! * The trees of writes are shared with the shards of a ledger.
//!
//! The trees may keep some records that the list would have removed. They change no verdict.
// Decision: docs/decisions/0008-reads-of-other-streams-stay.md
// Decision: docs/decisions/0009-records-of-a-stream-stay-apart.md
// Decision: docs/decisions/0059-long-histories-are-kept-in-trees.md

mod index;
mod tree;

use super::clock::{StreamId, Ticket, Use};
use super::observed::Observed;
use super::range::ByteRange;
use super::site::Site;
use index::Index;
use smallvec::SmallVec;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

/// The maximum number of records that are kept in a list.
const MOST_FEW: usize = 16;

/// The number of ops from one sweep to the next. A sweep looks at a whole leaf of each tree, so
/// observed records go faster than most ops add new ones.
const BETWEEN_SWEEPS: u8 = 8;

/// The kind of an earlier use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// The allocation of the memory.
    Allocate,
    /// A read.
    Read,
    /// A write, perhaps together with a read.
    Write,
}

/// An earlier use of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The op's stream and ticket.
    pub used: Use,
    /// The bytes that the op used.
    pub range: ByteRange,
    /// The kind of use.
    pub did: Did,
    /// The op's name and source line.
    pub site: Site,
}

impl Record {
    /// Gives the record a new ticket and site, and returns the old ones.
    fn renew(&mut self, ticket: Ticket, site: Site) -> (Ticket, Site) {
        (std::mem::replace(&mut self.used.ticket, ticket), std::mem::replace(&mut self.site, site))
    }

    /// Returns whether this is a read by `stream`.
    fn is_read_of(&self, stream: StreamId) -> bool {
        self.did == Did::Read && self.used.stream == stream
    }
}

/// Records that an access has removed.
#[derive(Debug)]
pub(crate) enum Removed {
    One(Record),
    /// All records of a leaf of a tree.
    Leaf(Vec<Record>),
}

impl Removed {
    pub(crate) fn records(&self) -> &[Record] {
        match self {
            Removed::One(record) => std::slice::from_ref(record),
            Removed::Leaf(records) => records,
        }
    }
}

/// The records of a book.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// If it is there, it has all records.
    many: Option<Box<Many>>,
    few: SmallVec<[Record; 2]>,
}

#[derive(Debug, Default)]
struct Many {
    /// Writes and the allocation.
    writes: Arc<Index>,
    reads: Index,
    /// The number of ops since the last sweep.
    unswept: u8,
}

impl Records {
    /// Adds the first record.
    #[inline]
    pub(crate) fn begin(&mut self, record: Record) {
        self.few.push(record);
    }

    pub(crate) fn len(&self) -> usize {
        self.many.as_ref().map_or(self.few.len(), |many| many.len())
    }

    pub(crate) fn clear(&mut self) {
        *self = Records::default();
    }

    /// Calls `found` with each record that shares bytes with `range`, concerns the access, and does
    /// not satisfy `is_before`. If one use of a stream satisfies it, all older ones must too.
    #[inline]
    pub(crate) fn unordered(
        &self,
        writes: bool,
        range: &ByteRange,
        is_before: impl Fn(Use) -> bool,
        mut found: impl FnMut(&Record),
    ) {
        for record in &self.few {
            // A read is not concerned with reads.
            let concerned = writes || record.did != Did::Read;
            if concerned && record.range.overlaps(range) && !is_before(record.used) {
                found(record);
            }
        }
        if let Some(many) = &self.many {
            many.unordered(writes, range, &is_before, &mut found);
        }
    }

    /// Enters an access that the same stream has made before, by renewing its record. No other
    /// record changes. Returns the record's earlier ticket and site.
    ///
    /// Returns `None` if the access must be checked and entered in full:
    /// * there is no such record;
    /// * the access would replace another record;
    /// * a record of another stream that concerns the access does not satisfy `is_before`.
    #[inline]
    pub(crate) fn renew<const WRITES: bool>(
        &mut self,
        used: Use,
        range: &ByteRange,
        site: &Site,
        is_before: impl Fn(Use) -> bool,
    ) -> Option<(Ticket, Site)> {
        if let Some(many) = &mut self.many {
            return many.renew::<WRITES>(used, range, site, &is_before);
        }
        let did = if WRITES { Did::Write } else { Did::Read };
        let mut same = None;
        for record in &mut self.few {
            if record.used.stream != used.stream {
                if (WRITES || record.did != Did::Read)
                    && record.range.overlaps(range)
                    && (!is_before(record.used) || WRITES && range.covers(&record.range))
                {
                    return None;
                }
            } else if record.did == did && record.range == *range {
                same = Some(record);
            } else if WRITES && range.covers(&record.range) {
                return None;
            }
        }
        Some(same?.renew(used.ticket, *site))
    }

    /// Enters an access that has passed the check. Calls `removed` with each record that the access
    /// removes, so that this can be undone.
    pub(crate) fn enter(
        &mut self,
        record: Record,
        is_ordered: impl Fn(Use) -> bool,
        observed: &Observed,
        mut removed: impl FnMut(Removed),
    ) {
        // Records of this op itself stay: another of its operands may be the same bytes.
        let is_replaced = |old: &Record| {
            old.used != record.used
                && match (record.did, old.did) {
                    // A read by another stream stays even if it is covered. `renew` does not look
                    // at it, and whether an op goes through `renew` or `enter` may depend on
                    // timing.
                    (Did::Read, _) => old.is_read_of(record.used.stream),
                    // In `warn` mode, unordered uses have passed too; their records are kept.
                    _ => old.used.stream == record.used.stream || is_ordered(old.used),
                }
                && record.range.covers(&old.range)
        };
        if let Some(many) = &mut self.many {
            many.enter(record, is_replaced, removed);
            self.list_if_few();
            return;
        }
        self.few.retain(|old| {
            let drop = is_replaced(old) || observed.covers(old.used);
            if drop {
                removed(Removed::One(*old));
            }
            !drop
        });
        self.push(record);
    }

    /// Adds a record and removes none.
    pub(crate) fn push(&mut self, record: Record) {
        if self.many.is_none() && self.few.len() == MOST_FEW {
            let mut many = Box::<Many>::default();
            std::mem::take(&mut self.few).into_iter().for_each(|record| many.push(record));
            self.many = Some(many);
        }
        match &mut self.many {
            Some(many) => many.push(record),
            None => self.few.push(record),
        }
    }

    /// Drops observed records. Is called once for each op, and looks only at a few records.
    #[inline]
    pub(crate) fn sweep(&mut self, observed: &Observed) {
        if let Some(many) = &mut self.many {
            many.unswept += 1;
            if many.unswept == BETWEEN_SWEEPS {
                many.sweep(observed);
                self.list_if_few();
            }
        }
    }

    /// Goes back to a list if that is enough by far.
    fn list_if_few(&mut self) {
        if let Some(many) = &self.many
            && many.len() <= MOST_FEW / 2
        {
            let mut few = SmallVec::new();
            many.writes.for_each(|record| few.push(*record));
            many.reads.for_each(|record| few.push(*record));
            *self = Records { few, many: None };
        }
    }

    /// Undoes [`renew`](Self::renew) by the op `used`.
    pub(crate) fn undo_renew(
        &mut self,
        used: Use,
        range: &ByteRange,
        is_write: bool,
        before: (Ticket, Site),
    ) {
        let is_it = |record: &Record| record.used == used && record.range == *range;
        if let Some(record) = self.few.iter_mut().find(|record| is_it(record)) {
            (record.used.ticket, record.site) = before;
        } else if let Some(many) = &mut self.many {
            let (ticket, site) = before;
            let is_it = |record: &Record| record.used == used;
            many.index(is_write).renew(Use { ticket, ..used }, range, &site, is_it);
        }
    }

    /// Removes the record of the op `used` at `range`.
    pub(crate) fn remove(&mut self, used: Use, range: &ByteRange, is_write: bool) {
        let is_it = |record: &Record| record.used == used && record.range == *range;
        self.few.retain(|record| !is_it(record));
        if let Some(many) = &mut self.many {
            many.index(is_write).remove(range, is_it, |_| ());
        }
    }

    /// Returns a copy without the reads, for readers.
    pub(crate) fn writes_only(&self) -> Records {
        let few = self.few.iter().filter(|record| record.did != Did::Read).copied().collect();
        let of_writes = |many: &Many| Many { writes: many.writes.clone(), ..Many::default() };
        Records { few, many: self.many.as_ref().map(|many| Box::new(of_writes(many))) }
    }

    /// Removes the reads, and returns them.
    pub(crate) fn take_reads(&mut self) -> Vec<Record> {
        let mut reads = Vec::new();
        self.few.retain(|record| {
            let is_read = record.did == Did::Read;
            if is_read {
                reads.push(*record);
            }
            !is_read
        });
        if let Some(many) = &mut self.many {
            std::mem::take(&mut many.reads).for_each(|record| reads.push(*record));
        }
        reads
    }
}

#[cfg(test)]
impl Records {
    /// Asserts that the trees are as they must be.
    pub(crate) fn assert_sound(&self) {
        for index in self.many.iter().flat_map(|many| [&*many.writes, &many.reads]) {
            index.assert_sound();
        }
    }
}

impl Many {
    fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }

    /// Returns the writes, to change them. Only the main book changes them, after its shards were
    /// closed. So no shard shares them, and nothing is copied.
    fn writes(&mut self) -> &mut Index {
        Arc::make_mut(&mut self.writes)
    }

    /// Returns the writes or the reads, to change them.
    fn index(&mut self, of_writes: bool) -> &mut Index {
        if of_writes { self.writes() } else { &mut self.reads }
    }

    #[inline(never)]
    fn unordered(
        &self,
        writes: bool,
        range: &ByteRange,
        is_before: &impl Fn(Use) -> bool,
        found: &mut impl FnMut(&Record),
    ) {
        let mut all = |record: &Record| {
            found(record);
            Continue(())
        };
        self.writes.unordered(range, is_before, &mut all);
        if writes {
            self.reads.unordered(range, is_before, &mut all);
        }
    }

    #[inline(never)]
    fn renew<const WRITES: bool>(
        &mut self,
        used: Use,
        range: &ByteRange,
        site: &Site,
        is_before: &impl Fn(Use) -> bool,
    ) -> Option<(Ticket, Site)> {
        if WRITES && !self.replaces_only_itself(used.stream, range) {
            return None;
        }
        let is_before = |earlier: Use| earlier.stream == used.stream || is_before(earlier);
        if self.writes.unordered(range, &is_before, |_| Break(()))
            || WRITES && self.reads.unordered(range, &is_before, |_| Break(()))
        {
            return None;
        }
        if !WRITES {
            return self.reads.renew(used, range, site, |_| true);
        }
        self.writes().renew(used, range, site, |record| record.did == Did::Write)
    }

    /// Returns whether the only record that a write of these bytes replaces is the one of the same
    /// write.
    fn replaces_only_itself(&self, stream: StreamId, range: &ByteRange) -> bool {
        let mut is_there = false;
        let others = self.writes.covered(range, |record| {
            let is_same = record.used.stream == stream && record.did == Did::Write && record.range == *range;
            is_there |= is_same;
            if is_same { Continue(()) } else { Break(()) }
        });
        is_there && others.is_continue() && self.reads.covered(range, |_| Break(())).is_continue()
    }

    #[inline(never)]
    fn enter(
        &mut self,
        record: Record,
        is_replaced: impl Fn(&Record) -> bool,
        mut removed: impl FnMut(Removed),
    ) {
        if record.did == Did::Read {
            self.reads.insert(record, is_replaced, removed);
            return;
        }
        self.reads.remove(&record.range, &is_replaced, &mut removed);
        let writes = self.writes();
        writes.remove(&record.range, is_replaced, &mut removed);
        writes.insert(record, |_| false, removed);
    }

    #[inline(never)]
    fn sweep(&mut self, observed: &Observed) {
        self.unswept = 0;
        let is_over = |used| observed.covers(used);
        self.reads.sweep(&is_over);
        // A shard leaves the writes alone, because it shares them.
        if let Some(writes) = Arc::get_mut(&mut self.writes) {
            writes.sweep(&is_over);
        }
    }

    fn push(&mut self, record: Record) {
        self.index(record.did != Did::Read).insert(record, |_| false, |_| ());
    }
}

#[cfg(test)]
thread_local! {
    /// The number of records and nodes that the trees of this thread have looked at.
    pub(crate) static VISITED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts records and nodes that are looked at, for tests of how the costs grow.
#[inline(always)]
fn visit(_records: usize) {
    #[cfg(test)]
    VISITED.set(VISITED.get() + _records);
}
