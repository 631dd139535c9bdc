//! The contents of a history: records of accesses, the newest use by each stream, and marks.
//! Decides when an op must take the slow path, because of marks or of an earlier owner of the
//! memory.

use super::clock::{StreamId, Ticket, Use};
use super::marks::{FoundMark, MOST, Mark, Marks, OnBytes, join};
use super::observed::Observed;
use super::range::ByteRange;
use super::records::{Did, Record, Records};
use super::site::Site;
use super::uses::Uses;
use std::sync::Arc;

/// The maximum number of pieces that the bytes of one mark are kept in.
const MOST_PIECES: usize = 64;

/// The main book of a ledger, or one of its shards; both are updated in the same way.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Book {
    /// The number of times since the last exclusive opening that a reader found the lock taken.
    pub(crate) waited: u8,
    /// In the main book: true if it is sharded. In a shard: true if the shard is active.
    pub(crate) sharded: bool,
    /// True if `uses` has dropped a stream that is gone. A wait for all uses then takes a ticket,
    /// as if the stream were still there, since when it went depends on timing.
    pub(crate) outlived: bool,
    /// Always `None` in a shard: ops on memory that has such state open the main book.
    rare: Option<Box<Rare>>,
    pub(crate) uses: Uses,
    pub(crate) records: Records,
}

/// State that few allocations have. It costs a book one word, and ops on such an allocation take
/// the slow path.
#[derive(Debug, Default)]
struct Rare {
    marks: Vec<MarkedBytes>,
    behind: Option<Behind>,
}

/// The last use of the memory before its allocation, if that use had not finished. Each stream must
/// be ordered after it before it touches the memory; see [`Ledger::begin`](super::Ledger::begin).
#[derive(Debug)]
struct Behind {
    used: Use,
    /// The allocation, which is not ordered after that use.
    allocated: Use,
}

/// Bytes that a refused write did not write.
#[derive(Debug)]
struct MarkedBytes {
    /// Disjoint and not empty.
    pieces: Vec<ByteRange>,
    mark: OnBytes,
}

impl MarkedBytes {
    fn overlaps(&self, range: &ByteRange) -> bool {
        self.pieces.iter().any(|piece| piece.overlaps(range))
    }

    /// Removes `range` from the marked bytes. If that would leave too many pieces, all bytes stay
    /// marked, which is the safe choice.
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
    /// Begins a history; see [`Ledger::begin`](super::Ledger::begin).
    #[inline]
    pub(crate) fn begin(&mut self, used: Use, behind: Option<Use>, len_bytes: u64, site: Site) {
        let range = ByteRange::contiguous(0, len_bytes);
        self.records.begin(Record { used, range, did: Did::Allocate, site });
        self.uses.begin(used);
        if let Some(behind) = behind {
            let behind = Some(Behind { used: behind, allocated: used });
            self.rare = Some(Box::new(Rare { marks: Vec::new(), behind }));
        }
    }

    /// Enters an access as [`Records::renew`] does. Returns `None` also if the memory has marks, or
    /// an unfinished use from before its allocation.
    #[inline]
    pub(crate) fn renew<const WRITES: bool>(
        &mut self,
        used: Use,
        range: &ByteRange,
        site: &Site,
        is_before: impl Fn(Use) -> bool,
    ) -> Option<(Ticket, Site)> {
        if !self.is_plain() {
            return None;
        }
        self.records.renew::<WRITES>(used, range, site, is_before)
    }

    /// Notes that `used` touches this memory, also if nothing is checked. Drops some of the records
    /// that the host has observed.
    #[inline]
    pub fn note_use(&mut self, used: Use, observed: &Observed) {
        self.outlived |= self.uses.note(used, observed);
        self.records.sweep(observed);
    }

    /// Undoes noting `used`. `before` is the stream's newest use until then, if it had one. It is
    /// given if the exact ticket matters, to distinguish memory that only its allocation used from
    /// memory that ops used too. Otherwise the ticket before `used` stands for it: it may name work
    /// that never touched this memory, which only makes others wait longer.
    pub fn forget_use(&mut self, used: Use, before: Option<Option<Ticket>>) {
        let Some(noted) = self.uses.by(used.stream) else { return };
        match before {
            Some(Some(ticket)) => self.uses.set(Use { ticket, ..used }),
            Some(None) => self.uses.retain(|entry| entry.stream != used.stream),
            None => self.uses.set(Use { ticket: noted.min(used.ticket - 1), ..used }),
        }
    }

