//! Access modes: how an op uses memory.

/// The way in which an op accesses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// Reads the operand.
    Read,
    /// Overwrites the whole operand without reading its earlier contents.
    Write,
    /// Reads and writes the operand, or writes parts of it.
    ReadWrite,
}

impl AccessMode {
    /// Returns whether the op changes the operand.
    #[inline]
    pub const fn writes(self) -> bool {
        !matches!(self, AccessMode::Read)
    }

    /// Returns whether the op depends on the operand's earlier contents.
    #[inline]
    pub const fn reads(self) -> bool {
        !matches!(self, AccessMode::Write)
    }
}
