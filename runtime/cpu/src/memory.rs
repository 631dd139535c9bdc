//! The CPU device's memory: zeroed, aligned, and optionally limited.
// Decision: docs/decisions/0026-large-cpu-blocks-ask-for-huge-pages.md

#[cfg(unix)]
use crate::addresses::Addresses;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicUsize, Ordering};
use warpline_driver::{DriverError, FreeMemory};

/// A sort of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sort {
    align: usize,
    /// The minimum length of a block that asks for huge pages. The first touch of a small page
    /// takes longer than copying it. A pipeline touches several blocks for the first time where a
    /// sequential program touches one.
    large_bytes: usize,
}

/// Device memory. The runtime takes 4 MiB at a time for its small blocks and the unused addresses
/// between them. Huge pages would fill these with memory, and so would pages that contain the end
/// of one block and the start of the next.
pub(super) const DEVICE: Sort = Sort { align: PAGE_BYTES, large_bytes: (4 << 20) + 1 };
/// Host memory.
pub(super) const HOST: Sort = Sort { align: PAGE_BYTES, large_bytes: 4 << 20 };

const PAGE_BYTES: usize = 4096;

/// The memory of a device: its limit, and the bytes in use.
#[derive(Debug)]
pub(super) struct Memory {
    total_bytes: Option<usize>,
    used_bytes: AtomicUsize,
    #[cfg(unix)]
    addresses: Addresses,
}

impl Memory {
    /// Returns memory with a limit of `total_bytes`. `None` means as much as the system provides.
    pub(super) fn new(total_bytes: Option<usize>) -> Self {
        Memory {
            total_bytes,
            used_bytes: AtomicUsize::new(0),
            #[cfg(unix)]
            addresses: Addresses::default(),
        }
    }

    /// Returns the size of the device memory: the limit, or the memory of the machine. Returns 0 if
    /// that is not known.
    pub(super) fn total_bytes(&self) -> usize {
        self.total_bytes.unwrap_or_else(machine_bytes)
    }

    fn out_of_memory(&self, used: usize) -> DriverError {
        let free =
            |total_bytes: usize| FreeMemory { free_bytes: total_bytes.saturating_sub(used), total_bytes };
        DriverError::OutOfMemory(self.total_bytes.map(free))
    }

    /// Counts `len_bytes` against the limit.
    fn take(&self, len_bytes: usize) -> Result<(), DriverError> {
        let most = self.total_bytes.unwrap_or(usize::MAX);
        let room = |used: usize| used.checked_add(len_bytes).filter(|sum| *sum <= most);
        let taken = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        taken.map(|_| ()).map_err(|used| self.out_of_memory(used))
    }

    /// Counts `len_bytes` no more.
    fn untake(&self, len_bytes: usize) {
        self.used_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
    }

    /// Returns the error of a system that does not have the `len_bytes` that were taken.
    fn not_there(&self, len_bytes: usize) -> DriverError {
        self.untake(len_bytes);
        self.out_of_memory(self.used_bytes.load(Ordering::Relaxed))
    }

    /// Allocates memory that counts against the limit.
    pub(super) fn alloc(&self, len_bytes: usize) -> Result<*mut u8, DriverError> {
        self.take(len_bytes)?;
        zeroed(len_bytes, DEVICE).ok_or_else(|| self.not_there(len_bytes))
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `ptr` came from [`alloc`](Self::alloc) with the same length and is not used any more.
    pub(super) unsafe fn free(&self, ptr: *mut u8, len_bytes: usize) {
        // SAFETY: `release` needs a block that `zeroed` returned for the same arguments. The caller
        // vouches for it.
        unsafe { release(ptr, len_bytes, DEVICE) };
        self.used_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
    }
}

/// Memory that is mapped to reserved addresses.
#[cfg(unix)]
impl Memory {
    /// Reserves `len_bytes` of addresses, or returns `None` if the system has too few.
    pub(super) fn reserve(&self, len_bytes: usize) -> Option<*mut u8> {
        self.addresses.reserve(len_bytes)
    }

    /// Makes reserved addresses memory, which counts against the limit.
    ///
    /// # Safety
    /// The addresses came from [`reserve`](Self::reserve), are whole pages, and have no memory.
    pub(super) unsafe fn map(&self, start: *mut u8, len_bytes: usize) -> Result<(), DriverError> {
        self.take(len_bytes)?;
        // SAFETY: the caller vouches for it.
        if !unsafe { self.addresses.map(start, len_bytes) } {
            return Err(self.not_there(len_bytes));
        }
        if len_bytes >= DEVICE.large_bytes {
            ask_for_huge_pages(start, len_bytes);
        }
        Ok(())
    }