    /// Returns the ticket of the newest use by a stream.
    pub fn use_by(&self, stream: StreamId) -> Option<Ticket> {
        self.uses.by(stream)
    }
}

/// Joins the marks that streams carry into one.
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

/// Marks, and the use of the memory before its allocation.
impl Book {
    /// Returns whether the book has neither marks nor a use from before the allocation.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.rare.is_none()
    }

    fn marks(&self) -> &[MarkedBytes] {
        self.rare.as_ref().map_or(&[], |rare| &rare.marks)
    }

    /// Changes the marks and drops those that have ended.
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

    /// Returns the mark that keeps work which carries `marks` from reading these bytes, if there is
    /// one.
    pub fn mark_on(&self, range: &ByteRange, marks: &Marks) -> Option<FoundMark> {
        let on_them = |marked: &&MarkedBytes| marked.overlaps(range);
        self.marks().iter().filter(on_them).find_map(|marked| {
            let mark = marked.mark.concerns(marks)?;
            let ends_when_seen = !marked.mark.is_everybodys() && !mark.has_joined();
            Some(FoundMark { mark, ends_when_seen })
        })
    }

    /// Returns whether any of these bytes are marked.
    pub fn is_marked(&self, range: &ByteRange) -> bool {
        self.marks().iter().any(|marked| marked.overlaps(range))
    }

    /// Marks bytes that a refused write did not write.
    pub fn mark(&mut self, range: ByteRange, mark: &Arc<Mark>, everybodys: bool) {
        self.change_marks(|marks| {
            if everybodys {
                // On these bytes the new mark replaces the earlier marks for everybody.
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

    /// Removes all marks from `range`, which was overwritten or whose contents were accepted.
    pub fn clear_marks(&mut self, range: &ByteRange) {
        if !self.is_plain() {
            self.change_marks(|marks| marks.iter_mut().for_each(|marked| marked.cut(range)));
        }
    }

    /// Removes the marks in `of` from `range`, which was overwritten.
    pub fn clear_marks_of(&mut self, range: &ByteRange, of: &Marks) {
        if !self.is_plain() {
            self.change_marks(|marks| {
                let of_them = marks.iter_mut().filter(|marked| marked.mark.is_one_of(of));
                of_them.for_each(|marked| marked.cut(range));
            });
        }
    }

    /// Returns the streams whose refused writes have left marks.
    pub fn marked_by(&self) -> impl Iterator<Item = StreamId> {
        self.marks().iter().filter_map(|marked| Some(marked.mark.live()?.origin()))
    }

    /// Returns the last use of the memory before its allocation, unless that use is known to have
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
    /// Returns the newest ticket of each stream that used the memory.
    pub fn uses(&self) -> &[Use] {
        self.uses.list()
    }

    /// Returns the uses that [`Ledger::last_uses`](super::Ledger::last_uses) returns.
    #[inline(always)]
    pub(crate) fn last_uses(&mut self) -> &[Use] {
        if let Some(Behind { allocated, .. }) = self.rare.as_ref().and_then(|rare| rare.behind.as_ref()) {
            let allocated = *allocated;
            self.uses.retain(|used| *used != allocated);
        }
        self.uses.list()
    }

    /// Returns whether [`uses`](Self::uses) has dropped a stream that used the memory and has since
    /// closed and drained.
    pub fn outlived(&self) -> bool {
        self.outlived
    }

    /// Forgets the accesses to the memory, but keeps its uses. For memory that only graphs use, so
    /// that earlier accesses do not refuse the next op.
    pub fn forget_accesses(&mut self) {
        self.records.clear();
    }

    /// Returns the numbers of records, uses and marks, for statistics.
    pub fn lens(&self) -> (usize, usize, usize) {
        (self.records.len(), self.uses.list().len(), self.marks().len())
    }
}
