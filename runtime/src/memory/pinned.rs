//! Page-locked host memory, recycled.
//!
//! Getting such memory from the driver takes milliseconds and takes RAM from everybody, so blocks are kept when they are
//! dropped, up to a cap. Lengths are powers of two from 4 KiB to 1 MiB, above that multiples of 1 MiB (a power of two
//! would waste up to half); a cached block may serve a request up to a fifth smaller.
//!
//! # Who owns a block when
//! The pool, while it is cached; [`PinnedBytes`], while somebody has it. A copy in flight moves it, or a reference count of
//! it, into what its timeline keeps, and lets go only when the device is done: a block that comes back here is used by
//! nobody. Each holds its pool, so the pool ends after the last block.
//!
//! # Who asks the driver when
//! Where that takes long ([`Driver::host_memory_is_slow`]), a short block is made **ahead** of need
//! whenever the last cached one of its length was taken: so there is one more of each length than
//! were ever in use at once, and the lengths together are 2 MiB. It is made by `warpline-pin`, as
//! long as the cap allows and not while a stream is held, whose gate the driver might wait for. A
//! request that finds nothing cached gets a [`Promise`]: the cap has been asked and room set aside,
//! so that a refusal comes at once, and the driver is asked when the promise is kept, on a thread
//! that may wait.
//!
//! Contents of recycled memory are whatever was there: initialised, as the driver zeroed it at first, and plain data.
//!
//! # Which devices may copy it
//! A GPU copies page-locked memory alone while the host continues, and memory of a CPU device is
//! not page-locked. CUDA's is allocated and registered as portable, so that it is page-locked for
//! every context of the process; a CPU device reads and writes any memory. The address for a copy
//! comes as a [`HostEnd`], which [`PinnedBytes::end_for`] alone makes.

use super::stats::ByteSize;
use crate::device::DeviceId;
use crate::driver::{Driver, DriverError};
use crate::element::Element;
use crate::error::{Error, ErrorKind};
use crate::{background, reentry};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// What a pool may hold unless told otherwise.
pub(crate) const DEFAULT_CAP_BYTES: usize = 4 << 30;

const LEAST_BYTES: usize = 4 << 10;
const COARSE_BYTES: usize = 1 << 20;
/// The longest block that is made ahead of need. Longer ones would take as much RAM again as the
/// program uses.
const AHEAD_BYTES: usize = COARSE_BYTES;
/// The driver's promise, and that of a buffer of no length.
const ALIGN_BYTES: usize = 64;

/// The length of the block that serves `len_bytes`; `None` if there cannot be one.
fn block_len(len_bytes: usize) -> Option<usize> {
    if len_bytes <= COARSE_BYTES {
        return Some(len_bytes.next_power_of_two().max(LEAST_BYTES));
    }
    len_bytes.checked_next_multiple_of(COARSE_BYTES).filter(|&len| isize::try_from(len).is_ok())
}

/// The page-locked memory of one device: in use, cached, and the peaks of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedStats {
    /// Bytes of buffers in use, each at the length of its block.
    pub allocated_bytes: usize,
    /// The most `allocated_bytes` has been.
    pub peak_allocated_bytes: usize,
    /// Bytes page-locked: in use and cached.
    pub reserved_bytes: usize,
    /// The most `reserved_bytes` has been.
    pub peak_reserved_bytes: usize,
    /// The most `reserved_bytes` may be.
    pub cap_bytes: usize,
}

/// A caching pool of page-locked host memory.
#[derive(Debug)]
pub(crate) struct PinnedPool {
    driver: Arc<dyn Driver>,
    state: Mutex<State>,
    /// Signalled when a block was made ahead, or could not be.
    grown: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By length, last in first out. A length that was cached once keeps its empty list.
    cached: BTreeMap<usize, Vec<HostBlock>>,
    /// The lengths of which a block is to be made ahead.
    wanted: BTreeSet<usize>,
    /// The length of the block that is being made ahead; 0: none is.
    growing: usize,
    /// `reserved_bytes` includes what is being asked from the driver just now.
    stats: PinnedStats,
}

