//! One piece of device memory, from its allocation to its return.
//!
//! Every `Buffer` and view of it shares one. Dropping the last returns the block, with the newest
//! ticket of each stream that used it. The device may still be working on the block; the allocator
//! makes sure that it is not handed out too early. Dropping never waits and never calls the driver.
//!
//! Memory may also be lent to the runtime by another owner. Then the owner is kept for as long as
//! the device may be working on the memory.

use crate::memory::{BlockId, Grant, PinnedBytes};
use crate::order::{Ledger, Site, Use};
use crate::shared::{DeviceShared, GraphPool, Tracked};
use std::sync::Arc;
use warpline_driver::timeline::Keep;
use warpline_driver::{DeviceId, DevicePtr};

/// Device memory with its history.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) ptr: DevicePtr,
    pub(crate) len_bytes: usize,
    pub(crate) ledger: Ledger,
    return_to: ReturnTo,
}

/// The destination of the memory in the end.
#[derive(Debug)]
enum ReturnTo {
    /// Back to the device's allocator.
    Pool(BlockId),
    /// To its owner, which is dropped once the device has finished with the memory.
    Owner(Keep),
    /// Back to the graph in whose capture it was allocated.
    Graph(Arc<GraphPool>, BlockId),
}

impl Allocation {
    /// Creates an allocation. `used`: the allocating stream and its last ticket.
    #[inline(always)]
    pub(crate) fn new(
        device: Arc<DeviceShared>,
        grant: &Grant,
        len_bytes: usize,
        used: Use,
        site: Site,
    ) -> Arc<Self> {
        debug_assert!(len_bytes <= grant.len_bytes);
        // Built in place: building it first and moving it, some 300 bytes, takes a tenth of an
        // allocation's time.
        let place = Arc::<Self>::new_uninit();
        let inside = Arc::as_ptr(&place).cast_mut();
        let (ptr, return_to) = (grant.ptr, ReturnTo::Pool(grant.block));
        // SAFETY: a reference needs memory that no other code touches: no other code has this place
        // yet. (`get_mut` checks that by an atomic exchange.)
        let new = unsafe { &mut *inside };
        let new = new.write(Allocation { device, ptr, len_bytes, ledger: Ledger::unknown(), return_to });
        new.ledger.begin(used, grant.wait, len_bytes as u64, site);
        // SAFETY: `assume_init` needs a value in its place: `write` put it there.
        unsafe { place.assume_init() }
    }

    /// Creates memory that was allocated in a capture. `used`: the use that this counts as outside
    /// the capture.
    pub(crate) fn of_graph(
        pool: Arc<GraphPool>,
        device: Arc<DeviceShared>,
        grant: &Grant,
        len_bytes: usize,
        used: Use,
        site: Site,
    ) -> Self {
        let ledger = Ledger::new(used, len_bytes as u64, site);
        Allocation {
            device,
            ptr: grant.ptr,
            len_bytes,
            ledger,
            return_to: ReturnTo::Graph(pool, grant.block),
        }
    }

    /// Creates memory that another owner lends. `used`: the stream it was lent to and its last
    /// ticket.
    pub(crate) fn lent(
        device: Arc<DeviceShared>,
        ptr: DevicePtr,
        len_bytes: usize,
        used: Use,
        site: Site,
        owner: Keep,
    ) -> Self {
        let ledger = Ledger::new(used, len_bytes as u64, site);
        Allocation { device, ptr, len_bytes, ledger, return_to: ReturnTo::Owner(owner) }
    }

    /// Returns true if the memory is that of a pinned buffer.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned().is_some()
    }

    /// Returns true if `device` may copy the memory while the host continues.
    pub(crate) fn is_page_locked_for(&self, device: DeviceId) -> bool {
        self.pinned().is_some_and(|bytes| bytes.end_for(device).is_some())
    }

    fn pinned(&self) -> Option<&PinnedBytes> {
        match &self.return_to {
            ReturnTo::Owner(owner) => owner.downcast_ref(),
            ReturnTo::Pool(_) | ReturnTo::Graph(..) => None,
        }
    }
}

impl Tracked for Allocation {
    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn device(&self) -> DeviceId {
        self.device.id
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        match &self.return_to {
            ReturnTo::Pool(block) => {
                let uses = self.ledger.last_uses();
                let is_awaited = self.device.memory.free(*block, uses);
                self.device.want_progress(uses);
                if is_awaited {
                    self.device.memory.wake_waiters();
                }
            }
            ReturnTo::Graph(pool, block) => {
                let (pool, block) = (pool.clone(), *block);
                pool.free(self, block);
            }
            ReturnTo::Owner(owner) => {
                for used in self.ledger.last_uses() {
                    if let Some(core) = self.device.runtime.stream(used.stream)
                        && !core.progress.timeline.reached(used.ticket)
                    {
                        core.progress.timeline.keep_until_last(used.ticket, owner.clone());
                        core.want_marker(used.ticket);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
impl Allocation {
    /// Creates an allocation over memory of the test's own, which passes for device memory.
    pub(crate) fn over_host(ptr: DevicePtr, len_bytes: usize) -> Arc<Self> {
        let runtime = crate::Runtime::builder().build().expect("a CPU runtime");
        let device = runtime.best_device().expect("cpu:0");
        let stream = device.default_stream().expect("a stream");
        let (used, site) = (Use { stream: stream.id(), ticket: 0 }, Site::here(&"test"));
        let shared = device.shared().clone();
        let grant =
            shared.memory.alloc(len_bytes, stream.id(), &**stream.core(), site, || None).expect("a block");
        let mut allocation = Allocation::new(shared, &grant, len_bytes, used, site);
        Arc::get_mut(&mut allocation).expect("the allocation has one owner").ptr = ptr;
        allocation
    }
}
