//! An allocation's history: the last writes, the reads since, and the newest ticket of each stream that used it.
//!
//! # Who may touch what, when
//! A ledger is a *book* behind one lock. Reading the same weights from many threads would make that lock's cache line
//! wander between cores, so a book that readers keep waiting for is **shared out**: each of eight *lanes* gets a copy
//! of the writes, and a reader then locks only the lane of its stream and enters its reads there. The first exclusive
//! opening (a write, a wait for all uses, an error mark) collects the lanes' reads and closes them again.
//!
//! 1. `main` is locked before any lane of the same ledger; a reader that holds a lane never asks for `main`.
//! 2. A lane is active exactly while `book.shared`; both change under `main` and that lane's lock.
//! 3. While shared, the book's writes do not change, so each lane's copy is true.
//! 4. Several ledgers are opened in the order of their addresses. (`check.rs`)
//!
//! # What is kept
//! A new write removes every record that it covers: it is ordered after them, and what comes after it is ordered
//! after them too. A new read removes reads that it covers and is ordered after. A record the host has observed is before
//! everything and goes at the next opportunity; so do all records of a stream that is gone. What remains is bounded by
//! live streams times distinct ranges.

use super::clock::{Clock, StreamId, Use};
use super::observed::Observed;
use super::range::ByteRange;
use crate::error::Error;
use crate::site::Site;
use crate::sync::{Lock, LockGuard};
use crate::timeline::Ticket;
use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use std::sync::OnceLock;

const LANES: usize = 8;
/// How many waiting readers it takes until a book is shared out.
const PATIENCE: u8 = 2;

/// What an earlier op did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    Allocate,
    Read,
    Write,
}

/// One earlier use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) used: Use,
    pub(crate) range: ByteRange,
    pub(crate) did: Did,
    pub(crate) site: Site,
}

pub(crate) type Records = SmallVec<[Record; 2]>;
pub(crate) type Uses = SmallVec<[Use; 2]>;

/// In this order, here and in [`Book`], so that what every op looks at lies together.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Ledger {
    lanes: OnceLock<Box<[CachePadded<Lock<Book>>; LANES]>>,
    main: Lock<Book>,
}

/// The main book or a lane: both are written in alike.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Book {
    waited: u8,
    /// The main book: whether it is shared out. A lane: whether it is active.
    shared: bool,
    /// Bytes that a refused write did not write. A lane has none: who reads such bytes reads in the main book.
    failed: Option<Box<Failed>>,
    uses: Uses,
    records: Records,
}

/// Bytes, and the error of the write that left them as they were. Never empty: what is rare takes one word of a book.
#[derive(Debug, Default)]
struct Failed(Vec<(ByteRange, Error)>);

/// An opened ledger: its main book, or a lane.
pub(crate) type Page<'a> = LockGuard<'a, Book>;

impl Ledger {
    /// The history of memory that `site` allocated on a stream whose last ticket was `used`.
    #[inline(always)]
    pub(crate) fn new(used: Use, len_bytes: u64, site: Site) -> Self {
        let mut book = Book::default();
        book.records.push(Record {
            used,
            range: ByteRange::contiguous(0, len_bytes),
            did: Did::Allocate,
            site,
        });
        // Whatever the block was used for before, the allocating stream is after it at this very ticket.
        book.uses.push(used);
        Ledger { main: Lock::new(book), lanes: OnceLock::new() }
    }

    /// The history of memory of which nothing is known.
    pub(crate) fn unknown() -> Self {
        Ledger { main: Lock::new(Book::default()), lanes: OnceLock::new() }
    }

    /// Opens it for an op that reads only. `lane` spreads streams over lanes.
    #[inline]
    pub(crate) fn open_to_read(&self, lane: usize) -> Page<'_> {
        if let Some(lanes) = self.lanes.get() {
            let lane = lanes[lane % LANES].lock();
            if lane.shared {
                return lane;
            }
        }
        match self.main.try_lock() {
            Some(book) => book,
            None => self.open_contended(lane),
        }
    }

    #[cold]
    fn open_contended(&self, lane: usize) -> Page<'_> {
        let mut book = self.main.lock();
        book.waited += 1;
        if book.waited < PATIENCE || book.has_failed() {
            return book;
        }
        let lanes = self.lanes.get_or_init(Box::default);
        if !book.shared {
            book.shared = true;
            for lane in lanes.iter() {
                let mut lane = lane.lock();
                lane.shared = true;
                lane.records =
                    book.records.iter().filter(|record| record.did != Did::Read).copied().collect();
            }
        }
        lanes[lane % LANES].lock()
    }

    /// Opens it for anything.
    #[inline]
    pub(crate) fn open(&self) -> Page<'_> {
        let mut book = self.main.lock();
        book.waited = 0;
        if book.shared {
            self.collect(&mut book);
        }
        book
    }

    #[cold]
    fn collect(&self, book: &mut Book) {
        for lane in self.lanes.get().into_iter().flat_map(|lanes| lanes.iter()) {
            let mut lane = lane.lock();
            lane.shared = false;
            for read in std::mem::take(&mut lane.records).into_iter().filter(|record| record.did == Did::Read)
            {
                book.records.retain(|old| {
                    old.did != Did::Read || old.used.stream != read.used.stream || old.range != read.range
                });
                book.records.push(read);
            }
            for used in std::mem::take(&mut lane.uses) {
                note(&mut book.uses, used, |_| false);
            }
        }
        book.shared = false;
    }

    /// The newest ticket of each stream that used it, when nobody else can use it any more.
    #[inline(always)]
    pub(crate) fn last_uses(&mut self) -> &[Use] {
        if self.main.get_mut().shared {
            drop(self.open());
        }
        &self.main.get_mut().uses
    }
}

