//! Page-locked host memory that is recycled.
//!
//! Getting such memory from the driver takes milliseconds, and takes RAM from the whole machine. So
//! blocks are kept when they are dropped, up to a cap. Lengths are powers of two from 4 KiB to 1
//! MiB. Above that they are multiples of 1 MiB, because a power of two would waste up to half.
//!
//! # Who owns a block when
//! The pool owns a block while it is cached, and a [`PinnedBytes`] while it is in use. A copy in
//! flight moves that, or a reference count of it, into what its timeline keeps. The copy releases
//! it only when the device has finished, so a block that returns here is not in use. Each block
//! holds its pool, so the pool ends after the last block.
//!
//! # Who asks the driver when
//! If the driver takes long ([`Driver::host_memory_is_slow`]), short blocks are made **ahead** of
//! need: one whenever the last cached block of its length was taken. So there is one more of each
//! length than were ever in use at once, and the lengths together are 2 MiB. `warpline-pin` makes
//! them, as long as the cap allows. It does not while a stream is held, because the driver might
//! wait for that stream's gate. A request that finds nothing cached gets a [`Promise`]: the cap was
//! checked and room is set aside, so a refusal comes at the call. The driver is asked when the
//! promise is kept, on a thread that may wait.
//!
//! Recycled memory contains whatever was there. It is initialized, because the driver zeroed it at
//! first, and it is plain data.
//!
//! # Which devices may copy it
//! While the host continues, a GPU can copy only page-locked memory, and memory of a CPU device is
//! not page-locked. CUDA's memory is allocated and registered as portable, so it is page-locked for
//! every context of the process. A CPU device reads and writes any memory. A copy gets its address
//! as a [`HostEnd`], which [`PinnedBytes::end_for`] makes, and [`HostEnd::for_cpu`].

mod in_flight;
mod parts;
mod pool;
mod promise;
mod waits;

use crate::background;
pub(crate) use in_flight::{Claim, EndOfRead, InFlight, Preparing, Purpose, Return};
use parking_lot::Mutex;
pub use parts::PinnedPart;
use pool::{ALIGN_BYTES, HostBlock};
pub(crate) use pool::{DEFAULT_CAP_BYTES, PinnedPool};
pub use pool::{PinnedStats, pinned_len};
pub(crate) use promise::{Promise, Promises};
use std::any::{Any, TypeId};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
pub(crate) use waits::{Asker, Grant as HostGrant, Want};
use warpline_driver::internal::{ErrorParts, Given};
use warpline_driver::{DeviceId, Driver, Element, Error};

/// Memory that its driver did not unregister. The device may still reach it, so it is never freed.
static STILL_REACHABLE: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// The address of buffers of length zero: no memory, but aligned.
const NOWHERE: NonNull<u8> = NonNull::new(std::ptr::without_provenance_mut(ALIGN_BYTES)).unwrap();

/// A block of page-locked memory with a length and, perhaps, an element type. It returns to its
/// pool when dropped.
pub(crate) struct PinnedBytes {
    ptr: NonNull<u8>,
    /// The length of the block; 0 if there is none.
    block_len: usize,
    /// The length that was asked for; the block may be longer.
    len_bytes: usize,
    /// The element type of the [`Pinned`] that it was, with that type's name and the length.
    elements: Option<(TypeId, &'static str, usize)>,
    /// The owner of the memory if it is not the pool's.
    owner: Option<Owner>,
    /// Its return, if it returns by itself.
    returns: Option<Arc<Return>>,
    pool: Arc<PinnedPool>,
}

// SAFETY: it owns its block, which is plain memory that any thread may use.
unsafe impl Send for PinnedBytes {}
// SAFETY: a shared reference gives access to nothing but its address and lengths.
unsafe impl Sync for PinnedBytes {}

/// The host's end of a copy: the start of memory that the copying device may read and write while
/// the host continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostEnd(u64);

impl HostEnd {
    /// Returns the host's end of a copy by a CPU device, which copies from any memory of the host.
    pub(crate) fn for_cpu<T: Element>(memory: &[T]) -> Self {
        HostEnd(memory.as_ptr().expose_provenance() as u64)
    }

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

    /// Returns the elements of memory from [`Pinned::into_bytes`].
    ///
    /// # Panics
    /// If their type is another.
    pub(crate) fn elements<T: Element>(&self) -> &[T] {
        let Some((element, name, len)) = self.elements else { panic!("memory without elements") };
        assert_eq!(element, TypeId::of::<T>(), "the elements are {name}");
        // SAFETY: as in `Pinned::deref`: the `Pinned` that this was had this type and length.
        unsafe { std::slice::from_raw_parts(self.ptr.cast().as_ptr(), len) }
    }

