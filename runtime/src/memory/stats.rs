//! Statistics of a device's memory.
#![forbid(unsafe_code)]

/// Statistics of one device's memory: live and cached bytes, and how allocations were served.
///
/// The first four fields correspond to PyTorch's `memory_allocated`, `max_memory_allocated`,
/// `memory_reserved` and `max_memory_reserved`. In early versions of PyTorch the last two are
/// `memory_cached` and `max_memory_cached`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of live allocations, each at its rounded length.
    #[doc(alias = "memory_allocated")]
    pub allocated_bytes: usize,
    /// The highest value of `allocated_bytes` since the start or the last reset.
    #[doc(alias = "max_memory_allocated")]
    pub peak_allocated_bytes: usize,
    /// Bytes allocated from the driver, live and cached.
    #[doc(alias("memory_reserved", "memory_cached"))]
    pub reserved_bytes: usize,
    /// The highest value of `reserved_bytes` since the start or the last reset.
    #[doc(alias("max_memory_reserved", "max_memory_cached"))]
    pub peak_reserved_bytes: usize,
    /// The number of live allocations.
    pub live_blocks: usize,
    /// The number of free blocks, ready to be reused.
    pub cached_blocks: usize,
    /// The number of pieces of memory that the driver allocated. A block is a part of a piece or,
    /// where the device has virtual memory, of several that follow each other.
    pub segments: usize,
    /// Bytes of `reserved_bytes` that belong to captured graphs: memory allocated in the captures,
    /// and free memory in between.
    pub graph_bytes: usize,
    /// The number of budgets, from [`Device::budget`](crate::Device::budget).
    pub budgets: usize,
    /// Bytes that were granted to them.
    pub budget_bytes: usize,
    /// Bytes of `budget_bytes` that count against their budgets: the memory that they hold.
    pub budget_used_bytes: usize,
    /// Bytes that the driver refused to free. They stay allocated until the process ends, and are
    /// not part of `reserved_bytes`.
    pub not_freed_bytes: usize,
    /// The limit on `reserved_bytes` and `not_freed_bytes` together, if there is one, from
    /// [`memory_limit`](crate::RuntimeBuilder::memory_limit) or
    /// [`memory_fraction`](crate::RuntimeBuilder::memory_fraction).
    pub limit_bytes: Option<usize>,
    /// The number of allocations served in each way so far.
    pub served: Served,
    /// True if the device has failed. What its memory held is then lost, and the other figures are
    /// those of Warpline's own bookkeeping.
    pub is_lost: bool,
}

/// The numbers of allocations by the way in which memory was found. They are never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
