//! Pins: the memory that a captured operation names, looked up again when the operation runs.
//!
//! An address is not enough, since other memory may have taken the place of memory that was freed.
//! Allocations and page-locked ranges have serial numbers that are never reused. Pageable memory
//! has none, so its end goes unnoticed.

use crate::memory;

/// An allocation or a range of page-locked memory that existed at the capture.
pub(crate) struct Pin {
    /// An address in it, in the form in which the operation holds it.
    address: usize,
    shown: u64,
    serial: u64,
}

impl Pin {
    /// Pins the memory at an address, if it is device or page-locked memory.
    pub(crate) fn on(address: usize) -> Option<Pin> {
        let (shown, serial) = memory::identity(address)?;
        Some(Pin { address, shown, serial })
    }

    /// Returns true if the same memory still exists.
    pub(crate) fn stands(&self) -> bool {
        memory::identity(self.address).is_some_and(|(_, serial)| serial == self.serial)
    }
}

impl std::fmt::Display for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a graph uses memory at {:#x} that has ended since it was captured", self.shown)
    }
}
