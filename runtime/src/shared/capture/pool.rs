//! The memory that ops of a capture allocate: blocks of the graph's own, handed to nobody else until the graph and all that was
//! allocated in its capture are gone.
//!
//! It begins with segments that are cached and that nobody uses any more, where there are some of the length it needs.
//!
//! While the capture goes on, a block that is dropped serves what is captured next, if that comes after its uses **in the capture**.
//! Afterwards nothing is allocated from here any more: each launch touches the blocks as captured, also those that are free.
//!
//! A block that was used outside the capture while it went on, where the order check does not refuse that, is set aside when it is
//! dropped: what is captured knows nothing of such a use, and it has to be over before others get the block.
//!
//! # Lock order
//! `histories` → a ledger, the allocator's pool, `set_aside`. Nothing is dropped under them.

use super::histories::Histories;
use crate::memory::{BlockId, PoolId};
use crate::order::{StreamId, Use};
use crate::shared::{Allocation, DeviceShared};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

pub(crate) struct GraphPool {
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) id: PoolId,
    /// The stream on which memory of this pool counts as allocated while it is captured: one that nothing is ever ordered after, so
    /// that only ops of the capture may touch it.
    pub(crate) nobody: StreamId,
    /// While the capture goes on.
    pub(super) histories: Mutex<Option<Histories>>,
    /// Blocks that nobody has, or has any more, and who used them outside the capture.
    set_aside: Mutex<Vec<(BlockId, Vec<Use>)>>,
}

impl GraphPool {
    pub(crate) fn new(device: Arc<DeviceShared>, nobody: StreamId) -> Arc<Self> {
        let id = device.memory.new_pool();
        let histories = Mutex::new(Some(Histories::default()));
        Arc::new(GraphPool { device, id, nobody, histories, set_aside: Mutex::default() })
    }

    /// The histories, once: nothing is captured any more. What was used in the capture has not run.
    pub(super) fn close(&self) -> Option<Histories> {
        let mut histories = self.histories.lock();
        if histories.is_some() {
            self.device.memory.forget_uses(self.id);
        }
        histories.take()
    }

    /// Keeps a block that only launches use, until the pool goes.
    pub(crate) fn keep(&self, block: BlockId) {
        self.set_aside.lock().push((block, Vec::new()));
    }

    /// Takes back a block of an allocation that is dropped.
    pub(crate) fn free(&self, allocation: &mut Allocation, block: BlockId) {
        let memory = &self.device.memory;
        let mut histories = self.histories.lock();
        let mut captured = histories.as_mut().and_then(|histories| histories.dropped(allocation));
        let outside = allocation.ledger.last_uses();
        match &mut captured {
            Some(_) if outside.iter().any(|used| used.stream != self.nobody) => {
                self.set_aside.lock().push((block, outside.to_vec()));
            }
            Some(ledger) => memory.free(block, ledger.last_uses()),
            None => memory.free(block, outside),
        }
        drop(histories);
    }
}

impl Drop for GraphPool {
    fn drop(&mut self) {
        // Each launch keeps the graph until it is over, and what was made in the capture is freed with its uses.
        for (block, uses) in self.set_aside.get_mut().drain(..) {
            self.device.memory.free(block, &uses);
        }
        self.device.memory.dissolve(self.id);
    }
}

impl fmt::Debug for GraphPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphPool({:?})", self.id)
    }
}
