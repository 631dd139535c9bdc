//! Device and host memory.
//!
//! * `allocation`, `buffer`: what users hold; `pinned`: page-locked host memory;
//! * `device_memory`: a device's allocator, over the pure `pool` with its `blocks` and fast lists (`recent`).

mod allocation;
mod blocks;
mod buffer;
mod device_memory;
#[cfg(test)]
mod oracle;
mod pinned;
mod pool;
mod recent;
mod stats;
#[cfg(test)]
mod test_driver;

pub(crate) use allocation::Allocation;
pub use buffer::{Buffer, HistorySizes};
pub(crate) use device_memory::DeviceMemory;
pub(crate) use pinned::{DEFAULT_CAP_BYTES, PinnedBytes, PinnedPool};
pub use pinned::{Pinned, PinnedStats};
pub(crate) use pool::{BlockId, Grant, PoolId, ReuseOrder};
pub use stats::{MemoryStats, Served};
