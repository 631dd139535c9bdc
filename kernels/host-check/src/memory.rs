//! Memory for a kernel's operand: what reads or writes far behind its end faults, and what writes close around it shows.

use bytemuck::NoUninit;
use std::ptr::NonNull;

/// What stands around the elements: NaN in f32 and f64, and -1 in i64, so that what reads it shows in what it writes.
const EDGE: u8 = 0xff;

/// Elements at a chosen distance from a multiple of 16 bytes, fewer than 16 bytes before a page that cannot be accessed.
pub(crate) struct Memory {
    pages: Pages,
    start: usize,
    len_bytes: usize,
    len: usize,
}

impl Memory {
    /// A copy of `elements`, `offset` elements behind a multiple of 16 bytes.
    pub(crate) fn of<T: NoUninit>(elements: &[T], offset: usize) -> Self {
        Self::copied(bytemuck::cast_slice(elements), offset * size_of::<T>() % 16, elements.len())
    }

    /// `offset` is in bytes, below 16.
    fn copied(elements: &[u8], offset: usize, len: usize) -> Self {
        let len_bytes = elements.len();
        // Something stands before the elements, too.
        let mut pages = Pages::new((len_bytes + 64).div_ceil(page_bytes()));
        let start = (pages.len - len_bytes - offset) / 16 * 16 + offset;
        let bytes = pages.bytes_mut();
        bytes.fill(EDGE);
        bytes[start..start + len_bytes].copy_from_slice(elements);
        Memory { pages, start, len_bytes, len }
    }

    /// The bytes of the elements.
    pub(crate) fn elements(&self) -> &[u8] {
        &self.pages.bytes()[self.start..self.start + self.len_bytes]
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first element, to read and write all of them.
    pub(crate) fn address(&mut self) -> u64 {
        self.pages.bytes_mut()[self.start..].as_mut_ptr() as u64
    }

    /// Whether what is around the elements is as it was.
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
    // SAFETY: sysconf only answers.
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
        // SAFETY: a new private mapping, at an address that the system chooses, touches no other memory.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), len + page_bytes(), access, flags, -1, 0) };
        assert_ne!(first, libc::MAP_FAILED, "no memory");
        let first = NonNull::new(first.cast::<u8>()).expect("a mapping is not at address 0");
        // SAFETY: the last page is in the mapping.
        let last = unsafe { first.add(len) };
        // SAFETY: nothing refers to that page.
        let refused = unsafe { libc::mprotect(last.as_ptr().cast(), page_bytes(), libc::PROT_NONE) };
        assert_eq!(refused, 0, "the last page stays as it was");
        Pages { first, len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has `len` bytes, zeros at first, and is `self`'s alone.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else refers to them.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and nothing refers to it any more.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.len + page_bytes()) };
    }
}
