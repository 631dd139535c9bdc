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
use crate::timeline::Ticket;
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
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

#[derive(Debug)]
pub(crate) struct Ledger {
    main: Mutex<Book>,
    lanes: OnceLock<Box<[CachePadded<Mutex<Lane>>; LANES]>>,
}

/// What a book and a lane both hold.
#[derive(Debug, Default)]
pub(crate) struct History {
    records: Records,
    uses: Uses,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    history: History,
    failed: Vec<(ByteRange, Error)>,
    shared: bool,
    waited: u8,
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    active: bool,
    history: History,
}

/// An opened ledger.
pub(crate) enum Page<'a> {
    Book(MutexGuard<'a, Book>),
    Lane(MutexGuard<'a, Lane>),
}

impl Ledger {
    /// The history of memory that `site` allocated on a stream whose last ticket was `used`.
    #[inline]
    pub(crate) fn new(used: Use, len_bytes: u64, site: Site) -> Self {
        let mut book = Book::default();
        book.history.records.push(Record {
            used,
            range: ByteRange::contiguous(0, len_bytes),
            did: Did::Allocate,
            site,
        });
        // Whatever the block was used for before, the allocating stream is after it at this very ticket.
        book.history.uses.push(used);
        Ledger { main: Mutex::new(book), lanes: OnceLock::new() }
    }

    /// The history of memory of which nothing is known.
    pub(crate) fn unknown() -> Self {
        Ledger { main: Mutex::new(Book::default()), lanes: OnceLock::new() }
    }

    /// Opens it for an op that reads only. `lane` spreads streams over lanes.
    #[inline]
    pub(crate) fn open_to_read(&self, lane: usize) -> Page<'_> {
        if let Some(lanes) = self.lanes.get() {
            let lane = lanes[lane % LANES].lock();
            if lane.active {
                return Page::Lane(lane);
            }
        }
        match self.main.try_lock() {
            Some(book) => Page::Book(book),
            None => self.open_contended(lane),
        }
    }

    #[cold]
    fn open_contended(&self, lane: usize) -> Page<'_> {
        let mut book = self.main.lock();
        book.waited += 1;
        if book.waited < PATIENCE || !book.failed.is_empty() {
            return Page::Book(book);
        }
        let lanes = self.lanes.get_or_init(Box::default);
        if !book.shared {
            book.shared = true;
            for lane in lanes.iter() {
                let mut lane = lane.lock();
                lane.active = true;
                lane.history.records =
                    book.history.records.iter().filter(|record| record.did != Did::Read).copied().collect();
            }
        }
        Page::Lane(lanes[lane % LANES].lock())
    }

    /// Opens it for anything.
    #[inline]
    pub(crate) fn open(&self) -> MutexGuard<'_, Book> {
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
            lane.active = false;
            for read in
                std::mem::take(&mut lane.history.records).into_iter().filter(|record| record.did == Did::Read)
            {
                book.history.records.retain(|old| {
                    old.did != Did::Read || old.used.stream != read.used.stream || old.range != read.range
                });
                book.history.records.push(read);
            }
            for used in std::mem::take(&mut lane.history.uses) {
                note(&mut book.history.uses, used, |_| false);
            }
        }
        book.shared = false;
    }

    /// The newest ticket of each stream that used it, when nobody else can use it any more.
    #[inline]
    pub(crate) fn last_uses(&mut self) -> &[Use] {
        if self.main.get_mut().shared {
            drop(self.open());
        }
        &self.main.get_mut().history.uses
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

impl History {
    /// Notes that `used` touches this memory, whatever the check says.
    #[inline]
    pub(crate) fn note_use(&mut self, used: Use, observed: &Observed) {
        note(&mut self.uses, used, |stream| observed.is_gone(stream));
    }

    /// The access of record `at` happened again: only ticket and site are new. Returns the old ones.
    #[inline]
    pub(crate) fn renew(&mut self, at: usize, ticket: Ticket, site: Site) -> (Ticket, Site) {
        let record = &mut self.records[at];
        (std::mem::replace(&mut record.used.ticket, ticket), std::mem::replace(&mut record.site, site))
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
                _ => record.range.covers(&old.range),
            };
            let drop = replaced || observed.covers(old.used);
            if drop {
                removed(*old);
            }
            !drop
        });
        self.records.push(record);
    }

    /// Takes back what [`renew`](Self::renew) or [`enter`](Self::enter) did, for an op whose driver call failed.
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
        if let Some(entry) = self.uses.iter_mut().find(|entry| entry.stream == used.stream) {
            // The stream's last real ticket: at least as new as what stood here.
            entry.ticket = entry.ticket.min(used.ticket - 1);
        }
    }
}

impl Page<'_> {
    #[inline]
    pub(crate) fn records(&self) -> &Records {
        match self {
            Page::Book(book) => &book.history.records,
            Page::Lane(lane) => &lane.history.records,
        }
    }

    #[inline]
    pub(crate) fn history(&mut self) -> &mut History {
        match self {
            Page::Book(book) => &mut book.history,
            Page::Lane(lane) => &mut lane.history,
        }
    }

    /// The error that an earlier refused write left on these bytes.
    #[inline]
    pub(crate) fn failed(&self, range: &ByteRange) -> Option<&Error> {
        match self {
            Page::Book(book) if !book.failed.is_empty() => failed_in(&book.failed, range),
            _ => None,
        }
    }

    /// `range` has been overwritten: what an earlier refused write left there no longer matters.
    #[inline]
    pub(crate) fn overwrite(&mut self, range: &ByteRange) {
        if let Page::Book(book) = self
            && !book.failed.is_empty()
        {
            book.clear_failed(range);
        }
    }
}

#[cold]
fn failed_in<'a>(failed: &'a [(ByteRange, Error)], range: &ByteRange) -> Option<&'a Error> {
    failed.iter().find(|(at, _)| at.overlaps(range)).map(|(_, error)| error)
}

impl Book {
    /// The newest ticket of each stream that used the memory.
    pub(crate) fn uses(&self) -> &[Use] {
        &self.history.uses
    }

    /// Forgets what was done to the memory, but not who used it: there is nothing in it that an op could come too early for.
    pub(crate) fn forget_accesses(&mut self) {
        self.history.records.clear();
    }

    /// Marks bytes that a refused write did not write.
    pub(crate) fn mark_failed(&mut self, range: ByteRange, error: &Error) {
        self.clear_failed(&range);
        self.failed.push((range, error.clone()));
    }

    /// Takes the marks off `range`.
    #[cold]
    pub(crate) fn clear_failed(&mut self, range: &ByteRange) {
        let mut left = Vec::new();
        for (at, error) in self.failed.drain(..) {
            if range.covers(&at) {
                continue;
            }
            match at.minus(range) {
                Some(pieces) => left.extend(pieces.map(|piece| (piece, error.clone()))),
                None => left.push((at, error)),
            }
        }
        self.failed = left;
    }

    /// How many records and uses it holds, for figures.
    pub(crate) fn lens(&self) -> (usize, usize) {
        (self.history.records.len(), self.history.uses.len())
    }
}