/// The start of a block of host memory that nobody uses.
#[derive(Debug)]
struct HostBlock(NonNull<u8>);

// SAFETY: an address in host memory, valid on every thread, owned by whoever has the value.
unsafe impl Send for HostBlock {}

fn not_null(ptr: *mut u8) -> Result<HostBlock, DriverError> {
    let block = NonNull::new(ptr).map(HostBlock);
    block.ok_or_else(|| DriverError::Refused("null instead of host memory".into()))
}

impl State {
    fn cached(&mut self, len: usize) -> Option<(HostBlock, usize)> {
        // Powers of two exactly; of the coarse ones the tightest that is not wasteful.
        let most = if len > COARSE_BYTES { len + len / 4 } else { len };
        let (&found, list) = self.cached.range_mut(len..=most).find(|(_, list)| !list.is_empty())?;
        Some((list.pop()?, found))
    }

    /// Notes that a block of that length goes to a user. Returns whether another has to be made
    /// ahead.
    fn lend(&mut self, len: usize, ahead: bool) -> bool {
        self.stats.allocated_bytes += len;
        self.stats.peak_allocated_bytes = self.stats.peak_allocated_bytes.max(self.stats.allocated_bytes);
        ahead
            && len <= AHEAD_BYTES
            && self.cached.get(&len).is_none_or(Vec::is_empty)
            && self.wanted.insert(len)
    }