    /// Frees the memory at reserved addresses. Returns false if the system refuses.
    ///
    /// # Safety
    /// [`map`](Self::map) mapped the addresses, and nothing uses their memory any more.
    pub(super) unsafe fn unmap(&self, start: *mut u8, len_bytes: usize) -> bool {
        // SAFETY: the caller vouches for it.
        let unmapped = unsafe { self.addresses.unmap(start, len_bytes) };
        if unmapped {
            self.untake(len_bytes);
        }
        unmapped
    }
}

/// Returns the memory of the machine in bytes, or 0 where the system does not tell. The limit of a
/// container is not considered.
#[cfg(any(target_os = "linux", target_os = "macos"))]
fn machine_bytes() -> usize {
    // SAFETY: sysconf takes any number, and only reads.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: as above.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let [pages, page_bytes] = [pages, page_bytes].map(|size| usize::try_from(size).unwrap_or(0));
    pages.saturating_mul(page_bytes)
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn machine_bytes() -> usize {
    0
}

/// The size of a huge page, on x86-64 and on arm64 with small pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;

impl Sort {
    /// Returns the alignment of a block. The huge pages of a large block begin where the block
    /// begins.
    fn alignment(self, len_bytes: usize) -> usize {
        if len_bytes < self.large_bytes { self.align } else { self.align.max(HUGE_PAGE_BYTES) }
    }
}

/// Returns a layout with room for the start address, and for moving up to a multiple of `align`.
fn layout(len_bytes: usize, align: usize) -> Option<Layout> {
    Layout::from_size_align(len_bytes.checked_add(align)?, HEADER).ok()
}

const HEADER: usize = size_of::<usize>();

/// Asks for huge pages, as many as fit whole into the `len_bytes` from `block` on. A system that
/// has none continues with small ones.
#[cfg(all(target_os = "linux", not(miri)))]
fn ask_for_huge_pages(block: *mut u8, len_bytes: usize) {
    let whole = len_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    // SAFETY: MADV_HUGEPAGE needs only a range of pages, and changes no contents. `block` is
    // aligned to pages, and the range is within its allocation or mapping.
    unsafe { libc::madvise(block.cast(), whole, libc::MADV_HUGEPAGE) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn ask_for_huge_pages(_block: *mut u8, _len_bytes: usize) {}

/// Returns `len_bytes` zero bytes, or `None`.
///
/// The system is asked for a little more with a small alignment, because large blocks then come as
/// untouched pages. With a large alignment the standard library would write every byte. The word
/// before the block holds the true start of the allocation.
pub(super) fn zeroed(len_bytes: usize, sort: Sort) -> Option<*mut u8> {
    let align = sort.alignment(len_bytes);
    let layout = layout(len_bytes, align)?;
    // SAFETY: `alloc_zeroed` needs a layout that is not empty. `align` is added to the length.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return None;
    }
    // `block` is at least `HEADER` and at most `align` bytes after `start`, which is a multiple of
    // `HEADER`.
    let block = start.map_addr(|address| (address + HEADER).next_multiple_of(align));
    let before = block.cast::<*mut u8>().wrapping_sub(1);
    // SAFETY: the word before `block` lies in the allocation, is aligned, and has no other use.
    unsafe { before.write(start) };
    if len_bytes >= sort.large_bytes {
        ask_for_huge_pages(block, len_bytes);
    }
    Some(block)
}

/// Frees a block.
///
/// # Safety
/// `block` came from [`zeroed`] with the same arguments and is not used any more.
pub(super) unsafe fn release(block: *mut u8, len_bytes: usize, sort: Sort) {
    let layout =
        layout(len_bytes, sort.alignment(len_bytes)).expect("the block was allocated with this layout");
    let before = block.cast::<*mut u8>().wrapping_sub(1);
    // SAFETY: `zeroed` wrote the start there.
    let start = unsafe { before.read() };
    // SAFETY: `start` was allocated with this very layout. The caller no longer uses it.
    unsafe { dealloc(start, layout) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_zero() {
        for len in [0, 1, 511, 512, 513, 100_000, 5 << 20] {
            for sort in [DEVICE, HOST] {
                let block = zeroed(len, sort).unwrap();
                assert_eq!(block.addr() % sort.align, 0);
                // SAFETY: `len` bytes were allocated, and they are zeroed.
                let bytes = unsafe { std::slice::from_raw_parts_mut(block, len) };
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(7);
                // SAFETY: it came from `zeroed` with these arguments.
                unsafe { release(block, len, sort) };
            }
        }
    }

    /// Returns the system's flags for the pages that contain `address`, as in proc_pid_smaps(5).
    #[cfg(all(target_os = "linux", not(miri)))]
    fn page_flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut within = false;
        for line in maps.lines() {
            let word = line.split(' ').next().unwrap();
            if let Some((from, to)) = word.split_once('-') {
                let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
                within = (from..to).contains(&address);
            } else if within && word == "VmFlags:" {
                return line.to_owned();
            }
        }
        panic!("{address:x} is not mapped");
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn large_blocks_ask_for_huge_pages_where_the_system_has_them() {
        let has_them = std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists();
        const LARGE_BYTES: usize = HOST.large_bytes;
        for len in [LARGE_BYTES, LARGE_BYTES + 12_345, 3 * LARGE_BYTES] {
            let block = zeroed(len, HOST).unwrap();
            let last_whole = block.addr() + (len / HUGE_PAGE_BYTES - 1) * HUGE_PAGE_BYTES;
            for address in [block.addr(), last_whole] {
                let asked = page_flags(address).split(' ').any(|flag| flag == "hg");
                assert_eq!(asked, has_them, "{len} bytes");
            }
            assert_eq!(block.addr() % HUGE_PAGE_BYTES, 0);
            // SAFETY: it came from `zeroed` with these arguments.
            unsafe { release(block, len, HOST) };
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn the_memory_for_small_blocks_asks_for_no_huge_pages() {
        // Some blocks may be in memory for which an earlier block asked.
        let blocks: Vec<_> = (0..32).map(|_| zeroed(4 << 20, DEVICE).unwrap()).collect();
        let asked =
            |block: &&*mut u8| page_flags(block.addr() + (2 << 20)).split(' ').any(|flag| flag == "hg");
        assert!(blocks.iter().filter(asked).count() < blocks.len());
        for block in blocks {
            // SAFETY: it came from `zeroed` with these arguments.
            unsafe { release(block, 4 << 20, DEVICE) };
        }
    }

    #[test]
    fn the_limit_is_said_with_both_numbers() {
        let memory = Memory::new(Some(1000));
        let block = memory.alloc(600).unwrap();
        let memory_left = FreeMemory { free_bytes: 400, total_bytes: 1000 };
        assert_eq!(memory.alloc(401), Err(DriverError::OutOfMemory(Some(memory_left))));
        // SAFETY: it came from `alloc` with this length.
        unsafe { memory.free(block, 600) };
        let block = memory.alloc(1000).unwrap();
        // SAFETY: it came from `alloc` with this length.
        unsafe { memory.free(block, 1000) };
    }

    #[test]
    fn an_absurd_length_is_out_of_memory() {
        let memory = Memory::new(None);
        for len_bytes in [usize::MAX - 100, isize::MAX as usize - 5000] {
            assert_eq!(memory.alloc(len_bytes), Err(DriverError::OutOfMemory(None)));
        }
    }

    #[test]
    #[cfg(all(unix, not(miri)))]
    fn memory_that_is_mapped_again_is_zero_again() {
        let (memory, page) = (Memory::new(Some(1 << 20)), crate::addresses::page_bytes().unwrap());
        let start = memory.reserve(8 * page).unwrap();
        let at = start.wrapping_add(2 * page);
        for _ in 0..2 {
            // SAFETY: the pages are of the range, and have no memory.
            unsafe { memory.map(at, 3 * page) }.unwrap();
            assert!(matches!(memory.alloc((1 << 20) - 2 * page), Err(DriverError::OutOfMemory(Some(_)))));
            // SAFETY: the pages are mapped, zeroed, and of this test alone.
            let bytes = unsafe { std::slice::from_raw_parts_mut(at, 3 * page) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
            // SAFETY: nothing uses the pages any more.
            assert!(unsafe { memory.unmap(at, 3 * page) });
        }
        assert!(memory.reserve(usize::MAX / page * page).is_none());
    }
}
