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

mod pool;

use crate::background;
use parking_lot::Mutex;
pub use pool::PinnedStats;
use pool::{ALIGN_BYTES, HostBlock};
pub(crate) use pool::{DEFAULT_CAP_BYTES, PinnedPool, Promise};
use std::any::{Any, TypeId};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use warpline_driver::internal::{ErrorParts, Given};
use warpline_driver::{DeviceId, Driver, Element, Error};

/// Memory that its driver did not unregister: the device may still reach it, so it is not given back.
static STILL_REACHABLE: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// Where buffers of no length are: nowhere, but aligned.
const NOWHERE: NonNull<u8> = NonNull::new(std::ptr::without_provenance_mut(ALIGN_BYTES)).unwrap();

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
        // A CPU device copies from any memory of the host.
        let serves = matches!(device, DeviceId::Cpu(_)) || self.locked_by().backend() == device.backend();
        serves.then_some(HostEnd(self.ptr.as_ptr() as u64))
    }

    /// The device from whose pool it came, or that page-locked it.
    pub(crate) fn locked_by(&self) -> DeviceId {
        self.pool.driver().id()
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
                Registered { driver: self.pool.driver().clone(), block: HostBlock(self.ptr), owner };
            background::run_where_it_may_block(move || registered.end());
        }
        if self.block_len == 0 {
            return;
        }
        self.pool.take_back(HostBlock(self.ptr), self.block_len);
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

    /// The buffer that a refused copy was given, out of its error, once: `None` if there was none,
    /// if it was taken before, or if it holds another element type.
    pub fn from_error(error: Error) -> Option<Self> {
        error.hand_back(|given| {
            let bytes = given.downcast::<PinnedBytes>()?;
            Pinned::from_bytes(*bytes).map_err(|bytes| Box::new(bytes) as Given)
        })
    }

    /// Returns `error` with this buffer inside, where [`from_error`](Self::from_error) finds it: for
    /// ops of your own that refuse a buffer they were given.
    pub fn into_error(self, error: Error) -> Error {
        error.with(Box::new(self.into_bytes()))
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
mod tests;