    fn reserve(&mut self, len: usize) {
        self.stats.reserved_bytes += len;
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

    /// A cached block, if one fits. Never calls the driver.
    pub(crate) fn try_take(self: &Arc<Self>, len_bytes: usize) -> Option<PinnedBytes> {
        if len_bytes == 0 {
            return Some(self.bytes(HostBlock(NonNull::without_provenance(NOWHERE)), 0, 0));
        }
        let len = block_len(len_bytes)?;
        let mut state = self.state.lock();
        let (block, len) = state.cached(len)?;
        Some(self.lend(state, block, len, len_bytes))
    }

    /// Hands a block out, and has another made where it was the last of its length.
    fn lend(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        block: HostBlock,
        len: usize,
        len_bytes: usize,
    ) -> PinnedBytes {
        let wants_another = state.lend(len, self.driver.host_memory_is_slow());
        drop(state);
        if wants_another {
            let pool = self.clone();
            background::pin(self.driver.id(), move || pool.grow(len));
        }
        self.bytes(block, len, len_bytes)
    }

    /// Makes a block ahead of need, unless one came back or the cap leaves no room.
    #[cold]
    fn grow(&self, len: usize) {
        let mut state = self.state.lock();
        state.wanted.remove(&len);
        let is_there = state.cached.get(&len).is_some_and(|list| !list.is_empty());
        if is_there || state.stats.reserved_bytes.saturating_add(len) > state.stats.cap_bytes {
            return;
        }
        state.reserve(len);
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

    /// A cached block or one from the driver, which may take milliseconds.
    ///
    /// # Errors
    /// `OutOfMemory` if the buffers in use leave too little of the cap, or the driver has no
    /// memory; `Reentrant` if a host function would have the driver asked.
    pub(crate) fn take(self: &Arc<Self>, len_bytes: usize) -> Result<PinnedBytes, Error> {
        if let Some(bytes) = self.try_take(len_bytes) {
            return Ok(bytes);
        }
        reentry::may_ask(&"pinned")?;
        self.promise(len_bytes)?.keep()
    }

    /// Sets room aside for a block that the driver has yet to give. Never calls the driver.
    ///
    /// # Errors
    /// `OutOfMemory` if the buffers in use leave too little of the cap.
    pub(crate) fn promise(self: &Arc<Self>, len_bytes: usize) -> Result<Promise, Error> {
        let Some(len) = block_len(len_bytes) else {
            return Err(self.over_cap(len_bytes, self.stats().allocated_bytes));
        };
        let mut state = self.state.lock();
        let cap = state.stats.cap_bytes;
        let cached: usize = state.cached.iter().map(|(len, list)| len * list.len()).sum();
        // A block that is made ahead will be cached, and gives way then.
        let held = state.stats.reserved_bytes - cached - state.growing;
        if len > cap.saturating_sub(held) {
            drop(state);
            return Err(self.over_cap(len_bytes, held));
        }
        let evicted = state.evict(cap - len);
        state.reserve(len);
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
        let message = format!(
            "{} gave no pinned memory: {} asked, {} in use: {why}; drop pinned buffers or use smaller ones",
            self.driver.id(),
            ByteSize(len_bytes),
            ByteSize(held)
        );
        Error::new(kind, message)
    }

    /// `held`: in use, or being made for a copy.
    #[cold]
    fn over_cap(&self, len_bytes: usize, held: usize) -> Error {
        let stats = self.stats();
        let message = format!(
            "the pinned memory of {} is at its cap: {} asked, {} in use of {}; drop pinned buffers or await the copies \
             that hold them, or raise the cap",
            self.driver.id(),
            ByteSize(len_bytes),
            ByteSize(held),
            ByteSize(stats.cap_bytes)
        );
        Error::new(ErrorKind::OutOfMemory, message)
    }

    /// Page-locks memory that somebody else allocated, and takes it unless it is refused. It is not counted among the pool's.
    ///
    /// # Errors
    /// `Driver` if the driver does not take it.
    pub(crate) fn register<T: Element>(self: &Arc<Self>, elements: &mut Vec<T>) -> Result<Pinned<T>, Error> {
        reentry::may_ask(&"pin")?;
        let (len, len_bytes) = (elements.len(), size_of_val(&**elements));
        let ptr = NonNull::from(elements.as_mut_slice()).cast::<u8>();
        let mut owner = None;
        if len_bytes > 0 {
            // SAFETY: `Driver::register_host` needs memory that stays until it is unregistered: the vector's, which is dropped
            // after that and not touched meanwhile.
            unsafe { self.driver.register_host(ptr.as_ptr(), len_bytes) }.map_err(|why| {
                let bytes = ByteSize(len_bytes);
                let message = format!(
                    "{} did not page-lock {bytes}: {why}; use a buffer from pinned() and copy into it",
                    self.driver.id()
                );
                Error::new(ErrorKind::Driver, message)
            })?;
            owner = Some(Box::new(std::mem::take(elements)) as Box<dyn Any + Send>);
        }
        Ok(Pinned::new(
            PinnedBytes { ptr, block_len: 0, len_bytes, elements: None, owner, pool: self.clone() },
            len,
        ))
    }

    /// The figures now.
    pub(crate) fn stats(&self) -> PinnedStats {
        self.state.lock().stats
    }

    /// Gives every cached block back to the driver; how many bytes.
    pub(crate) fn empty(&self) -> usize {
        let evicted = self.state.lock().evict(0);
        let bytes = evicted.iter().map(|(_, len)| len).sum();
        self.free(evicted);
        bytes
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
                // SAFETY: `Driver::free_host` needs an allocation of this driver with its length, and no work that touches it. It
                // was cached under its length, and a block is cached only after its owner, which a copy in flight keeps, was
                // dropped.
                unsafe { driver.free_host(ptr.as_ptr(), len) };
            }
        });
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        // Every `PinnedBytes` holds the pool: all blocks are cached.
        self.empty();
    }
}

/// Room in a pool for one block. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct Promise {
    pool: Arc<PinnedPool>,
    len: usize,
    len_bytes: usize,
    /// The blocks that have to go back to the driver first.
    evicted: Vec<(HostBlock, usize)>,
}

