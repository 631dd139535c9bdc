//! The pool of page-locked memory of one device: its blocks, and its cap.

use super::promise::{Promise, Promises};
use super::waits::Waits;
use super::{NOWHERE, Owner, Pinned, PinnedBytes, Return};
use crate::background;
use crate::report;
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use tokio::sync::Notify;
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

/// Returns the length of the block that serves `len_bytes`; the largest number if there cannot be
/// one.
pub fn pinned_len(len_bytes: usize) -> usize {
    block_len(len_bytes).unwrap_or(usize::MAX)
}

/// The lengths of a block that is asked for: the block's, and that of the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lens {
    pub(super) block: usize,
    pub(super) bytes: usize,
}

/// Returns the lengths of the blocks that serve requests, or `None` if there cannot be such
/// blocks.
pub(super) fn block_lens(lens_bytes: &[usize]) -> Option<SmallVec<[Lens; 1]>> {
    let lens = lens_bytes.iter().map(|&bytes| Some(Lens { block: block_len(bytes)?, bytes }));
    let lens: Option<SmallVec<[Lens; 1]>> = lens.collect();
    lens.filter(|lens| lens.iter().try_fold(0usize, |sum, lens| sum.checked_add(lens.block)).is_some())
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
    /// Page-locked bytes beyond the cap, at most 1 MiB. They serve only copies of at most 64 KiB,
    /// at times when the cap leaves no room.
    pub reserve_bytes: usize,
}

/// A caching pool of page-locked host memory.
#[derive(Debug)]
pub(crate) struct PinnedPool {
    pub(super) driver: Arc<dyn Driver>,
    /// True if it is for short copies alone, so that they do not wait for long ones.
    is_reserve: bool,
    pub(super) state: Mutex<State>,
    /// True while requests wait. Changed under the lock.
    pub(super) awaited: AtomicBool,
    /// Notified when requests of tasks were granted.
    pub(super) granted: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The requests that wait, and the copies whose memory comes back.
    pub(super) waits: Waits,
    /// Cached blocks by length, last in first out. A length that was cached once keeps its empty
    /// list.
    cached: BTreeMap<usize, Vec<HostBlock>>,
    /// The lengths of which a block is to be made ahead.
    wanted: BTreeSet<usize>,
    /// The length of the block that is being made ahead; 0 if there is none.
    pub(super) growing: usize,
    /// True if a request has met the cap before.
    met_cap: bool,
    /// Statistics, in which `reserved_bytes` includes what the driver is being asked for now.
    pub(super) stats: PinnedStats,
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
    pub(super) fn cached(&mut self, len: usize) -> Option<(HostBlock, usize)> {
        // A longer block would take more of the cap than the request was judged by.
        Some((self.cached.get_mut(&len)?.pop()?, len))
    }

    pub(super) fn cache(&mut self, (block, len): (HostBlock, usize)) {
        self.cached.entry(len).or_default().push(block);
    }

    pub(super) fn note_peak(&mut self) {
        self.stats.peak_reserved_bytes = self.stats.peak_reserved_bytes.max(self.stats.reserved_bytes);
    }

    /// Takes cached blocks out, the longest first, until no more than `at_most` bytes are reserved.
    pub(super) fn evict(&mut self, at_most: usize) -> Vec<(HostBlock, usize)> {
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
        Self::with(driver, cap_bytes, false)
    }

    /// Returns the pool of the copies that must not wait for long ones.
    pub(crate) fn reserve(driver: Arc<dyn Driver>, cap_bytes: usize) -> Arc<Self> {
        Self::with(driver, cap_bytes, true)
    }

    fn with(driver: Arc<dyn Driver>, cap_bytes: usize, is_reserve: bool) -> Arc<Self> {
        let stats = PinnedStats { cap_bytes, ..PinnedStats::default() };
        Arc::new(PinnedPool {
            driver,
            is_reserve,
            state: Mutex::new(State { stats, ..State::default() }),
            awaited: AtomicBool::new(false),
            granted: Notify::new(),
        })
    }

