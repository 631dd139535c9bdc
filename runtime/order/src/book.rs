//! The contents of a history: records of accesses, the newest use of each stream, and marks.
//!
//! # What is kept
//! A new write removes every record that it covers: it is ordered after them, and what comes after
//! it is ordered after them too. A new read removes reads of its stream that it covers. A record
//! the host has observed is before everything and goes at the next opportunity; so do all records
//! of a stream that is gone. What remains is bounded by live streams times distinct ranges.

use super::clock::{Clock, StreamId, Ticket, Use};
use super::marks::{MOST, Mark, Marks, OnBytes, join};
use super::observed::Observed;
use super::range::ByteRange;
use super::site::Site;
use smallvec::SmallVec;
use std::sync::Arc;

/// The most pieces that a mark's bytes are kept in.
const MOST_PIECES: usize = 64;

/// What an earlier op did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// The memory is new.
    Allocate,
    /// It was read.
    Read,
    /// It was written, and perhaps read.
    Write,
}

/// One earlier use.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// By which op.
    pub used: Use,
    /// Of which bytes.
    pub range: ByteRange,
    /// The kind of use.
    pub did: Did,
    /// The op's name and line.
    pub site: Site,
}

pub(crate) type Records = SmallVec<[Record; 2]>;
pub(crate) type Uses = SmallVec<[Use; 2]>;

/// The main book or a shard: both are written in alike.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Book {
    pub(crate) waited: u8,
    /// The main book: whether it is sharded. A shard: whether it is active.
    pub(crate) sharded: bool,
    /// True if a stream that has since closed and drained has left `uses`.
    pub(crate) outlived: bool,
    /// A shard has none: ops on memory that has it open the main book.
    rare: Option<Box<Rare>>,
    pub(crate) uses: Uses,
    pub(crate) records: Records,
}

/// State that few allocations have. It takes every op on them the long way, and one word of a book.
#[derive(Debug, Default)]
struct Rare {
    marks: Vec<MarkedBytes>,
    behind: Option<Behind>,
}

/// The last use of the memory before it was allocated, if that had not finished. Each stream has to
/// be after it before it touches the memory, see [`Ledger::begin`](super::Ledger::begin).
#[derive(Debug)]
struct Behind {
    used: Use,
    /// The allocation, which is not after it.
    allocated: Use,
}

/// Bytes that a refused write did not write.
#[derive(Debug)]
struct MarkedBytes {
    /// Disjoint, and not empty.
    pieces: Vec<ByteRange>,
    mark: OnBytes,
}

impl MarkedBytes {
    fn overlaps(&self, range: &ByteRange) -> bool {
        self.pieces.iter().any(|piece| piece.overlaps(range))
    }

    /// Takes `range` out. Bytes stay marked, to be on the safe side, where that would make too many
    /// pieces.
    fn cut(&mut self, range: &ByteRange) {
        let mut left = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            match piece.minus(range) {
                Some(pieces) => left.extend(pieces),
                None => left.push(*piece),
            }
        }
        if left.len() <= MOST_PIECES {
            self.pieces = left;
        }
    }

    fn add(&mut self, range: ByteRange) {
        if self.pieces.iter().any(|piece| piece.covers(&range)) {
            return;
        }
        self.pieces.retain(|piece| !range.covers(piece));
        self.pieces.push(range);
        if self.pieces.len() > MOST_PIECES {
            let from = self.pieces.iter().map(ByteRange::offset).min().unwrap_or_default();
            let to = self.pieces.iter().map(ByteRange::end).max().unwrap_or_default();
            self.pieces = vec![ByteRange::contiguous(from, to - from)];
        }
    }
}

impl Book {
    /// Begins a history, as [`Ledger::begin`](super::Ledger::begin) says.
    #[inline]
    pub(crate) fn begin(&mut self, used: Use, behind: Option<Use>, len_bytes: u64, site: Site) {
        let range = ByteRange::contiguous(0, len_bytes);
        self.records.push(Record { used, range, did: Did::Allocate, site });
        self.uses.push(used);
        if let Some(behind) = behind {
            let behind = Some(Behind { used: behind, allocated: used });
            self.rare = Some(Box::new(Rare { marks: Vec::new(), behind }));
        }
    }

    #[inline]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Notes that `used` touches this memory, whatever the check says.
    #[inline]
    pub fn note_use(&mut self, used: Use, observed: &Observed) {
        if let Some(entry) = self.uses.iter_mut().find(|entry| entry.stream == used.stream) {
            entry.ticket = entry.ticket.max(used.ticket);
        } else {
            self.note_first_use(used, observed);
        }
    }