impl Promise {
    /// Gets the block: from the driver, which may take milliseconds, unless one came back
    /// meanwhile.
    ///
    /// # Errors
    /// `OutOfMemory` or `Driver` if the driver gives none.
    pub(crate) fn keep(mut self) -> Result<PinnedBytes, Error> {
        let (pool, len, len_bytes) = (self.pool.clone(), self.len, self.len_bytes);
        let mut state = pool.state.lock();
        while state.growing > 0 && state.stats.reserved_bytes > state.stats.cap_bytes {
            pool.grown.wait(&mut state);
        }
        if let Some((block, len)) = state.cached(len) {
            drop(state);
            // Before the block counts as used, so that the figures never count both.
            drop(self);
            return Ok(pool.lend(pool.state.lock(), block, len, len_bytes));
        }
        let cap = state.stats.cap_bytes;
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
                // The room is the block's from here on.
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
        let mut state = self.pool.state.lock();
        state.stats.reserved_bytes -= self.len;
        for (block, len) in self.evicted.drain(..) {
            state.reserve(len);
            state.cached.entry(len).or_default().push(block);
        }
    }
}

/// Memory that its driver did not unregister: the device may still reach it, so it is not given back.
static STILL_REACHABLE: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// Where buffers of no length are: nowhere, but aligned.
const NOWHERE: std::num::NonZero<usize> = std::num::NonZero::new(ALIGN_BYTES).unwrap();

/// A block of page-locked memory of some length and, perhaps, an element type; goes back to its pool when dropped.
pub(crate) struct PinnedBytes {
    ptr: NonNull<u8>,
    /// Of the block; 0: there is none.
    block_len: usize,
    len_bytes: usize,
    /// What it was a [`Pinned`] of, and its name and length.
    elements: Option<(TypeId, &'static str, usize)>,
    /// Whose memory it is, if it is none of the pool's: registered with the driver, and dropped with this.
    owner: Option<Box<dyn Any + Send>>,
    pool: Arc<PinnedPool>,
}

// SAFETY: it owns its block, which is plain memory that any thread may use.
unsafe impl Send for PinnedBytes {}
// SAFETY: through a shared reference it can only be asked for its address and lengths.
unsafe impl Sync for PinnedBytes {}

/// The host's end of a copy: the start of memory that the copying device may read and write while
/// the host continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostEnd(u64);

impl HostEnd {
    #[inline]
    pub(crate) fn address(self) -> u64 {
        self.0
    }
}

impl PinnedBytes {
    /// Returns the host's end of copies by `device`, unless the memory is not page-locked for it.
    #[inline]
    pub(crate) fn end_for(&self, device: DeviceId) -> Option<HostEnd> {
        let serves = match device {
            DeviceId::Cpu(_) => true,
            DeviceId::Cuda(_) => matches!(self.locked_by(), DeviceId::Cuda(_)),
        };
        serves.then_some(HostEnd(self.ptr.as_ptr() as u64))
    }

    /// The device from whose pool it came, or that page-locked it.
    pub(crate) fn locked_by(&self) -> DeviceId {
        self.pool.driver.id()
    }
}

#[cfg(test)]
impl PinnedBytes {
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// What was asked for; the block may be longer.
    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

/// Somebody else's memory that was page-locked.
struct Registered {
    driver: Arc<dyn Driver>,
    block: HostBlock,
    owner: Box<dyn Any + Send>,
}

impl Registered {
    fn end(self) {
        // SAFETY: `Driver::unregister_host` needs memory registered with this driver and in no copy. `register` did so, and a copy
        // in flight keeps the `PinnedBytes` that this comes from.
        if unsafe { self.driver.unregister_host(self.block.0.as_ptr()) }.is_err() {
            STILL_REACHABLE.lock().push(self.owner);
        }
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            let registered =
                Registered { driver: self.pool.driver.clone(), block: HostBlock(self.ptr), owner };
            background::run_where_it_may_block(move || registered.end());
        }
        if self.block_len == 0 {
            return;
        }
        let mut state = self.pool.state.lock();
        state.stats.allocated_bytes -= self.block_len;
        state.cached.entry(self.block_len).or_default().push(HostBlock(self.ptr));
    }
}

impl fmt::Debug for PinnedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = self.elements.map_or("none", |(_, name, _)| name);
        f.debug_struct("PinnedBytes")
            .field("len_bytes", &self.len_bytes)
            .field("element", &element)
            .finish_non_exhaustive()
    }
}

