//! The memory that ops of a capture allocate, which belongs to the graph.
//!
//! Its blocks are handed out to nothing else until the graph, and all that was allocated in its
//! capture, are gone.
//!
//! The pool begins with cached segments that are not in use any more, if some have the length it
//! needs.
//!
//! During the capture, a dropped block serves what is captured next, if that comes after the
//! block's uses **in the capture**. Afterwards nothing is allocated from here any more: each launch
//! touches the blocks as captured, including the free ones.
//!
//! During the capture, a block may be used outside it where the order check does not refuse that.
//! Such a block is set aside when it is dropped. The captured work knows nothing of that use, which
//! has to finish before the block is handed out again.
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
    /// The stream on which memory of this pool counts as allocated while it is captured. Nothing is
    /// ever ordered after that stream, so only ops of the capture may touch the memory.
    pub(crate) nobody: StreamId,
    /// The histories of memory in the capture, until it ends.
    pub(super) histories: Mutex<Option<Histories>>,
    /// Blocks that are not in use, or no longer, with their uses outside the capture.
    set_aside: Mutex<Vec<(BlockId, Vec<Use>)>>,
}

impl GraphPool {
    pub(crate) fn new(device: Arc<DeviceShared>, nobody: StreamId) -> Arc<Self> {
        let id = device.memory.new_pool();
        let histories = Mutex::new(Some(Histories::default()));
        Arc::new(GraphPool { device, id, nobody, histories, set_aside: Mutex::default() })
    }

    /// Takes the histories, once. Nothing is captured from now on, and the uses in the capture are
    /// forgotten, because they have not run.
    pub(super) fn close(&self) -> Option<Histories> {
        let mut histories = self.histories.lock();
        if histories.is_some() {
            self.device.memory.forget_uses(self.id);
        }
        histories.take()
    }

    /// Keeps a block that only launches use, until the pool is dropped.
    pub(crate) fn keep(&self, block: BlockId) {
        self.set_aside.lock().push((block, Vec::new()));
    }

    /// Takes back the block of an allocation that is dropped.
    pub(crate) fn free(&self, allocation: &mut Allocation, block: BlockId) {
        let memory = &self.device.memory;
        let mut histories = self.histories.lock();
        let mut captured = histories.as_mut().and_then(|histories| histories.dropped(allocation));
        let outside = allocation.ledger.last_uses();
        let is_awaited = match &mut captured {
            Some(_) if outside.iter().any(|used| used.stream != self.nobody) => {
                self.set_aside.lock().push((block, outside.to_vec()));
                false
            }
            Some(ledger) => memory.free(block, ledger.last_uses()),
            None => memory.free(block, outside),
        };
        drop(histories);
        if is_awaited {
            memory.wake_waiters();
        }
    }
}

impl Drop for GraphPool {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        // Each launch keeps the graph until it has finished, and memory allocated in the capture is
        // freed with its uses.
        let memory = &self.device.memory;
        for (block, uses) in self.set_aside.get_mut().drain(..) {
            memory.free(block, &uses);
        }
        if memory.dissolve(self.id) {
            memory.wake_waiters();
        }
    }
}

impl fmt::Debug for GraphPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphPool({:?})", self.id)
    }
}