    /// Drops the uses of streams that are gone, if the list would grow.
    #[cold]
    fn note_first_use(&mut self, used: Use, observed: &Observed) {
        let before = self.uses.len();
        if before == self.uses.capacity() {
            self.uses.retain(|entry| !observed.is_gone(entry.stream));
            self.outlived |= self.uses.len() < before;
        }
        self.uses.push(used);
    }

    /// Enters the same access by the same stream again: its record becomes newer, and no other changes. Returns what it said before.
    /// `None` if there is no such record, or one that it would replace, or one of another stream that does not `pass`, or some of
    /// the memory was not written: then it takes the long way.
    #[inline]
    pub fn renew<const WRITES: bool>(
        &mut self,
        used: Use,
        range: &ByteRange,
        site: &Site,
        passes: impl Fn(&Record) -> bool,
    ) -> Option<(Ticket, Site)> {
        if !self.is_plain() {
            return None;
        }
        let did = if WRITES { Did::Write } else { Did::Read };
        let mut same = None;
        for record in &mut self.records {
            if record.used.stream != used.stream {
                // What another stream read does not concern one that reads.
                if (WRITES || record.did != Did::Read) && !passes(record) {
                    return None;
                }
            } else if record.did == did && record.range == *range {
                same = Some(record);
            } else if WRITES && range.covers(&record.range) {
                return None;
            }
        }
        let same = same?;
        Some((
            std::mem::replace(&mut same.used.ticket, used.ticket),
            std::mem::replace(&mut same.site, *site),
        ))
    }

    /// Enters an access that has passed the check; `removed` gets the records it makes superfluous.
    pub fn enter(
        &mut self,
        record: Record,
        stated: &Clock,
        observed: &Observed,
        mut removed: impl FnMut(Record),
    ) {
        self.records.retain(|old| {
            let replaced = match (record.did, old.did) {
                // Of this same op: a range read and written.
                _ if old.used == record.used => false,
                // Another stream's read stays although it may be covered: `renew` would not look at
                // it, and which of the two an op goes through may be a matter of luck.
                (Did::Read, Did::Read) => {
                    old.used.stream == record.used.stream && record.range.covers(&old.range)
                }
                (Did::Read, _) => false,
                // In `warn` mode also what it is not ordered after has been let pass, and is not forgotten.
                _ => {
                    record.range.covers(&old.range)
                        && (old.used.stream == record.used.stream || stated.covers(old.used))
                }
            };
            let drop = replaced || observed.covers(old.used);
            if drop {
                removed(*old);
            }
            !drop
        });
        self.records.push(record);
    }

    /// Takes back what [`renew`](Self::renew) or [`enter`](Self::enter) did.
    pub fn undo(
        &mut self,
        used: Use,
        renewed: Option<(Ticket, Site)>,
        removed: impl Iterator<Item = Record>,
    ) {
        match (renewed, self.records.iter_mut().find(|record| record.used == used)) {
            (Some((ticket, site)), Some(record)) => (record.used.ticket, record.site) = (ticket, site),
            _ => self.records.retain(|record| record.used != used),
        }
        self.records.extend(removed);
    }

    /// Takes back that `used` was noted. `before`: the stream's newest use until then, where that
    /// matters to the ticket: the memory counts as used by the allocation alone, or by ops too.
    pub fn forget_use(&mut self, used: Use, before: Option<Option<Ticket>>) {
        let Some(at) = self.uses.iter().position(|entry| entry.stream == used.stream) else { return };
        match before {
            Some(Some(ticket)) => self.uses[at].ticket = ticket,
            Some(None) => drop(self.uses.remove(at)),
            // The stream's last real ticket: at least as new as what stood here.
            None => self.uses[at].ticket = self.uses[at].ticket.min(used.ticket - 1),
        }
    }

    /// The newest use by a stream.
    pub fn use_by(&self, stream: StreamId) -> Option<Ticket> {
        self.uses.iter().find(|entry| entry.stream == stream).map(|entry| entry.ticket)
    }
}

/// Makes one of the marks that streams carry.
#[cold]
fn join_marks(marks: &mut Vec<MarkedBytes>) {
    let (carried, mut left): (Vec<_>, Vec<_>) =
        marks.drain(..).partition(|marked| !marked.mark.is_everybodys());
    let live: Vec<_> = carried.iter().filter_map(|marked| marked.mark.live()).collect();
    if let Some(one) = join(&live) {
        let mut joined = MarkedBytes { pieces: Vec::new(), mark: OnBytes::new(&one, false) };
        carried.iter().flat_map(|marked| &marked.pieces).for_each(|piece| joined.add(*piece));
        left.push(joined);
    }
    *marks = left;
}

