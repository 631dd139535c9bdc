//! Device and host memory: their allocators, pools and statistics.
//!
//! * `pinned`: page-locked host memory, and its pool;
//! * `device_memory`: a device's allocator, over the pure `pool` with its `blocks` and fast lists
//!   (`recent`); the `queue` of requests that wait; the `zones` between blocks, its `limit`, and
//!   the `snapshot` that reports show.

mod blocks;
#[cfg(test)]
mod budgets_oracle;
mod device_memory;
mod limit;
#[cfg(test)]
mod oracle;
mod pinned;
mod pool;
mod queue;
mod recent;
mod snapshot;
mod stats;
#[cfg(test)]
mod test_driver;
#[cfg(test)]
mod waits_oracle;
mod zones;

pub(crate) use device_memory::{Answer, DeviceMemory, MemoryCall, wake_all};
pub(crate) use limit::MemoryLimit;
pub(crate) use pinned::{
    Asker, Claim, EndOfRead, HostEnd, HostGrant, InFlight, PinnedBytes, PinnedPool, Preparing, Promise,
    Promises, Purpose, Want,
};
pub use pinned::{Pinned, PinnedPart, PinnedStats, pinned_len};
pub(crate) use pool::{BlockId, BudgetId, Grant, PoolId, ReuseOrder};
pub(crate) use queue::SharedOrder;
pub use snapshot::{BlockState, MemoryBlock, MemorySegment, MemorySnapshot, MemoryWaiters};
pub use stats::{MemoryStats, Served};
pub(crate) use zones::Zones;

/// The limits on a device's memory, and the initial contents of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryOptions {
    /// The maximum device memory, in bytes.
    pub(crate) limit_bytes: Option<usize>,
    /// The maximum device memory, as a fraction of the device's total.
    pub(crate) fraction: Option<f64>,
    /// The maximum pinned memory, in bytes.
    pub(crate) pinned_cap_bytes: usize,
    /// True if every allocation is zeroed before it is handed out.
    pub(crate) zero_on_free: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions {
            limit_bytes: None,
            fraction: None,
            pinned_cap_bytes: pinned::DEFAULT_CAP_BYTES,
            zero_on_free: false,
        }
    }
}
