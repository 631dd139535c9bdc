//! Having memory fetched before it is looked at.
//!
//! Among thousands of streams, what an op touches of one is in nobody's cache. Looked at piece by piece each line of it is waited for in
//! turn, because an atomic operation lets nothing pass; asked for all at once they come together.

use std::sync::Arc;

/// What an `Arc` begins with: its two counts. A hint: if it were otherwise, another line would be fetched for nothing.
const COUNTS: usize = 2 * size_of::<usize>();
const LINE: usize = 64;

/// Where a shared value begins, its counts included, for who has its first lines fetched without looking at them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines(usize);

impl Lines {
    #[inline]
    pub(crate) fn of<T: ?Sized>(value: &Arc<T>) -> Self {
        Lines(Arc::as_ptr(value).cast::<u8>().addr() - COUNTS)
    }

    /// How many a shared value of this type has, not counting one that it may begin in the middle of.
    pub(crate) const fn in_one<T>() -> usize {
        (COUNTS + size_of::<T>()).div_ceil(LINE)
    }

    /// Has the first `N` fetched, wherever they are, and does not wait for it.
    #[inline]
    pub(crate) fn fetch<const N: usize>(self) {
        for line in self.first::<N>() {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: a hint, which touches nothing whatever the address is, and part of every x86-64.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(line));
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = line;
        }
    }

    /// The same of what this thread is about to write, and another core may have written last: takes the lines from it at once.
    #[inline]
    pub(crate) fn fetch_to_write<const N: usize>(self) {
        for line in self.first::<N>() {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above. The compiler has the instruction for processors that say they have it, which std cannot ask; those of
            // x86-64 that do not have it have done nothing at it since 2005.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = line;
        }
    }

    #[inline]
    fn first<const N: usize>(self) -> [usize; N] {
        std::array::from_fn(|line| self.0.wrapping_add(line * LINE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_begin_with_the_counts_and_fetching_them_changes_nothing() {
        let value = Arc::new([1_u8; 300]);
        let at = Arc::as_ptr(&value).addr();
        assert_eq!((Lines::in_one::<[u8; 300]>(), Lines::in_one::<[u8; 48]>()), (5, 1));
        assert_eq!(Lines::of(&value).first::<3>(), [at - 16, at + 48, at + 112]);
        Lines::of(&value).fetch::<5>();
        Lines::of(&value).fetch_to_write::<5>();
        assert!(value.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn nothing_happens_where_there_is_no_memory() {
        let lines = Lines(0);
        lines.fetch::<4>();
        lines.fetch_to_write::<4>();
    }
}
