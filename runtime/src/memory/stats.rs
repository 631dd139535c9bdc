//! Statistics of a device's memory.
#![forbid(unsafe_code)]

/// Statistics of one device's memory: live and cached bytes, and how allocations were served.
///
/// `allocated_bytes` and `reserved_bytes` correspond to PyTorch's `memory_allocated` and
/// `memory_reserved`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of live allocations, each at its rounded length.
    pub allocated_bytes: usize,
    /// The highest value of `allocated_bytes` since the start or the last reset.
    pub peak_allocated_bytes: usize,
    /// Bytes allocated from the driver, live and cached.
    pub reserved_bytes: usize,
    /// The highest value of `reserved_bytes` since the start or the last reset.
    pub peak_reserved_bytes: usize,
    /// The number of live allocations.
    pub live_blocks: usize,
    /// The number of free blocks, ready to be reused.
    pub cached_blocks: usize,
    /// The number of segments: allocations that the driver made, which blocks are parts of.
    pub segments: usize,
    /// Bytes of `reserved_bytes` that belong to captured graphs: memory allocated in the captures,
    /// and free memory in between.
    pub graph_bytes: usize,
    /// The number of allocations served in each way so far.
    pub served: Served,
}

/// The numbers of allocations by the way in which memory was found. They are never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// Served by a block that was last used on the allocating stream itself, whose order protects
    /// it.
    pub own: u64,
    /// Served by a block whose last uses are on other streams, and already ordered before the
    /// allocating stream's next op.
    pub ordered: u64,
    /// Served by a block whose last uses have finished, or that has never been used.
    pub finished: u64,
    /// Served by joining free neighbours.
    pub merged: u64,
    /// Served by making the allocating stream wait, on the device, for the last use of a block.
    pub waited: u64,
    /// Served by new memory from the driver.
    pub grown: u64,
}
