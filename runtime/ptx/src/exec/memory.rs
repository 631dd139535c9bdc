//! The memory that a launch may touch, and loads and stores of single elements.
//!
//! # Addresses
//! A generic address is an address of the host, whatever it points to: operands of the launch,
//! variables of the module, shared memory of a block, local memory of a thread. Addresses in the
//! spaces `.shared` and `.local` are offsets in the memory of the block or thread. Only an
//! [`AddressSpace`] may give memory an address other than that of the host.
//!
//! # Races
//! Threads of a grid run on several threads of the host. A kernel whose accesses race must not be
//! undefined behaviour in Rust, so each element is loaded and stored by a relaxed atomic access of
//! its own size, through a pointer that Rust knows nothing else about. What a race reads is then
//! one of the values that were written. The PTX memory model leaves open what happens if accesses
//! of different sizes race (PTX ISA 8.2.1, "mixed-size data-race"), and so does Rust. Here they are
//! single instructions of the processor inside functions that are called through pointers, and no
//! compiler sees two of them together: each byte is one that was written there. An access of more
//! than 64 bits is one of each of its elements. `runs` moves such elements by vectors.

use super::fault::FaultKind;
use super::registers::{LANES, Mask};
use super::workspace::Workspace;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Memory that a launch may touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The name, for reports.
    pub name: String,
    /// The address of its first byte.
    pub start: u64,
    /// The number of its bytes.
    pub len_bytes: u64,
    /// True if the launch may write it.
    pub is_writable: bool,
    /// True if its bytes are undefined when the launch starts, and the kernel promises to write all
    /// of them. The check of [`init`](crate::Checks::init) then reports reads before a write, and
    /// bytes that no thread has written at the end.
    pub is_undefined: bool,
    /// The size of one of its elements in bytes, for reports. If it is 0, it is not known, and
    /// reports take the size of an access.
    pub element_bytes: u32,
}

/// Memory that its owner looks up by address, such as all memory of a device.
///
/// Kernels may read and write all of it.
pub trait AddressSpace: fmt::Debug + Send + Sync {
    /// Returns the address of the host at which `len_bytes` bytes are that kernels know as
    /// `address`. Returns `None` unless all of these bytes are in one piece of memory.
    fn resolve(&self, address: u64, len_bytes: u64) -> Option<u64>;

    /// Returns the memory that a kernel most likely missed with an access of `bytes` bytes at
    /// `address`, for the report of the fault.
    fn nearest(&self, address: u64, bytes: u64) -> Option<Region>;

    /// Allocates memory for a `malloc` of a kernel, and returns its address as kernels know it. A
    /// space without a heap returns `None`, and so does one whose heap is full.
    fn allocate(&self, len_bytes: u64) -> Option<u64> {
        let _ = len_bytes;
        None
    }

    /// Frees memory that [`allocate`](Self::allocate) has returned. Returns false if the address is
    /// none of these.
    fn free(&self, address: u64) -> bool {
        let _ = address;
        false
    }
}

impl Region {
    /// Returns memory that the launch may only read.
    pub fn new(name: impl Into<String>, start: u64, len_bytes: u64, element_bytes: u32) -> Self {
        let name = name.into();
        Region { name, start, len_bytes, is_writable: false, is_undefined: false, element_bytes }
    }

    #[inline(always)]
    fn has(&self, from: u64, to: u64) -> bool {
        self.start <= from && to - self.start <= self.len_bytes
    }

    /// Returns the bytes between an address and this memory.
    pub(crate) fn apart(&self, address: u64) -> u64 {
        let end = self.start + self.len_bytes;
        if address < self.start { self.start - address } else { address.saturating_sub(end) }
    }
}

/// A kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store or an atomic operation.
    Write,
}

/// All memory that a launch may touch, apart from shared and local memory.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    regions: Vec<Region>,
    /// Memory that no list has.
    space: Option<Arc<dyn AddressSpace>>,
    /// The workspace of a cooperative launch.
    workspace: Option<Workspace>,
    /// True if a launch may touch any memory of the process.
    is_unchecked: bool,
}

impl Regions {
    pub(crate) fn new(regions: Vec<Region>) -> Self {
        Regions { regions, ..Regions::default() }
    }

    /// Returns these regions and all memory of an address space.
    pub(crate) fn of_space(regions: Vec<Region>, space: Arc<dyn AddressSpace>) -> Self {
        Regions { regions, space: Some(space), ..Regions::default() }
    }

    /// Returns these regions and all other memory of the process.
    pub(crate) fn unchecked(regions: Vec<Region>) -> Self {
        Regions { regions, is_unchecked: true, ..Regions::default() }
    }

    /// Adds the workspace of a cooperative launch. It has no name in reports, since the source of
    /// a kernel has none for it.
    pub(crate) fn add_workspace(&mut self) {
        self.workspace = Some(Workspace::new());
    }

    /// Returns the workspace of a cooperative launch.
    pub(crate) fn workspace(&self) -> Option<&Workspace> {
        self.workspace.as_ref()
    }

    pub(crate) fn list(&self) -> &[Region] {
        &self.regions
    }

    /// Returns whether a launch may touch memory that is not in the list.
    pub(crate) fn is_open(&self) -> bool {
        self.is_unchecked || self.space.is_some()
    }

