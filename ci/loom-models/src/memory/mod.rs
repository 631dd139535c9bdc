//! Stands in for the memory of a device: pools, around the production files of the requests that
//! wait.

pub(crate) mod device_memory;
pub(crate) mod pinned;
pub(crate) mod pool;
#[path = "../../../../runtime/src/memory/queue.rs"]
pub(crate) mod queue;

pub(crate) use device_memory::{Answer, DeviceMemory, MemoryCall, wake_all};
pub(crate) use pinned::{Asker, PinnedBytes, PinnedPool, Preparing, Promise, Promises, Want};
pub(crate) use pool::{BudgetId, Grant, PoolId, ReuseOrder};
pub(crate) use queue::SharedOrder;
pub(crate) use snapshot::MemoryWaiters;

/// The host's end of a copy.
#[derive(Clone, Copy)]
pub(crate) struct HostEnd;

impl HostEnd {
    pub(crate) fn address(self) -> u64 {
        1
    }
}

pub(crate) mod snapshot {
    use crate::site::Site;
    use std::time::Duration;

    pub(crate) struct MemoryWaiters {
        pub(crate) requests: usize,
        pub(crate) bytes: usize,
        pub(crate) first_bytes: usize,
        pub(crate) first_site: Site,
        pub(crate) first_since: Duration,
    }
}
