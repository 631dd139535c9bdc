//! The memory that ops of a capture allocate: blocks of the graph's own, handed to nobody else until the graph and all that was
//! allocated in its capture are gone.
//!
//! While the capture goes on, a block that is dropped serves what is captured next, if that comes after its uses **in the capture**.
//! Afterwards nothing is allocated from here any more: each launch touches the blocks as captured, also those that are free.
//!
//! # Lock order
//! `histories` → a ledger. Nothing is dropped under it.

use super::histories::Histories;
use crate::device::DeviceShared;
use crate::memory::{Allocation, BlockId, PoolId};
use crate::order::StreamId;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

pub(crate) struct GraphPool {
    pub(super) device: Arc<DeviceShared>,
    pub(super) id: PoolId,
    /// The stream on which memory of this pool counts as allocated while it is captured: one that nothing is ever ordered after, so
    /// that only ops of the capture may touch it.
    pub(super) nobody: StreamId,
    /// While the capture goes on.
    pub(super) histories: Mutex<Option<Histories>>,
}

impl GraphPool {
    pub(super) fn new(device: Arc<DeviceShared>, nobody: StreamId) -> Arc<Self> {
        let id = device.memory.new_pool();
        let histories = Mutex::new(Some(Histories::default()));
        Arc::new(GraphPool { device, id, nobody, histories })
    }

    /// Takes back a block of an allocation that is dropped.
    pub(crate) fn free(&self, allocation: &mut Allocation, block: BlockId) {
        let captured = self.histories.lock().as_mut().and_then(|histories| histories.dropped(allocation));
        let memory = &self.device.memory;
        match captured {
            Some(mut ledger) => memory.free(block, ledger.last_uses()),
            None => memory.free(block, allocation.ledger.last_uses()),
        }
    }
}

impl Drop for GraphPool {
    fn drop(&mut self) {
        // Each launch keeps the graph until it is over, and what was made in the capture was freed with its uses.
        self.device.memory.dissolve(self.id);
    }
}

impl fmt::Debug for GraphPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphPool({:?})", self.id)
    }
}
