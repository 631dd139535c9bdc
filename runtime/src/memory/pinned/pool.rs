//! The pool of page-locked memory of one device: its blocks, and its cap.

use super::{NOWHERE, Pinned, PinnedBytes};
use crate::background;
use crate::report;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::Arc;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{ByteSize, Driver, DriverError, Element, Error, ErrorKind, reentry};

/// The default cap of a pool.
pub(crate) const DEFAULT_CAP_BYTES: usize = 4 << 30;

const LEAST_BYTES: usize = 4 << 10;
const COARSE_BYTES: usize = 1 << 20;
/// The maximum length of a block that is made ahead of need. Longer ones would take as much RAM
/// again as the program uses.
const AHEAD_BYTES: usize = COARSE_BYTES;
/// The alignment that the driver promises, and that of a buffer of length zero.
pub(super) const ALIGN_BYTES: usize = 64;

/// Returns the length of the block that serves `len_bytes`, or `None` if there cannot be one.
fn block_len(len_bytes: usize) -> Option<usize> {
    if len_bytes <= COARSE_BYTES {
        return Some(len_bytes.next_power_of_two().max(LEAST_BYTES));
    }
    len_bytes.checked_next_multiple_of(COARSE_BYTES).filter(|&len| isize::try_from(len).is_ok())
}

/// Statistics of the page-locked memory of one device: in use, cached, and peaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PinnedStats {
    /// Bytes of buffers in use, each counted at the length of its block.
    pub allocated_bytes: usize,
    /// The highest value of `allocated_bytes`.
    pub peak_allocated_bytes: usize,
    /// Page-locked bytes, in use and cached.
    pub reserved_bytes: usize,
    /// The highest value of `reserved_bytes`.
    pub peak_reserved_bytes: usize,
    /// Bytes that the driver refused to free. They stay page-locked until the process ends, and are
    /// not part of `reserved_bytes`.
    pub not_freed_bytes: usize,
    /// The limit on `reserved_bytes` and `not_freed_bytes` together:
    /// [`pinned_cap`](crate::RuntimeBuilder::pinned_cap).
    pub cap_bytes: usize,
}

/// A caching pool of page-locked host memory.
#[derive(Debug)]
pub(crate) struct PinnedPool {
    pub(super) driver: Arc<dyn Driver>,
    state: Mutex<State>,
    /// Notified when a block was made ahead, or could not be.
    grown: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Cached blocks by length, last in first out. A length that was cached once keeps its empty
    /// list.
    cached: BTreeMap<usize, Vec<HostBlock>>,
    /// The lengths of which a block is to be made ahead.
    wanted: BTreeSet<usize>,
    /// The length of the block that is being made ahead; 0 if there is none.
    growing: usize,
    /// True if a request has met the cap before.
    met_cap: bool,
    /// Statistics, in which `reserved_bytes` includes what the driver is being asked for now.
    stats: PinnedStats,
}

/// The start of a block of host memory that is not in use.
#[derive(Debug)]
pub(super) struct HostBlock(pub(super) NonNull<u8>);

// SAFETY: an address in host memory, valid on every thread, owned by the holder of the value.
unsafe impl Send for HostBlock {}

fn not_null(ptr: *mut u8) -> Result<HostBlock, DriverError> {
    let block = NonNull::new(ptr).map(HostBlock);
    block.ok_or_else(|| DriverError::Refused("null instead of host memory".into()))
}

/// Returns the error with the failure that the driver reported as its source.
fn caused_by(error: Error, why: &DriverError) -> Error {
    match why.failure() {
        Some(failure) => error.caused_by(failure.clone()),
        None => error,
    }
}

impl State {
    fn cached(&mut self, len: usize) -> Option<(HostBlock, usize)> {
        // Powers of two match exactly. Among the coarse lengths, the tightest that is not wasteful
        // is taken.
        let most = if len > COARSE_BYTES { len + len / 4 } else { len };
        let (&found, list) = self.cached.range_mut(len..=most).find(|(_, list)| !list.is_empty())?;
        Some((list.pop()?, found))
    }

    fn note_peak(&mut self) {
        self.stats.peak_reserved_bytes = self.stats.peak_reserved_bytes.max(self.stats.reserved_bytes);
    }