    /// Returns a cached block, if one fits and no request waits. Never calls the driver.
    pub(crate) fn try_take(
        self: &Arc<Self>,
        len_bytes: usize,
        returns: Option<&Arc<Return>>,
    ) -> Option<PinnedBytes> {
        if len_bytes == 0 {
            return Some(self.bytes(HostBlock(NOWHERE), 0, 0));
        }
        let len = block_len(len_bytes)?;
        let mut state = self.state.lock();
        if !state.waits.is_empty() {
            return None;
        }
        let (block, len) = state.cached(len)?;
        if let Some(returns) = returns {
            state.waits.note_return(returns, len);
        }
        Some(self.lend(state, block, len, len_bytes, returns.cloned()))
    }

    /// Hands a block out, and requests another if it was the last of its length.
    pub(super) fn lend(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        block: HostBlock,
        len: usize,
        len_bytes: usize,
        returns: Option<Arc<Return>>,
    ) -> PinnedBytes {
        if let Some(returns) = &returns {
            returns.bytes.store(len, Ordering::Relaxed);
        }
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
        let mut bytes = self.bytes(block, len, len_bytes);
        bytes.returns = returns;
        bytes
    }

    /// Makes a block ahead of need, unless one was returned or the cap leaves no room.
    #[cold]
    fn grow(self: &Arc<Self>, len: usize) {
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
        self.serve(state);
    }

    /// Sets room aside for a block, unless requests wait or there is too little. Never calls the
    /// driver. Called under no lock, since the first request that meets the cap is reported.
    pub(crate) fn try_promise(
        self: &Arc<Self>,
        len_bytes: usize,
        returns: Option<&Arc<Return>>,
    ) -> Option<Promise> {
        self.try_promises(&[len_bytes], returns)?.pop()
    }

    /// Does the same for several blocks, for which there has to be room together.
    pub(crate) fn try_promises(
        self: &Arc<Self>,
        lens_bytes: &[usize],
        returns: Option<&Arc<Return>>,
    ) -> Option<Promises> {
        let lens = block_lens(lens_bytes)?;
        let mut state = self.state.lock();
        if !state.waits.is_empty() {
            return None;
        }
        let (reserved, cap) = (state.stats.reserved_bytes, self.cap_of(&state));
        let promises = self.promised(&mut state, &lens, returns)?;
        let made = promises.iter().filter(|promise| promise.block.is_none());
        let needed: usize = made.map(|promise| promise.lens.block).sum();
        let meets_cap = !self.is_reserve && needed > cap.saturating_sub(reserved);
        let is_first = meets_cap && !std::mem::replace(&mut state.met_cap, true);
        drop(state);
        if is_first {
            report::pinned_cap_reached(self.driver.id(), lens_bytes.iter().sum(), reserved, cap);
        }
        Some(promises)
    }

    /// Takes cached blocks, and sets room aside for the other lengths, if there is enough.
    pub(super) fn promised(
        self: &Arc<Self>,
        state: &mut State,
        lens: &[Lens],
        returns: Option<&Arc<Return>>,
    ) -> Option<Promises> {
        let found: SmallVec<[_; 1]> = lens.iter().map(|lens| state.cached(lens.block)).collect();
        let missing = || lens.iter().zip(&found).filter(|(_, block)| block.is_none()).map(|(lens, _)| lens);
        let (needed, cap) = (missing().map(|lens| lens.block).sum::<usize>(), self.cap_of(state));
        if needed > 0 && needed > cap.saturating_sub(self.in_use(state)) {
            found.into_iter().flatten().for_each(|block| state.cache(block));
            return None;
        }
        let mut evicted = Vec::new();
        if needed > 0 {
            evicted = if self.driver.can_free() { state.evict(cap - needed) } else { Vec::new() };
            state.stats.reserved_bytes += needed;
        }
        let promises: Promises = lens
            .iter()
            .zip(found)
            .map(|(&lens, block)| Promise {
                pool: self.clone(),
                lens,
                block,
                evicted: std::mem::take(&mut evicted),
                returns: returns.cloned(),
            })
            .collect();
        if let Some(returns) = returns {
            state.waits.note_return(returns, promises.iter().map(Promise::room).sum());
        }
        Some(promises)
    }

