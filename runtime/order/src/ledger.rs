//! An allocation's history: the last writes, the reads since, and the newest ticket of each stream that used it.
//!
//! # Who may touch what, when
//! A ledger is a *book* behind one lock. Reading the same weights from many threads would make that lock's cache line
//! wander between cores, so a book that readers keep waiting for is **sharded**: each of eight *shards* gets a copy
//! of the writes, and a reader then locks only the shard of its stream and enters its reads there. The first exclusive
//! opening (a write, a wait for all uses, an error mark) collects the shards' reads and closes them again.
//!
//! 1. `main` is locked before any shard of the same ledger; a reader that holds a shard never asks for `main`.
//! 2. A shard is active exactly while `book.sharded`; both change under `main` and that shard's lock.
//! 3. While sharded, the book's writes do not change, so each shard's copy is true.
//! 4. Several ledgers are opened in the order of their addresses. (`check.rs`)

use super::book::{Book, Did};
use super::clock::Use;
use super::site::Site;
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use std::sync::OnceLock;

const SHARDS: usize = 8;
/// How many waiting readers it takes until a book is sharded.
const PATIENCE: u8 = 2;

/// The history of one allocation. It is opened to be looked at or written in.
// In this order, here and in `Book`, so that what every op looks at lies together.
#[derive(Debug)]
#[repr(C)]
pub struct Ledger {
    shards: OnceLock<Box<[CachePadded<Mutex<Book>>; SHARDS]>>,
    main: Mutex<Book>,
}

/// An opened ledger: its main book, or a shard.
pub(crate) type Page<'a> = MutexGuard<'a, Book>;

impl Ledger {
    /// The history of memory that `site` allocated on a stream whose last ticket was `used`.
    pub fn new(used: Use, len_bytes: u64, site: Site) -> Self {
        let mut ledger = Ledger::unknown();
        ledger.begin(used, None, len_bytes, site);
        ledger
    }

    /// Notes the allocation in a ledger that knows nothing: as [`new`](Self::new), where it stands.
    ///
    /// `behind`: what the memory was used for before, if the stream is not after it. It is not the
    /// program's business, so it is in no verdict: whichever stream touches the memory first is
    /// made to wait for it.
    #[inline]
    pub fn begin(&mut self, used: Use, behind: Option<Use>, len_bytes: u64, site: Site) {
        self.main.get_mut().begin(used, behind, len_bytes, site);
    }

    /// The history of memory of which nothing is known.
    #[inline]
    pub fn unknown() -> Self {
        Ledger { main: Mutex::new(Book::default()), shards: OnceLock::new() }
    }

    /// Opens it for an op that reads only. `shard` spreads streams over shards.
    #[inline]
    pub fn open_to_read(&self, shard: usize) -> Page<'_> {
        if let Some(shards) = self.shards.get() {
            let shard = shards[shard % SHARDS].lock();
            if shard.sharded {
                return shard;
            }
        }
        match self.main.try_lock() {
            Some(book) => book,
            None => self.open_contended(shard),
        }
    }

    #[cold]
    fn open_contended(&self, shard: usize) -> Page<'_> {
        let mut book = self.main.lock();
        book.waited += 1;
        if book.waited < PATIENCE || !book.is_plain() {
            return book;
        }
        let shards = self.shards.get_or_init(Box::default);
        if !book.sharded {
            book.sharded = true;
            for shard in shards.iter() {
                let mut shard = shard.lock();
                shard.sharded = true;
                shard.records =
                    book.records.iter().filter(|record| record.did != Did::Read).copied().collect();
            }
        }
        shards[shard % SHARDS].lock()
    }

    /// Opens it for anything.
    #[inline]
    pub fn open(&self) -> Page<'_> {
        let mut book = self.main.lock();
        book.waited = 0;
        if book.sharded {
            self.collect(&mut book);
        }
        book
    }

    #[cold]
    fn collect(&self, book: &mut Book) {
        for shard in self.shards.get().into_iter().flat_map(|shards| shards.iter()) {
            let mut shard = shard.lock();
            shard.sharded = false;
            for read in
                std::mem::take(&mut shard.records).into_iter().filter(|record| record.did == Did::Read)
            {
                book.records.retain(|old| {
                    old.did != Did::Read || old.used.stream != read.used.stream || old.range != read.range
                });
                book.records.push(read);
            }
            book.outlived |= shard.outlived;
            for used in std::mem::take(&mut shard.uses) {
                match book.uses.iter_mut().find(|entry| entry.stream == used.stream) {
                    Some(entry) => entry.ticket = entry.ticket.max(used.ticket),
                    None => book.uses.push(used),
                }
            }
        }
        book.sharded = false;
    }

    /// The newest ticket of each stream that used it, when nobody else can use it any more. Its
    /// allocation is one of them if the allocating stream was after all earlier uses.
    #[inline(always)]
    pub fn last_uses(&mut self) -> &[Use] {
        if self.main.get_mut().sharded {
            drop(self.open());
        }
        self.main.get_mut().last_uses()
    }
}