/// Marks, and what the memory was used for before.
impl Book {
    /// Returns whether there are neither marks nor earlier uses to look at.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.rare.is_none()
    }

    fn marks(&self) -> &[MarkedBytes] {
        self.rare.as_ref().map_or(&[], |rare| &rare.marks)
    }

    /// Changes the marks, and drops those that have ended.
    #[cold]
    fn change_marks(&mut self, change: impl FnOnce(&mut Vec<MarkedBytes>)) {
        let rare = self.rare.get_or_insert_default();
        change(&mut rare.marks);
        rare.marks.retain(|marked| !marked.pieces.is_empty() && marked.mark.live().is_some());
        if rare.marks.len() > MOST {
            join_marks(&mut rare.marks);
        }
        self.drop_if_plain();
    }

    fn drop_if_plain(&mut self) {
        if self.rare.as_ref().is_some_and(|rare| rare.marks.is_empty() && rare.behind.is_none()) {
            self.rare = None;
        }
    }

    /// Drops the marks that have ended.
    pub fn drop_ended_marks(&mut self) {
        if !self.is_plain() {
            self.change_marks(|_| ());
        }
    }

    /// The mark that keeps work which carries `marks` from reading these bytes.
    pub fn mark_on(&self, range: &ByteRange, marks: &Marks) -> Option<Arc<Mark>> {
        let on_them = |marked: &&MarkedBytes| marked.overlaps(range);
        self.marks().iter().filter(on_them).find_map(|marked| marked.mark.concerns(marks))
    }

    /// Returns whether some of these bytes are marked.
    pub fn is_marked(&self, range: &ByteRange) -> bool {
        self.marks().iter().any(|marked| marked.overlaps(range))
    }

    /// Marks bytes that a refused write did not write.
    pub fn mark(&mut self, range: ByteRange, mark: &Arc<Mark>, everybodys: bool) {
        self.change_marks(|marks| {
            if everybodys {
                // It does as much as those before it, and lasts as long.
                marks
                    .iter_mut()
                    .filter(|marked| marked.mark.is_everybodys())
                    .for_each(|marked| marked.cut(&range));
            }
            match marks.iter_mut().find(|marked| marked.mark.is(mark)) {
                Some(marked) => marked.add(range),
                None => marks.push(MarkedBytes { pieces: vec![range], mark: OnBytes::new(mark, everybodys) }),
            }
        });
    }

    /// Takes all marks off `range`: it was overwritten, or its contents were accepted.
    pub fn clear_marks(&mut self, range: &ByteRange) {
        if !self.is_plain() {
            self.change_marks(|marks| marks.iter_mut().for_each(|marked| marked.cut(range)));
        }
    }

    /// Takes those of `marks` off `range`: it was overwritten.
    pub fn clear_marks_of(&mut self, range: &ByteRange, of: &Marks) {
        if !self.is_plain() {
            self.change_marks(|marks| {
                let of_them = marks.iter_mut().filter(|marked| marked.mark.is_one_of(of));
                of_them.for_each(|marked| marked.cut(range));
            });
        }
    }

    /// The streams whose refused writes have left marks.
    pub fn marked_by(&self) -> impl Iterator<Item = StreamId> {
        self.marks().iter().filter_map(|marked| Some(marked.mark.live()?.origin()))
    }

    /// Returns the last use of the memory before it was allocated, unless that is known to have
    /// finished.
    #[inline]
    pub fn behind(&self) -> Option<Use> {
        self.rare.as_ref()?.behind.as_ref().map(|behind| behind.used)
    }

    /// Notes that the last use before the allocation has finished.
    pub fn clear_behind(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.behind = None;
            self.drop_if_plain();
        }
    }
}

impl Book {
    /// The newest ticket of each stream that used the memory.
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// The uses that [`Ledger::last_uses`](super::Ledger::last_uses) returns.
    #[inline(always)]
    pub(crate) fn last_uses(&mut self) -> &[Use] {
        if let Some(Behind { allocated, .. }) = self.rare.as_ref().and_then(|rare| rare.behind.as_ref()) {
            self.uses.retain(|used| used != allocated);
        }
        &self.uses
    }

    /// Returns whether a stream that has since closed and drained used it and has left
    /// [`uses`](Self::uses).
    pub fn outlived(&self) -> bool {
        self.outlived
    }

    /// Forgets what was done to the memory, but not who used it: there is nothing in it that an op
    /// could come too early for.
    pub fn forget_accesses(&mut self) {
        self.records.clear();
    }

    /// How many records, uses and marks it holds, for figures.
    pub fn lens(&self) -> (usize, usize, usize) {
        (self.records.len(), self.uses.len(), self.marks().len())
    }
}