/// A buffer of `len` elements in page-locked host memory, which a device copies to and from while the host goes on.
///
/// It derefs to a slice. A copy takes it by value and gives it back when awaited; dropped, its memory is recycled. What a
/// new buffer contains is unspecified: zeros, or what an earlier one left. With
/// [`zero_on_free`](crate::RuntimeBuilder::zero_on_free) it is zeros.
pub struct Pinned<T: Element> {
    bytes: PinnedBytes,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Pinned<T> {
    /// The first `len` elements of `bytes`.
    ///
    /// # Panics
    /// If they are more than fit.
    pub(crate) fn new(bytes: PinnedBytes, len: usize) -> Self {
        let fits = len.checked_mul(size_of::<T>()).is_some_and(|needed| needed <= bytes.len_bytes);
        assert!(fits, "{len} elements of {} do not fit in {} bytes", T::NAME, bytes.len_bytes);
        assert!(bytes.ptr.cast::<T>().is_aligned());
        Pinned { bytes, len, element: PhantomData }
    }

    /// Gives the memory of an [`into_bytes`](Self::into_bytes) its type again, or back if it was another.
    pub(crate) fn from_bytes(bytes: PinnedBytes) -> Result<Self, PinnedBytes> {
        match bytes.elements {
            Some((element, _, len)) if element == TypeId::of::<T>() => Ok(Self::new(bytes, len)),
            _ => Err(bytes),
        }
    }

    /// The memory, which remembers its element type and length.
    pub(crate) fn into_bytes(self) -> PinnedBytes {
        let mut bytes = self.bytes;
        bytes.elements = Some((TypeId::of::<T>(), T::NAME, self.len));
        bytes
    }

    pub(crate) fn bytes(&self) -> &PinnedBytes {
        &self.bytes
    }

    /// Returns `error` with this buffer inside, where [`Error::into_buffer`] finds it: for ops of
    /// your own that refuse a buffer they were given.
    pub fn into_error(self, error: Error) -> Error {
        error.with_buffer(self.into_bytes())
    }

    /// Keeps the first `len` elements, for a last batch that is shorter; nothing if it holds no more than that.
    ///
    /// The memory stays what it was, and its next owner gets all of it.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// How many elements it holds.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins. Stays the same until the buffer is dropped, also while a copy has it.
    #[inline]
    pub fn as_ptr(&self) -> *const T {
        self.bytes.ptr.as_ptr().cast_const().cast()
    }
}

impl<T: Element> Deref for Pinned<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `from_raw_parts` needs `len` initialised elements, aligned and unwritten during the borrow. `new` checked
        // length and alignment; the driver zeroed the block, and any bytes are a `T`; the block belongs to `self`.
        unsafe { std::slice::from_raw_parts(self.bytes.ptr.cast().as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Pinned<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow of `self` is exclusive, and so is its ownership of the block.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.ptr.cast().as_ptr(), self.len) }
    }
}

