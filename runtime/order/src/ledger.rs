//! The history of an allocation: the last writes, the reads since then, and the newest ticket of
//! each stream that used it.
//!
//! # Who may touch what, when
//! A ledger is a *book* behind one lock. When many threads read the same weights, that lock's cache
//! line would move between cores. So a book that readers keep waiting for is **sharded**: each of
//! eight *shards* gets the reads of its streams, and a copy of the writes, or shares them if they
//! are many. A reader then locks only the shard of its stream and enters its reads there. The first
//! exclusive opening (a write, a wait for all uses, an error mark) collects the shards' reads and
//! closes the shards again.
//!
//! 1. `main` is locked before any shard of the same ledger; a reader that holds a shard never locks
//!    `main`.
//! 2. A shard is active exactly while `book.sharded` is set; both change under `main` and that
//!    shard's lock.
//! 3. While the book is sharded, its writes do not change, so each shard's copy is up to date. All
//!    reads of a stream are in the shard of that stream, so an op that is undone finds its records
//!    there, or in the main book if the shards were closed.
//! 4. Several ledgers are opened in the order of their addresses. (`check.rs`)
// Decision: docs/decisions/0004-reused-memory-waits-at-first-touch.md
// Decision: docs/decisions/0006-contended-ledgers-are-sharded.md

use super::book::Book;
use super::clock::{StreamId, Use};
use super::site::Site;
use super::sync::{CachePadded, Mutex, MutexGuard, OnceLock};

const SHARDS: usize = 8;

/// Returns the index of the shard that a stream reads in.
#[inline]
fn shard_of(stream: StreamId) -> usize {
    stream.number() as usize % SHARDS
}

/// The number of waiting readers after which a book is sharded.
pub(crate) const PATIENCE: u8 = 2;

/// The history of one allocation. It is opened to be read or written.
// The fields are in this order, here and in `Book`, so that what every op reads lies together.
#[derive(Debug)]
#[repr(C)]
pub struct Ledger {
    shards: OnceLock<Box<[CachePadded<Mutex<Book>>; SHARDS]>>,
    main: Mutex<Book>,
}

/// An opened ledger: its main book or one of its shards.
pub(crate) type Page<'a> = MutexGuard<'a, Book>;

impl Ledger {
    /// Creates the history of memory that `site` allocated on a stream whose last ticket was
    /// `used`.
    pub fn new(used: Use, len_bytes: u64, site: Site) -> Self {
        let mut ledger = Ledger::unknown();
        ledger.begin(used, None, len_bytes, site);
        ledger
    }

    /// Notes the allocation in a ledger that knows nothing: [`new`](Self::new), but in place.
    ///
    /// `behind` is the last use of the memory by its owner before, if the stream is not ordered
    /// after it. The program cannot order that use, so the check never reports it. Instead, each
    /// stream waits for it before it first touches the memory.
    #[inline]
    pub fn begin(&mut self, used: Use, behind: Option<Use>, len_bytes: u64, site: Site) {
        self.main.get_mut().begin(used, behind, len_bytes, site);
    }

    /// Creates the history of memory of which nothing is known.
    #[inline]
    pub fn unknown() -> Self {
        Ledger { main: Mutex::new(Book::default()), shards: OnceLock::new() }
    }

    /// Opens the ledger for an op of `stream` that only reads.
    #[inline]
    pub fn open_to_read(&self, stream: StreamId) -> Page<'_> {
        if let Some(shards) = self.shards.get() {
            let shard = shards[shard_of(stream)].lock();
            if shard.sharded {
                return shard;
            }
        }
        match self.main.try_lock() {
            // Another thread may have sharded the book since the look at the shard.
            Some(book) if !book.sharded => book, // weaken: try-then-look
            Some(book) => {
                drop(book);
                self.open_contended(stream)
            }
            None => self.open_contended(stream),
        }
    }

    /// Opens the ledger for a reader that found it locked.
    #[cold]
    pub(crate) fn open_contended(&self, stream: StreamId) -> Page<'_> {
        let mut book = self.main.lock();
        book.waited = book.waited.saturating_add(1);
        if book.waited < PATIENCE || !book.is_plain() {
            return book;
        }
        let shards = self.shards.get_or_init(Box::default);
        if !book.sharded {
            book.sharded = true;
            let reads = book.records.take_reads();
            for (at, shard) in shards.iter().enumerate() {
                let mut shard = shard.lock();
                shard.sharded = true;
                shard.records = book.records.writes_only();
                let its = reads.iter().filter(|read| shard_of(read.used.stream) == at);
                its.for_each(|read| shard.records.push(*read));
            }
        }
        shards[shard_of(stream)].lock()
    }

    /// Opens the ledger for any kind of access.
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
            for read in std::mem::take(&mut shard.records).take_reads() {
                book.records.push(read);
            }
            book.outlived |= shard.outlived;
            book.uses.take_newer(std::mem::take(&mut shard.uses));
        }
        book.sharded = false;
    }

    /// Returns the newest ticket of each stream that used the memory, once nothing else can use it.
    /// The allocation is one of these uses, unless the memory was perhaps still in use from before:
    /// then a wait for the allocation does not wait for that use.
    #[inline(always)]
    pub fn last_uses(&mut self) -> &[Use] {
        if self.main.get_mut().sharded {
            drop(self.open());
        }
        self.main.get_mut().last_uses()
    }
}
