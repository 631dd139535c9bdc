//! Access modes: how an op uses memory.

/// How an op uses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// Reads it.
    Read,
    /// Overwrites all of it without looking at what was there.
    Write,
    /// Reads and writes it, or writes parts of it.
    ReadWrite,
}

impl AccessMode {
    /// Returns whether it changes memory.
    #[inline]
    pub const fn writes(self) -> bool {
        !matches!(self, AccessMode::Read)
    }

    /// Returns whether it depends on what was there.
    #[inline]
    pub const fn reads(self) -> bool {
        !matches!(self, AccessMode::Write)
    }
}
