//! Memory that starts at a multiple of any power of two.

/// Zeroed memory of the host.
#[derive(Debug)]
pub(crate) struct Aligned {
    words: Box<[u128]>,
    /// The bytes in front of the first address that is aligned.
    skipped: u64,
}

impl Aligned {
    /// Allocates memory for `bytes` bytes at a multiple of `align`, a power of two.
    pub(crate) fn new(bytes: u64, align: u64) -> Self {
        let slack = align.saturating_sub(size_of::<u128>() as u64);
        let words: Box<[u128]> = vec![0; (bytes + slack).div_ceil(16) as usize].into();
        let start = words.as_ptr().expose_provenance() as u64;
        Aligned { words, skipped: start.next_multiple_of(align) - start }
    }

    /// Returns the address of the first byte.
    #[inline(always)]
    pub(crate) fn start(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64 + self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_at_a_multiple_and_holds_the_bytes() {
        for align in [1, 16, 64, 4096, 1 << 16] {
            for bytes in [0, 1, 16, 1000] {
                let memory = Aligned::new(bytes, align);
                assert_eq!(memory.start() % align, 0, "{bytes} {align}");
                assert!(memory.skipped + bytes <= size_of_val(&*memory.words) as u64, "{bytes} {align}");
            }
        }
    }
}