    /// Takes cached blocks out, the longest first, until no more than `at_most` bytes are reserved.
    fn evict(&mut self, at_most: usize) -> Vec<(HostBlock, usize)> {
        let mut evicted = Vec::new();
        for (&len, list) in self.cached.iter_mut().rev() {
            while self.stats.reserved_bytes > at_most {
                let Some(block) = list.pop() else { break };
                self.stats.reserved_bytes -= len;
                evicted.push((block, len));
            }
        }
        self.cached.retain(|_, list| !list.is_empty());
        evicted
    }
}

impl PinnedPool {
    pub(crate) fn new(driver: Arc<dyn Driver>, cap_bytes: usize) -> Arc<Self> {
        let stats = PinnedStats { cap_bytes, ..PinnedStats::default() };
        Arc::new(PinnedPool {
            driver,
            state: Mutex::new(State { stats, ..State::default() }),
            grown: Condvar::new(),
        })
    }

    /// Returns a cached block, if one fits. Never calls the driver.
    pub(crate) fn try_take(self: &Arc<Self>, len_bytes: usize) -> Option<PinnedBytes> {
        if len_bytes == 0 {
            return Some(self.bytes(HostBlock(NOWHERE), 0, 0));
        }
        let len = block_len(len_bytes)?;
        let mut state = self.state.lock();
        let (block, len) = state.cached(len)?;
        Some(self.lend(state, block, len, len_bytes))
    }

    /// Hands a block out, and requests another if it was the last of its length.
    fn lend(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        block: HostBlock,
        len: usize,
        len_bytes: usize,
    ) -> PinnedBytes {
        let stats = &mut state.stats;
        stats.allocated_bytes += len;
        stats.peak_allocated_bytes = stats.peak_allocated_bytes.max(stats.allocated_bytes);
        let wants_another = self.driver.host_memory_is_slow()
            && len <= AHEAD_BYTES
            && state.cached.get(&len).is_none_or(Vec::is_empty)
            && state.wanted.insert(len);
        drop(state);
        if wants_another {
            let pool = self.clone();
            background::pin(self.driver.id(), move || pool.grow(len));
        }
        self.bytes(block, len, len_bytes)
    }

    /// Makes a block ahead of need, unless one was returned or the cap leaves no room.
    #[cold]
    fn grow(&self, len: usize) {
        let mut state = self.state.lock();
        state.wanted.remove(&len);
        let is_there = state.cached.get(&len).is_some_and(|list| !list.is_empty());
        if is_there || state.stats.reserved_bytes.saturating_add(len) > self.cap_of(&state) {
            return;
        }
        state.stats.reserved_bytes += len;
        state.growing = len;
        drop(state);
        let made = self.driver.alloc_host_ahead(len).map(|made| made.and_then(not_null));
        let mut state = self.state.lock();
        state.growing = 0;
        match made {
            Some(Ok(block)) => {
                state.note_peak();
                state.cached.entry(len).or_default().push(block);
            }
            // No caller waits for this block. The next copy that needs one gets the error.
            Some(Err(_)) | None => state.stats.reserved_bytes -= len,
        }
        drop(state);
        self.grown.notify_all();
    }

    /// Returns a cached block or one from the driver, which may take milliseconds.
    ///
    /// # Errors
    /// `OutOfMemory` if the buffers in use leave too little of the cap, or the driver has no
    /// memory; `Reentrant` if a host function would cause the driver call.
    pub(crate) fn take(self: &Arc<Self>, len_bytes: usize) -> Result<PinnedBytes, Error> {
        if let Some(bytes) = self.try_take(len_bytes) {
            return Ok(bytes);
        }
        reentry::may_ask(&"pinned")?;
        self.promise(len_bytes)?.keep()
    }

