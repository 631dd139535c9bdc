//! Operands that own their memory, or remember it without keeping it alive.

use crate::order::{Access, AccessMode, ByteRange, Ledger};
use std::sync::Arc;
use warpline_driver::DeviceId;

/// Device memory whose uses are tracked.
pub(crate) trait Tracked: Send + Sync {
    fn ledger(&self) -> &Ledger;

    /// Returns the device that the memory is on.
    fn device(&self) -> DeviceId;
}

/// An operand that owns its memory (an `Arc`), or does not keep it alive (a `Weak`).
#[derive(Clone)]
pub(crate) struct OwnedOperand<A> {
    pub(crate) allocation: A,
    pub(crate) range: ByteRange,
    pub(crate) access: AccessMode,
}

impl<A> OwnedOperand<A> {
    /// Returns true if an op with this operand writes any of its bytes.
    pub(crate) fn is_written(&self) -> bool {
        self.access.writes() && !self.range.is_empty()
    }
}

impl<T: Tracked + ?Sized> Access for OwnedOperand<Arc<T>> {
    fn ledger(&self) -> &Ledger {
        self.allocation.ledger()
    }

    fn range(&self) -> &ByteRange {
        &self.range
    }

    fn mode(&self) -> AccessMode {
        self.access
    }
}