    /// Returns the device from whose pool it came, or that page-locked it.
    pub(crate) fn locked_by(&self) -> DeviceId {
        self.pool.driver.id()
    }
}

/// An owner of memory that is not a pool's. It is dropped with the [`PinnedBytes`].
pub(super) enum Owner {
    /// Its memory is registered with the driver.
    Registered(Box<dyn Any + Send>),
    Ordinary {
        _memory: Vec<u128>,
    },
}

/// Unregisters the page-locked memory of another owner, and drops the owner.
fn unregister(driver: &dyn Driver, block: HostBlock, owner: Box<dyn Any + Send>) {
    // SAFETY: `Driver::unregister_host` needs memory registered with this driver and in no copy.
    // `register` registered it, and a copy in flight keeps the `PinnedBytes` that this comes from.
    if unsafe { driver.unregister_host(block.0.as_ptr()) }.is_err() {
        STILL_REACHABLE.lock().push(owner);
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            std::mem::forget(self.owner.take());
            return;
        }
        if let Some(Owner::Registered(owner)) = self.owner.take() {
            let (driver, block) = (self.pool.driver.clone(), HostBlock(self.ptr));
            background::run_where_it_may_block(move || unregister(&*driver, block, owner));
        }
        if self.block_len > 0 {
            self.pool.take_back(HostBlock(self.ptr), self.block_len, self.returns.as_deref());
        }
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

/// A buffer of `len` elements in page-locked host memory, which a device copies to and from while
/// the host continues.
///
/// It derefs to a slice. A copy takes it by value and returns it when awaited. Dropping it recycles
/// its memory. The contents of a new buffer are unspecified: zeros, or what an earlier buffer left.
/// With [`zero_on_free`](crate::RuntimeBuilder::zero_on_free) they are zeros.
pub struct Pinned<T: Element> {
    bytes: PinnedBytes,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Pinned<T> {
    /// Creates a buffer of the first `len` elements of `bytes`.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn new(bytes: PinnedBytes, len: usize) -> Self {
        let fits = len.checked_mul(size_of::<T>()).is_some_and(|needed| needed <= bytes.len_bytes);
        assert!(fits, "{len} elements of {} do not fit in {} bytes", T::NAME, bytes.len_bytes);
        assert!(bytes.ptr.cast::<T>().is_aligned());
        Pinned { bytes, len, element: PhantomData }
    }

    /// Restores the type of memory from [`into_bytes`](Self::into_bytes). Returns the memory as the
    /// error if its type was another.
    pub(crate) fn from_bytes(bytes: PinnedBytes) -> Result<Self, PinnedBytes> {
        match bytes.elements {
            Some((element, _, len)) if element == TypeId::of::<T>() => Ok(Self::new(bytes, len)),
            _ => Err(bytes),
        }
    }

    /// Returns the memory, which remembers its element type and length.
    pub(crate) fn into_bytes(self) -> PinnedBytes {
        let mut bytes = self.bytes;
        bytes.elements = Some((TypeId::of::<T>(), T::NAME, self.len));
        bytes
    }

    pub(crate) fn bytes(&self) -> &PinnedBytes {
        &self.bytes
    }

    /// Takes the buffer that was passed to a refused copy out of the copy's error.
    ///
    /// Returns `None` if there was none, if it was taken before, or if it holds another element
    /// type.
    pub fn from_error(error: Error) -> Option<Self> {
        error.hand_back(|given| {
            let bytes = given.downcast::<PinnedBytes>()?;
            Pinned::from_bytes(*bytes).map_err(|bytes| Box::new(bytes) as Given)
        })
    }

    /// Returns `error` with this buffer inside, for [`from_error`](Self::from_error). Use this in
    /// your own ops that take a buffer and can be refused.
    pub fn into_error(self, error: Error) -> Error {
        error.with(Box::new(self.into_bytes()))
    }

    /// Shortens the buffer to its first `len` elements, for example for a shorter last batch. Does
    /// nothing if the buffer holds no more than that.
    ///
    /// The memory keeps its size, and its next owner gets all of it.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Lengthens a buffer that was [truncated](Self::truncate) to as many elements as fit into the
    /// memory that was asked for. The contents of those at the end are unspecified.
    pub fn restore_len(&mut self) {
        if let Some(len) = self.bytes.len_bytes.checked_div(size_of::<T>()) {
            self.len = len;
        }
    }

    /// Returns the number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first element. It stays the same until the buffer is dropped,
    /// even while a copy has it.
    #[inline]
    pub fn as_ptr(&self) -> *const T {
        self.bytes.ptr.as_ptr().cast_const().cast()
    }
}

impl<T: Element> Deref for Pinned<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `from_raw_parts` needs `len` initialised elements, aligned and unwritten during
        // the borrow. `new` checked length and alignment; the driver zeroed the block, and any
        // bytes are a `T`; the block belongs to `self`.
        unsafe { std::slice::from_raw_parts(self.bytes.ptr.cast().as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Pinned<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow of `self` is exclusive, and so is its ownership of the
        // block.
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
#[cfg(test)]
mod waits_oracle;
