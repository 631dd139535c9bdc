//! Memory for a kernel's operand. An access far behind its end faults, and a write close around it
//! is detected.

use bytemuck::NoUninit;
use std::ptr::NonNull;

/// The bytes around the elements: NaN in f32 and f64, and -1 in i64. A kernel that reads them
/// writes wrong results.
const EDGE: u8 = 0xff;

/// Elements at a chosen distance from a multiple of 16 bytes, fewer than 16 bytes before a page
/// that cannot be accessed.
pub(crate) struct Memory {
    pages: Pages,
    start: usize,
    len_bytes: usize,
    len: usize,
}

impl Memory {
    /// Copies `elements` to `offset` elements behind a multiple of 16 bytes.
    pub(crate) fn of<T: NoUninit>(elements: &[T], offset: usize) -> Self {
        Self::copied(bytemuck::cast_slice(elements), offset * size_of::<T>() % 16, elements.len())
    }

    /// Copies the bytes `elements` to `offset` bytes, below 16, behind a multiple of 16.
    fn copied(elements: &[u8], offset: usize, len: usize) -> Self {
        let len_bytes = elements.len();
        // There are edge bytes before the elements, too.
        let mut pages = Pages::new((len_bytes + 64).div_ceil(page_bytes()));
        let start = (pages.len - len_bytes - offset) / 16 * 16 + offset;
        let bytes = pages.bytes_mut();
        bytes.fill(EDGE);
        bytes[start..start + len_bytes].copy_from_slice(elements);
        Memory { pages, start, len_bytes, len }
    }

    /// Returns the bytes of the elements.
    pub(crate) fn elements(&self) -> &[u8] {
        &self.pages.bytes()[self.start..self.start + self.len_bytes]
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first element, to read and write all of them.
    pub(crate) fn address(&mut self) -> u64 {
        self.pages.bytes_mut()[self.start..].as_mut_ptr() as u64
    }

    /// Returns whether the bytes around the elements are unchanged.
    pub(crate) fn edge_is_whole(&self) -> bool {
        let (bytes, end) = (self.pages.bytes(), self.start + self.len_bytes);
        bytes[..self.start].iter().chain(&bytes[end..]).all(|&byte| byte == EDGE)
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        Self::copied(self.elements(), self.start % 16, self.len)
    }
}

fn page_bytes() -> usize {
    // SAFETY: `sysconf` takes and returns integers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Pages, and one behind them that cannot be accessed.
struct Pages {
    first: NonNull<u8>,
    /// In bytes, without the last page.
    len: usize,
}

impl Pages {
    fn new(count: usize) -> Self {
        let len = count * page_bytes();
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private mapping at an address that the system chooses touches no other
        // memory.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), len + page_bytes(), access, flags, -1, 0) };
        assert_ne!(first, libc::MAP_FAILED, "no memory");
        let first = NonNull::new(first.cast::<u8>()).expect("a mapping is not at address 0");
        // SAFETY: the last page is in the mapping.
        let last = unsafe { first.add(len) };
        // SAFETY: no reference into that page exists.
        let refused = unsafe { libc::mprotect(last.as_ptr().cast(), page_bytes(), libc::PROT_NONE) };
        assert_eq!(refused, 0, "the last page stays as it was");
        Pages { first, len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has `len` bytes, zeros at first, and belongs to `self` alone.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` bytes, zeros at first, and belongs to `self`, which is
        // borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and nothing refers to it any
        // more.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.len + page_bytes()) };
    }
}