    /// Returns the bytes that are not cached: of buffers, copies and promises, and of a block that
    /// is being made ahead.
    pub(super) fn in_use(&self, state: &State) -> usize {
        // The part of it that could be evicted.
        let is_evictable = self.driver.can_free();
        let cached =
            if is_evictable { state.cached.iter().map(|(len, list)| len * list.len()).sum() } else { 0 };
        state.stats.reserved_bytes - cached
    }

    /// Reports the first request that meets the cap. Called under no lock.
    pub(crate) fn meets_cap(&self, len_bytes: usize) {
        if self.is_reserve {
            return;
        }
        let mut state = self.state.lock();
        let (reserved, cap) = (state.stats.reserved_bytes, self.cap_of(&state));
        let is_first = !std::mem::replace(&mut state.met_cap, true);
        drop(state);
        if is_first {
            report::pinned_cap_reached(self.driver.id(), len_bytes, reserved, cap);
        }
    }

    pub(super) fn ask(&self, len: usize) -> Result<HostBlock, DriverError> {
        self.driver.alloc_host(len).and_then(not_null)
    }

    #[cold]
    pub(super) fn not_given(&self, len_bytes: usize, held: usize, why: &DriverError) -> Error {
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

    /// Returns the error of a request that does not fit beside `held` bytes, which no copy will
    /// return by itself. `held_up_by`: host code that copies with more bytes wait for.
    #[cold]
    pub(super) fn over_cap(&self, len_bytes: usize, held: usize, held_up_by: Option<HeldUpCopies>) -> Error {
        let stats = self.stats();
        let not_freed = match stats.not_freed_bytes {
            0 => String::new(),
            bytes => format!(", and {} that the driver did not free", ByteSize(bytes)),
        };
        let behind = held_up_by.map_or_else(String::new, |HeldUpCopies { bytes, code }| {
            format!(", {} of it by copies behind {code}", ByteSize(bytes))
        });
        let [asked, held, cap] = [len_bytes, held, stats.cap_bytes].map(ByteSize);
        let message = format!(
            "the {} of {} is at its cap: {asked} asked, {held} in use of {cap}{behind}{not_freed}; \
             drop pinned buffers or await the copies that hold them, or raise the cap",
            if self.is_reserve { "pinned memory for short copies" } else { "pinned memory" },
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
        bytes.owner = owner.map(Owner::Registered);
        Ok(Pinned::new(bytes, len))
    }

    /// Returns the current statistics.
    pub(crate) fn stats(&self) -> PinnedStats {
        PinnedStats { not_freed_bytes: self.not_freed(), ..self.state.lock().stats }
    }

    fn not_freed(&self) -> usize {
        // The other pool of the device counts it.
        if self.is_reserve { 0 } else { self.driver.not_freed().host_bytes }
    }

    /// Returns the limit on the reserved bytes.
    pub(super) fn cap_of(&self, state: &State) -> usize {
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
    pub(super) fn take_back(self: &Arc<Self>, block: HostBlock, block_len: usize, returns: Option<&Return>) {
        let mut state = self.state.lock();
        if let Some(returns) = returns {
            returns.bytes.store(0, Ordering::Relaxed);
        }
        state.stats.allocated_bytes -= block_len;
        state.cache((block, block_len));
        self.serve(state); // weaken: take-back-then-serve
    }

    fn bytes(self: &Arc<Self>, block: HostBlock, block_len: usize, len_bytes: usize) -> PinnedBytes {
        PinnedBytes {
            ptr: block.0,
            block_len,
            len_bytes,
            elements: None,
            owner: None,
            returns: None,
            pool: self.clone(),
        }
    }

    pub(super) fn free(&self, blocks: Vec<(HostBlock, usize)>) {
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

/// The copies that host code holds up.
pub(super) struct HeldUpCopies {
    pub(super) bytes: usize,
    pub(super) code: String,
}
