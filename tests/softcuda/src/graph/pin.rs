//! The memory that a captured operation names, and whether it still stands when the operation runs.
//!
//! An address is not enough: what was freed may have come back as something else at the same place. Allocations and
//! page-locked ranges carry numbers that are never used twice. Pageable memory has none, so its end cannot be noticed.

use crate::memory;

/// An allocation, or a range of page-locked memory, that was there at the capture.
pub(crate) struct Pin {
    /// An address in it, as twins and copies use it.
    address: usize,
    shown: u64,
    serial: u64,
}

impl Pin {
    /// Pins what an address lies in, if that is known memory.
    pub(crate) fn on(address: usize) -> Option<Pin> {
        let (shown, serial) = memory::identity(address)?;
        Some(Pin { address, shown, serial })
    }

    /// Whether the same memory is still there.
    pub(crate) fn stands(&self) -> bool {
        memory::identity(self.address).is_some_and(|(_, serial)| serial == self.serial)
    }
}

impl std::fmt::Display for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a graph uses memory at {:#x} that has ended since it was captured", self.shown)
    }
}