impl<T: Element> AsRef<[T]> for Pinned<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Element> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned<{}>(len {})", T::NAME, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_driver::TestDriver;
    use super::*;

    fn pool(cap: usize) -> (Arc<TestDriver>, Arc<PinnedPool>) {
        let driver = TestDriver::new(usize::MAX);
        (driver.clone(), PinnedPool::new(driver, cap))
    }

    #[test]
    fn a_dropped_buffer_serves_the_next_one_of_its_size() {
        let (driver, pool) = pool(1 << 20);
        assert!(pool.try_take(5000).is_none());
        let first = pool.take(5000).unwrap();
        let address = first.as_ptr();
        assert_eq!(first.len_bytes(), 5000);
        drop(first);
        assert!(pool.try_take(9000).is_none());
        assert_eq!(pool.try_take(8192).unwrap().as_ptr(), address);
        let stats = pool.stats();
        assert_eq!((stats.allocated_bytes, stats.reserved_bytes), (0, 8192));
        assert_eq!((stats.peak_allocated_bytes, stats.peak_reserved_bytes), (8192, 8192));
        assert_eq!((pool.empty(), driver.host_bytes(), pool.stats().reserved_bytes), (8192, 0, 0));
    }

    #[test]
    fn long_blocks_are_not_doubled_and_serve_requests_a_little_shorter() {
        let (_, pool) = pool(64 << 20);
        drop(pool.take((9 << 20) + 1).unwrap());
        assert_eq!(pool.stats().reserved_bytes, 10 << 20);
        assert!(pool.try_take(8 << 20).is_some());
        assert!(pool.try_take(7 << 20).is_none());
    }

    #[test]
    fn the_cap_counts_live_buffers_and_says_both_numbers() {
        let (_, pool) = pool(16 << 10);
        let _held = pool.take(8 << 10).unwrap();
        let error = pool.take(9 << 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(
            error.to_string(),
            "the pinned memory of cpu:0 is at its cap: 9.0 KiB asked, 8.0 KiB in use of 16.0 KiB; drop pinned buffers or \
             await the copies that hold them, or raise the cap"
        );
        assert_eq!(pool.stats().reserved_bytes, 8 << 10);
        assert_eq!(pool.take(usize::MAX).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }

    #[test]
    fn cached_blocks_of_other_sizes_make_room_before_the_cap_is_an_error() {
        let (driver, pool) = pool(16 << 10);
        drop([pool.take(8 << 10).unwrap(), pool.take(4 << 10).unwrap()]);
        let whole = pool.take(16 << 10).unwrap();
        assert_eq!((driver.host_bytes(), whole.len_bytes()), (16 << 10, 16 << 10));
    }

    #[test]
    fn a_driver_without_host_memory_is_an_error_that_leaves_the_figures_alone() {
        let driver = TestDriver::new(4 << 10);
        let pool = PinnedPool::new(driver, 1 << 20);
        let _held = pool.take(4 << 10).unwrap();
        let error = pool.take(8 << 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().starts_with("cpu:0 gave no pinned memory: 8.0 KiB asked, 4.0 KiB in use"));
        assert_eq!((pool.stats().reserved_bytes, pool.stats().peak_reserved_bytes), (4 << 10, 4 << 10));
    }

    #[test]
    fn elements_survive_the_way_through_bytes_and_other_types_are_refused() {
        let (_, pool) = pool(1 << 20);
        let mut buffer = Pinned::<f32>::new(pool.take(12).unwrap(), 3);
        buffer.copy_from_slice(&[1.0, 2.0, 3.0]);
        let bytes = Pinned::<i32>::from_bytes(buffer.into_bytes()).unwrap_err();
        let buffer = Pinned::<f32>::from_bytes(bytes).unwrap();
        assert_eq!(*buffer, [1.0, 2.0, 3.0]);
        assert_eq!(format!("{buffer:?}"), "Pinned<f32>(len 3)");
        assert!(Pinned::<u8>::from_bytes(pool.take(1).unwrap()).is_err());
    }

    #[test]
    fn a_buffer_of_no_length_needs_no_memory() {
        let (driver, pool) = pool(0);
        let mut empty = Pinned::<f64>::new(pool.take(0).unwrap(), 0);
        assert!(empty.is_empty() && empty.iter_mut().next().is_none() && empty.as_ptr().is_aligned());
        assert_eq!((driver.host_bytes(), pool.stats().reserved_bytes), (0, 0));
    }

    #[test]
    #[should_panic(expected = "4 elements of f32 do not fit in 15 bytes")]
    fn more_elements_than_fit_are_refused() {
        let (_, pool) = pool(1 << 20);
        let _ = Pinned::<f32>::new(pool.take(15).unwrap(), 4);
    }

    #[test]
    fn the_pool_outlives_its_handle_until_the_last_buffer_is_back() {
        let (driver, pool) = pool(1 << 20);
        let bytes = pool.take(1).unwrap();
        drop(pool);
        assert_eq!(driver.host_bytes(), 4 << 10);
        std::thread::spawn(move || drop(bytes)).join().unwrap();
        assert_eq!(driver.host_bytes(), 0);
    }

    #[test]
    fn a_promise_sets_room_aside_until_it_is_dropped_or_kept() {
        let (driver, pool) = pool(16 << 10);
        drop(pool.take(8 << 10).unwrap());
        let promise = pool.promise(12 << 10).unwrap();
        assert_eq!((pool.stats().reserved_bytes, driver.host_bytes()), (16 << 10, 8 << 10));
        assert!(pool.try_take(8 << 10).is_none(), "what gives way is not lent");
        assert_eq!(pool.promise(1).unwrap_err().kind(), ErrorKind::OutOfMemory);
        drop(promise);
        assert_eq!(pool.stats().reserved_bytes, 8 << 10);
        assert!(pool.try_take(8 << 10).is_some(), "what gave way is back");
        let kept = pool.promise(12 << 10).unwrap().keep().unwrap();
        assert_eq!((kept.len_bytes(), driver.host_bytes()), (12 << 10, 16 << 10));
        assert_eq!((pool.stats().allocated_bytes, pool.stats().peak_reserved_bytes), (16 << 10, 16 << 10));
        drop(kept);
        assert_eq!((pool.empty(), driver.host_bytes()), (16 << 10, 0));
    }

    #[test]
    fn a_promise_is_kept_with_a_block_that_came_back_meanwhile() {
        let (driver, pool) = pool(1 << 20);
        let first = pool.take(8 << 10).unwrap();
        let address = first.as_ptr();
        let promise = pool.promise(8 << 10).unwrap();
        drop(first);
        assert_eq!(promise.keep().unwrap().as_ptr(), address);
        assert_eq!((pool.stats().reserved_bytes, driver.host_bytes()), (8 << 10, 8 << 10));
    }

    /// Waits until `warpline-pin` has done what it was given.
    fn grown() {
        crate::block_on::block_on(background::run_pinning(crate::DeviceId::Cpu(0), || ()));
    }

    #[test]
    fn short_blocks_are_made_ahead_of_need_within_the_cap() {
        let driver = TestDriver::slow();
        let pool = PinnedPool::new(driver.clone(), (6 << 20) + (16 << 10));
        let first = pool.take(4 << 10).unwrap();
        grown();
        assert_eq!(driver.host_bytes(), 8 << 10);
        let second = pool.try_take(4 << 10).expect("it was made ahead");
        grown();
        assert_eq!(driver.host_bytes(), 12 << 10);
        drop((first, second));
        for _ in 0..10 {
            drop(pool.take(4 << 10).unwrap());
        }
        grown();
        assert_eq!(driver.host_bytes(), 12 << 10, "one more than were ever in use at once");
        let _long = pool.take(2 << 20).unwrap();
        grown();
        assert_eq!(driver.host_bytes(), (2 << 20) + (12 << 10), "none of that length");
        let _rest = pool.take(4 << 20).unwrap();
        let _last = pool.take(16 << 10).unwrap();
        grown();
        assert_eq!(driver.host_bytes(), (6 << 20) + (16 << 10), "the cap leaves no room for another");
        assert!(pool.stats().peak_reserved_bytes <= pool.stats().cap_bytes);
    }
}