    /// Sets room aside for a block that the driver has yet to allocate. Never calls the driver. The
    /// first request that meets the cap is reported. Called under no lock, as the report is.
    ///
    /// # Errors
    /// `OutOfMemory` if the buffers in use leave too little of the cap.
    pub(crate) fn promise(self: &Arc<Self>, len_bytes: usize) -> Result<Promise, Error> {
        let Some(len) = block_len(len_bytes) else {
            return Err(self.over_cap(len_bytes, self.stats().allocated_bytes));
        };
        let can_free = self.driver.can_free();
        let mut state = self.state.lock();
        let cap = self.cap_of(&state);
        let reserved = state.stats.reserved_bytes;
        let meets_cap = len > cap.saturating_sub(reserved);
        if meets_cap && !std::mem::replace(&mut state.met_cap, true) {
            drop(state);
            report::pinned_cap_reached(self.driver.id(), len_bytes, reserved, cap);
            state = self.state.lock();
        }
        // The part of it that could be evicted.
        let cached = if can_free { state.cached.iter().map(|(len, list)| len * list.len()).sum() } else { 0 };
        // A block that is made ahead will be cached, and can be evicted then.
        let held = state.stats.reserved_bytes - cached - state.growing;
        if len > cap.saturating_sub(held) {
            drop(state);
            return Err(self.over_cap(len_bytes, held));
        }
        let evicted = if can_free { state.evict(cap - len) } else { Vec::new() };
        state.stats.reserved_bytes += len;
        drop(state);
        Ok(Promise { pool: self.clone(), len, len_bytes, evicted })
    }

    fn ask(&self, len: usize) -> Result<HostBlock, DriverError> {
        self.driver.alloc_host(len).and_then(not_null)
    }

    #[cold]
    fn not_given(&self, len_bytes: usize, held: usize, why: &DriverError) -> Error {
        let kind = match why {
            DriverError::OutOfMemory(_) => ErrorKind::OutOfMemory,
            _ => ErrorKind::Driver,
        };
        let (device, asked, held) = (self.driver.id(), ByteSize(len_bytes), ByteSize(held));
        let message = format!(
            "{device} could not allocate pinned memory: {asked} asked, {held} in use: {why}; drop pinned \
             buffers or use smaller ones"
        );
        caused_by(Error::new(kind, message), why)
    }

    /// Returns the error of a request above the cap. `held`: bytes in use, or being made for a
    /// copy.
    #[cold]
    fn over_cap(&self, len_bytes: usize, held: usize) -> Error {
        let stats = self.stats();
        let not_freed = match stats.not_freed_bytes {
            0 => String::new(),
            bytes => format!(", and {} that the driver did not free", ByteSize(bytes)),
        };
        let [asked, held, cap] = [len_bytes, held, stats.cap_bytes].map(ByteSize);
        let message = format!(
            "the pinned memory of {} is at its cap: {asked} asked, {held} in use of {cap}{not_freed}; drop \
             pinned buffers or await the copies that hold them, or raise the cap",
            self.driver.id()
        );
        Error::new(ErrorKind::OutOfMemory, message)
    }

    /// Page-locks the memory of `elements`, and takes it unless the driver refuses. It is not
    /// counted as the pool's.
    ///
    /// # Errors
    /// `Driver` if the driver does not take it.
    pub(crate) fn register<T: Element>(self: &Arc<Self>, elements: &mut Vec<T>) -> Result<Pinned<T>, Error> {
        reentry::may_ask(&"pin")?;
        let (len, len_bytes) = (elements.len(), size_of_val(&**elements));
        let ptr = NonNull::from(elements.as_mut_slice()).cast::<u8>();
        let mut owner = None;
        if len_bytes > 0 {
            // SAFETY: `Driver::register_host` needs memory that stays until it is unregistered: the
            // vector's, which is dropped after that and not touched meanwhile.
            unsafe { self.driver.register_host(ptr.as_ptr(), len_bytes) }.map_err(|why| {
                let (device, bytes) = (self.driver.id(), ByteSize(len_bytes));
                let message = format!(
                    "{device} could not page-lock {bytes}: {why}; use a buffer from pinned() and copy into it"
                );
                caused_by(Error::new(ErrorKind::Driver, message), &why)
            })?;
            owner = Some(Box::new(std::mem::take(elements)) as Box<dyn Any + Send>);
        }
        let mut bytes = self.bytes(HostBlock(ptr), 0, len_bytes);
        bytes.owner = owner;
        Ok(Pinned::new(bytes, len))
    }

