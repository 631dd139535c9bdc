//! A block of a pool that was granted, or room for one that the driver has yet to allocate.

use super::pool::{HostBlock, Lens, PinnedPool};
use super::{PinnedBytes, Return};
use crate::sync::{Arc, Ordering};
use smallvec::SmallVec;
use warpline_driver::{DriverError, Error};

/// Promises that were granted together.
pub(crate) type Promises = SmallVec<[Promise; 1]>;

/// A block of a pool, or room for one. Dropping it returns it.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(super) pool: Arc<PinnedPool>,
    /// The lengths of the block that there is room for, unless there is a block. The block's is 0
    /// once the room was used.
    pub(super) lens: Lens,
    pub(super) block: Option<(HostBlock, usize)>,
    /// The blocks that have to return to the driver first.
    pub(super) evicted: Vec<(HostBlock, usize)>,
    /// Its return, if it returns by itself.
    pub(super) returns: Option<Arc<Return>>,
}

impl Promise {
    /// Returns the bytes that it takes of the cap.
    pub(super) fn room(&self) -> usize {
        self.block.as_ref().map_or(self.lens.block, |(_, len)| *len)
    }

    /// Returns the length that was asked for.
    pub(crate) fn len_bytes(&self) -> usize {
        self.lens.bytes
    }

    /// Notes what returns the memory.
    pub(crate) fn will_return(&mut self, returns: Arc<Return>) {
        self.pool.note_return(&returns, self.room());
        self.returns = Some(returns);
    }

    /// Returns the block. It comes from the driver, which may take milliseconds, unless there is a
    /// cached one.
    ///
    /// # Errors
    /// `OutOfMemory` or `Driver` if the driver allocates none.
    pub(crate) fn keep(mut self) -> Result<PinnedBytes, Error> {
        let (pool, Lens { block: len, bytes: len_bytes }) = (self.pool.clone(), self.lens);
        let mut state = pool.state.lock();
        if let Some((block, len)) = self.block.take() {
            self.lens.block = 0;
            return Ok(pool.lend(state, block, len, len_bytes, self.returns.take()));
        }
        if let Some((block, len)) = state.cached(len) {
            // The room is returned under the lock that lends the block, so that nothing counts
            // both.
            state.stats.reserved_bytes -= std::mem::take(&mut self.lens.block);
            return Ok(pool.lend(state, block, len, len_bytes, self.returns.take()));
        }
        let cap = pool.cap_of(&state);
        self.evicted.extend(state.evict(cap));
        drop(state);
        pool.free(std::mem::take(&mut self.evicted));
        let mut answer = pool.ask(len);
        if matches!(answer, Err(DriverError::OutOfMemory(_))) {
            let evicted = pool.state.lock().evict(0);
            pool.free(evicted);
            answer = pool.ask(len);
        }
        match answer {
            Ok(block) => {
                // The room belongs to the block from here on.
                self.lens.block = 0;
                let mut state = pool.state.lock();
                state.note_peak();
                Ok(pool.lend(state, block, len, len_bytes, self.returns.take()))
            }
            Err(why) => {
                drop(self);
                Err(pool.not_given(len_bytes, pool.stats().allocated_bytes, &why))
            }
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        let mut state = self.pool.state.lock();
        if let Some(returns) = &self.returns {
            returns.bytes.store(0, Ordering::Relaxed);
        }
        match self.block.take() {
            Some(block) => state.cache(block),
            None => state.stats.reserved_bytes -= self.lens.block,
        }
        // The room that they left may have been promised to others.
        let (cap, mut gone) = (self.pool.cap_of(&state), Vec::new());
        for (block, len) in self.evicted.drain(..) {
            if len > cap.saturating_sub(state.stats.reserved_bytes) {
                gone.push((block, len));
            } else {
                state.stats.reserved_bytes += len;
                state.cache((block, len));
            }
        }
        self.pool.serve(state); // weaken: return-then-serve
        self.pool.free(gone);
    }
}