/// Keeps the newest ticket of each stream. Streams that are gone are dropped when the list would grow.
#[inline]
fn note(uses: &mut Uses, used: Use, gone: impl Fn(StreamId) -> bool) {
    if let Some(entry) = uses.iter_mut().find(|entry| entry.stream == used.stream) {
        entry.ticket = entry.ticket.max(used.ticket);
        return;
    }
    if uses.len() == uses.capacity() {
        uses.retain(|entry| !gone(entry.stream));
    }
    uses.push(used);
}

impl Book {
    #[inline]
    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Notes that `used` touches this memory, whatever the check says.
    #[inline]
    pub(crate) fn note_use(&mut self, used: Use, observed: &Observed) {
        note(&mut self.uses, used, |stream| observed.is_gone(stream));
    }

    /// Enters the same access by the same stream again: its record becomes newer, and no other changes. Returns what it said before.
    /// `None` if there is no such record, or one that it would replace, or one of another stream that does not `pass`, or some of
    /// the memory was not written: then it takes the long way.
    #[inline]
    pub(crate) fn renew<const WRITES: bool>(
        &mut self,
        used: Use,
        range: &ByteRange,
        site: &Site,
        passes: impl Fn(&Record) -> bool,
    ) -> Option<(Ticket, Site)> {
        if self.has_failed() {
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
    pub(crate) fn enter(
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
                (Did::Read, Did::Read) => {
                    (old.used.stream == record.used.stream || stated.covers(old.used))
                        && record.range.covers(&old.range)
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
    pub(crate) fn undo(
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

    /// Takes back that `used` was noted.
    pub(crate) fn forget_use(&mut self, used: Use) {
        if let Some(entry) = self.uses.iter_mut().find(|entry| entry.stream == used.stream) {
            // The stream's last real ticket: at least as new as what stood here.
            entry.ticket = entry.ticket.min(used.ticket - 1);
        }
    }
}

impl Failed {
    #[cold]
    fn on(&self, range: &ByteRange) -> Option<&Error> {
        self.0.iter().find(|(at, _)| at.overlaps(range)).map(|(_, error)| error)
    }
}

impl Book {
    /// Whether a refused write did not write some of it.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The error that an earlier refused write left on these bytes.
    #[inline]
    pub(crate) fn failed(&self, range: &ByteRange) -> Option<&Error> {
        self.failed.as_ref().and_then(|failed| failed.on(range))
    }

    /// `range` has been overwritten: what an earlier refused write left there no longer matters.
    #[inline]
    pub(crate) fn overwrite(&mut self, range: &ByteRange) {
        if self.has_failed() {
            self.clear_failed(range);
        }
    }

    /// The newest ticket of each stream that used the memory.
    pub(crate) fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// Forgets what was done to the memory, but not who used it: there is nothing in it that an op could come too early for.
    pub(crate) fn forget_accesses(&mut self) {
        self.records.clear();
    }

    /// Marks bytes that a refused write did not write.
    pub(crate) fn mark_failed(&mut self, range: ByteRange, error: &Error) {
        self.clear_failed(&range);
        self.failed.get_or_insert_default().0.push((range, error.clone()));
    }

    /// Takes the marks off `range`.
    #[cold]
    pub(crate) fn clear_failed(&mut self, range: &ByteRange) {
        let mut left = Vec::new();
        for (at, error) in self.failed.take().into_iter().flat_map(|failed| failed.0) {
            if range.covers(&at) {
                continue;
            }
            match at.minus(range) {
                Some(pieces) => left.extend(pieces.map(|piece| (piece, error.clone()))),
                None => left.push((at, error)),
            }
        }
        self.failed = (!left.is_empty()).then(|| Box::new(Failed(left)));
    }

    /// How many records and uses it holds, for figures.
    pub(crate) fn lens(&self) -> (usize, usize) {
        (self.records.len(), self.uses.len())
    }
}
