//! Reserved addresses of a CPU device, and the memory that is mapped to them.
//!
//! Memory is anonymous pages, which the system provides when they are first touched. Unmapping
//! replaces them by addresses without access, so what is mapped later is zero again.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The addresses that a device has reserved.
#[derive(Debug, Default)]
pub(super) struct Addresses(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    /// The start and the length of each range.
    reserved: Vec<(usize, usize)>,
    mapped_bytes: usize,
}

/// Returns the length of the system's pages, where this module is supported.
pub(super) fn page_bytes() -> Option<usize> {
    // Addresses are plenty where they have 64 bits.
    if cfg!(miri) || usize::BITS < 64 {
        return None;
    }
    // SAFETY: sysconf takes any number, and only reads.
    let bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    // The zones behind blocks are multiples of 64 KiB, and so are lengths and addresses.
    (bytes.is_power_of_two() && bytes <= 64 << 10).then_some(bytes)
}

/// Maps addresses that cannot be accessed. With `at`, they replace what is there.
///
/// # Safety
/// Nothing else uses the memory at `at`.
unsafe fn map_without_access(at: Option<*mut u8>, len_bytes: usize) -> Option<*mut u8> {
    let place = at.map_or(std::ptr::null_mut(), <*mut u8>::cast);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a new private mapping replaces nothing, unless `at` is given. Then the caller
    // vouches for it.
    let mapped = unsafe { libc::mmap(place, len_bytes, libc::PROT_NONE, flags | fixed, -1, 0) };
    (mapped != libc::MAP_FAILED).then_some(mapped.cast())
}

impl Addresses {
    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `len_bytes` of addresses, or returns `None` if the system has too few.
    pub(super) fn reserve(&self, len_bytes: usize) -> Option<*mut u8> {
        // SAFETY: no place is given.
        let start = unsafe { map_without_access(None, len_bytes) }?;
        self.ranges().reserved.push((start.expose_provenance(), len_bytes));
        Some(start)
    }

    /// Makes reserved addresses memory. Returns false if the system has too little.
    ///
    /// # Safety
    /// The addresses came from [`reserve`](Self::reserve), are whole pages, and have no memory.
    pub(super) unsafe fn map(&self, start: *mut u8, len_bytes: usize) -> bool {
        // SAFETY: the range belongs to a mapping that `reserve` made, and nothing uses it.
        let done = unsafe { libc::mprotect(start.cast(), len_bytes, libc::PROT_READ | libc::PROT_WRITE) };
        if done == 0 {
            self.ranges().mapped_bytes += len_bytes;
        }
        done == 0
    }

    /// Frees the memory at reserved addresses. Returns false if the system refuses.
    ///
    /// # Safety
    /// [`map`](Self::map) mapped the addresses, and nothing uses their memory any more.
    pub(super) unsafe fn unmap(&self, start: *mut u8, len_bytes: usize) -> bool {
        // SAFETY: the caller vouches for it.
        let unmapped = unsafe { map_without_access(Some(start), len_bytes) }.is_some();
        if unmapped {
            self.ranges().mapped_bytes -= len_bytes;
        }
        unmapped
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let Ranges { reserved, mapped_bytes } = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Memory that is still mapped may be in use, so it stays until the process ends.
        if *mapped_bytes > 0 {
            return;
        }
        for (start, len_bytes) in reserved.drain(..) {
            // SAFETY: `reserve` mapped the range, and no address of it has memory.
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(start), len_bytes) };
        }
    }
}
