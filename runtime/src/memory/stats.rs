//! What the memory of a device comes to, in numbers, and numbers of bytes as text.
#![forbid(unsafe_code)]

/// The device memory of one device: live, cached, and how allocations were served.
///
/// `allocated` and `reserved` are what PyTorch's notes call `memory_allocated` and `memory_reserved`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of live allocations, each at its rounded length.
    pub allocated_bytes: usize,
    /// The most `allocated_bytes` has been since the start or the last reset.
    pub peak_allocated_bytes: usize,
    /// Bytes held from the driver: live ones and cached ones.
    pub reserved_bytes: usize,
    /// The most `reserved_bytes` has been since the start or the last reset.
    pub peak_reserved_bytes: usize,
    /// Live allocations.
    pub live_blocks: usize,
    /// Free pieces of segments, ready to be reused.
    pub cached_blocks: usize,
    /// Pieces of memory held from the driver.
    pub segments: usize,
    /// Bytes of `reserved_bytes` that belong to captured graphs: what their ops allocated, and what is free between.
    pub graph_bytes: usize,
    /// How allocations were served so far.
    pub served: Served,
}

/// How many allocations each way of finding memory has served. Never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// By a block last used on the allocating stream itself: the order of the stream protects it.
    pub own: u64,
    /// By a block whose last uses are on other streams, which the allocating stream is already after.
    pub ordered: u64,
    /// By a block whose last uses are finished, or that never had one.
    pub finished: u64,
    /// By joining free neighbours.
    pub merged: u64,
    /// By letting the allocating stream wait, on the device, for the last use of a block.
    pub waited: u64,
    /// By new memory from the driver.
    pub grown: u64,
}