    /// Returns the current statistics.
    pub(crate) fn stats(&self) -> PinnedStats {
        PinnedStats { not_freed_bytes: self.not_freed(), ..self.state.lock().stats }
    }

    fn not_freed(&self) -> usize {
        self.driver.not_freed().host_bytes
    }

    /// Returns the limit on the reserved bytes.
    fn cap_of(&self, state: &State) -> usize {
        state.stats.cap_bytes.saturating_sub(self.not_freed())
    }

    /// Frees every cached block, and returns the number of bytes that were freed.
    pub(crate) fn empty(&self) -> usize {
        if !self.driver.can_free() {
            return 0;
        }
        let evicted = self.state.lock().evict(0);
        let bytes: usize = evicted.iter().map(|(_, len)| len).sum();
        let before = self.not_freed();
        self.free(evicted);
        bytes.saturating_sub(self.not_freed().saturating_sub(before))
    }

    /// Takes back a block that is no longer in use.
    pub(super) fn take_back(&self, block: HostBlock, block_len: usize) {
        let mut state = self.state.lock();
        state.stats.allocated_bytes -= block_len;
        state.cached.entry(block_len).or_default().push(block);
    }

    fn bytes(self: &Arc<Self>, block: HostBlock, block_len: usize, len_bytes: usize) -> PinnedBytes {
        PinnedBytes { ptr: block.0, block_len, len_bytes, elements: None, owner: None, pool: self.clone() }
    }

    fn free(&self, blocks: Vec<(HostBlock, usize)>) {
        if blocks.is_empty() {
            return;
        }
        let driver = self.driver.clone();
        background::run_where_it_may_block(move || {
            for (HostBlock(ptr), len) in blocks {
                // SAFETY: `Driver::free_host` needs an allocation of this driver with its length,
                // and no work that touches it. The block was cached under its length. It was cached
                // only after its owner, which a copy in flight keeps, was dropped.
                unsafe { driver.free_host(ptr.as_ptr(), len) };
            }
        });
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        // Every `PinnedBytes` holds the pool, so all blocks are cached.
        self.empty();
    }
}

/// Room in a pool for one block. Dropping it releases the room.
#[derive(Debug)]
pub(crate) struct Promise {
    pool: Arc<PinnedPool>,
    len: usize,
    len_bytes: usize,
    /// The blocks that have to return to the driver first.
    evicted: Vec<(HostBlock, usize)>,
}

impl Promise {
    /// Returns the block. It comes from the driver, which may take milliseconds, unless one was
    /// returned to the pool meanwhile.
    ///
    /// # Errors
    /// `OutOfMemory` or `Driver` if the driver allocates none.
    pub(crate) fn keep(mut self) -> Result<PinnedBytes, Error> {
        let (pool, len, len_bytes) = (self.pool.clone(), self.len, self.len_bytes);
        let mut state = pool.state.lock();
        while state.growing > 0 && state.stats.reserved_bytes > pool.cap_of(&state) {
            pool.grown.wait(&mut state);
        }
        if let Some((block, len)) = state.cached(len) {
            drop(state);
            // Dropped before the block counts as in use, so that the statistics never count both.
            drop(self);
            return Ok(pool.lend(pool.state.lock(), block, len, len_bytes));
        }
        let cap = pool.cap_of(&state);
        self.evicted.extend(state.evict(cap));
        drop(state);
        pool.free(std::mem::take(&mut self.evicted));
        let mut answer = pool.ask(len);
        if matches!(answer, Err(DriverError::OutOfMemory(_))) {
            let evicted = pool.state.lock().evict(0);
            pool.free(evicted);
            answer = pool.ask(len);
        }
        match answer {
            Ok(block) => {
                // The room belongs to the block from here on.
                self.len = 0;
                let mut state = pool.state.lock();
                state.note_peak();
                Ok(pool.lend(state, block, len, len_bytes))
            }
            Err(why) => {
                drop(self);
                Err(pool.not_given(len_bytes, pool.stats().allocated_bytes, &why))
            }
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        let mut state = self.pool.state.lock();
        state.stats.reserved_bytes -= self.len;
        for (block, len) in self.evicted.drain(..) {
            state.stats.reserved_bytes += len;
            state.cached.entry(len).or_default().push(block);
        }
    }
}