    /// Returns the address space, if the launch has one.
    pub(crate) fn space(&self) -> Option<&dyn AddressSpace> {
        self.space.as_deref()
    }

    /// Returns the distance from `from..to` to its bytes in the memory of the host, in wrapping
    /// arithmetic. Returns `None` if `access` may not touch all of them.
    #[inline(always)]
    pub(crate) fn distance(&self, from: u64, to: u64, access: Access) -> Option<u64> {
        let is_allowed = self.is_unchecked
            || self
                .regions
                .iter()
                .any(|region| region.has(from, to) && (access == Access::Read || region.is_writable));
        if is_allowed { Some(0) } else { self.distance_elsewhere(from, to) }
    }

    #[inline(never)]
    fn distance_elsewhere(&self, from: u64, to: u64) -> Option<u64> {
        if self.workspace.as_ref().is_some_and(|workspace| workspace.has(from, to)) {
            return Some(0);
        }
        let place = self.space.as_ref()?.resolve(from, to.saturating_sub(from))?;
        Some(place.wrapping_sub(from))
    }

    /// Describes why an access is not allowed.
    #[cold]
    pub(crate) fn refusal(&self, address: u64, bytes: u64, access: Access) -> FaultKind {
        let to = address.saturating_add(bytes);
        if let Some(region) = self.regions.iter().find(|region| region.has(address, to)) {
            return FaultKind::ReadOnly { region: region.clone(), address, bytes };
        }
        // An index of 32 bits that falls below 0 wraps.
        let distance = |region: &&Region| {
            let unwrapped = address.wrapping_sub(u64::from(region.element_bytes) << 32);
            region.apart(address).min(region.apart(unwrapped))
        };
        let in_space = self.space.as_ref().and_then(|space| space.nearest(address, bytes));
        let nearest = self.regions.iter().chain(&in_space).min_by_key(distance).cloned();
        FaultKind::OutOfBounds { address, bytes, access, nearest, calls_malloc: false }
    }
}

/// The first address and the end of the last access of the lanes of a mask.
#[inline(always)]
pub(crate) fn extent(addresses: &[u64; LANES], mask: Mask, bytes: u64) -> (u64, u64) {
    let (mut lowest, mut highest) = (u64::MAX, 0);
    for (lane, &address) in addresses.iter().enumerate() {
        let is_active = mask >> lane & 1 == 1;
        lowest = lowest.min(if is_active { address } else { u64::MAX });
        highest = highest.max(if is_active { address } else { 0 });
    }
    (lowest, highest.saturating_add(bytes))
}

/// Returns the first lane whose address is not a multiple of `bytes`, a power of two.
#[inline(always)]
pub(crate) fn misaligned(addresses: &[u64; LANES], mask: Mask, bytes: u64) -> Option<usize> {
    let mut low = 0;
    for (lane, &address) in addresses.iter().enumerate() {
        low |= if mask >> lane & 1 == 1 { address } else { 0 };
    }
    if low & (bytes - 1) == 0 {
        return None;
    }
    (0..LANES).find(|lane| mask >> lane & 1 == 1 && addresses[*lane] & (bytes - 1) != 0)
}

/// A value that one access moves.
pub(crate) trait Element: Copy {
    const BYTES: u64;

    /// Loads the element at an address.
    ///
    /// # Safety
    /// The address is a multiple of the size and within memory that is valid for reads, and that
    /// Rust code accesses by atomic operations alone meanwhile.
    unsafe fn load(address: u64) -> Self;

    /// Stores the element at an address.
    ///
    /// # Safety
    /// The conditions are those of [`load`](Self::load), for writes.
    unsafe fn store(self, address: u64);

    /// Returns the bits, extended to 64: with the sign if the type has one.
    fn extended(self) -> u64;

    /// Returns the lowest bits.
    fn of_u64(bits: u64) -> Self;
}

macro_rules! elements {
    ($($element:ident, $bits:ident, $atomic:ident;)*) => {$(
        impl Element for $element {
            const BYTES: u64 = size_of::<$element>() as u64;

            #[inline(always)]
            unsafe fn load(address: u64) -> Self {
                let place = std::ptr::with_exposed_provenance_mut::<$bits>(address as usize);
                // SAFETY: from_ptr needs an aligned pointer to valid memory that is accessed by
                // atomic operations alone, which the caller promises.
                unsafe { $atomic::from_ptr(place) }.load(Relaxed) as $element
            }

            #[inline(always)]
            unsafe fn store(self, address: u64) {
                let place = std::ptr::with_exposed_provenance_mut::<$bits>(address as usize);
                // SAFETY: as in `load`, for writes.
                unsafe { $atomic::from_ptr(place) }.store(self as $bits, Relaxed);
            }

            #[inline(always)]
            fn extended(self) -> u64 {
                self as i64 as u64
            }

            #[inline(always)]
            fn of_u64(bits: u64) -> Self {
                bits as $element
            }
        }
    )*};
}

elements! {
    u8, u8, AtomicU8;
    i8, u8, AtomicU8;
    u16, u16, AtomicU16;
    i16, u16, AtomicU16;
    u32, u32, AtomicU32;
    i32, u32, AtomicU32;
    u64, u64, AtomicU64;
}
