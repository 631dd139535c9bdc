//! A device's memory: the [`Pool`] behind one lock, and the driver it grows from.
//!
//! Called by streams when they allocate and by buffers when they are dropped.
//!
//! # Rules
//! 1. Freeing takes one lock, and neither calls the driver nor waits.
//! 2. Memory goes back to the driver only when its last uses are finished.
//!
//! # Mutex order
//! stream → `growing` → `pool`. `growing` is held across driver calls, so that threads which all miss do not each take a
//! segment, and the limit is exact; `pool` is not, so hits and frees go on meanwhile.
//!
//! # Dropping
//! gives nothing back: nobody here knows whether blocks are still in use. Whoever has drained the device calls
//! [`empty_cache`](DeviceMemory::empty_cache) before; what is then left ends with the driver.

use super::blocks::Segment;
use super::pool::{BlockId, Grant, Pool, PoolId, Request, ReuseOrder, UNIT_BYTES, units};
use super::stats::MemoryStats;
use crate::order::{Site, StreamId, Use};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use warpline_driver::{ByteSize, DevicePtr, Driver, DriverError, Error, ErrorKind, FreeMemory};

/// How many of the largest holders an error names.
const HOLDERS: usize = 3;

/// The stream-ordered caching allocator of one device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pool: Mutex<Pool>,
    growing: Mutex<()>,
    driver: Arc<dyn Driver>,
    limit_bytes: Option<usize>,
    /// Numbers the pools; the default one is 0.
    pools: AtomicU32,
}

/// Why there is no more memory.
enum Exhausted {
    Driver(Option<FreeMemory>),
    Limit { free: usize, limit: usize },
    Plan,
    Absurd,
}

impl DeviceMemory {
    /// Nothing is taken from the driver before it is needed, and never more than `limit_bytes`.
    pub(crate) fn new(driver: Arc<dyn Driver>, limit_bytes: Option<usize>) -> Self {
        DeviceMemory {
            pool: Mutex::new(Pool::new()),
            growing: Mutex::new(()),
            driver,
            limit_bytes,
            pools: AtomicU32::new(PoolId::DEFAULT.0),
        }
    }

    /// `len_bytes`, rounded up to 512, for `stream`, which `order` answers for. Zero bytes are served as 512, so every
    /// allocation has an address of its own.
    ///
    /// The caller sees to it that `Grant::wait` is waited for.
    #[inline]
    pub(crate) fn alloc(
        &self,
        len_bytes: usize,
        stream: StreamId,
        order: &impl ReuseOrder,
        site: Site,
    ) -> Result<Grant, Error> {
        let mut pool = self.pool.lock();
        if let Some(grant) = pool.take_recent(len_bytes, stream, site) {
            return Ok(grant);
        }
        self.find(pool, len_bytes, PoolId::DEFAULT, stream, order, site)
    }

    /// A pool of its own, from which [`alloc_in`](Self::alloc_in) serves.
    pub(crate) fn new_pool(&self) -> PoolId {
        PoolId(self.pools.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// As [`alloc`](Self::alloc), from blocks of `pool` alone.
    pub(crate) fn alloc_in(
        &self,
        id: PoolId,
        len_bytes: usize,
        stream: StreamId,
        order: &impl ReuseOrder,
        site: Site,
    ) -> Result<Grant, Error> {
        let mut pool = self.pool.lock();
        pool.count_allocation();
        self.find(pool, len_bytes, id, stream, order, site)
    }

    /// Forgets the uses of a pool's blocks: they were of ops that were recorded and have not run.
    pub(crate) fn forget_uses(&self, id: PoolId) {
        self.pool.lock().forget_uses(id);
    }

    /// Where a pool's memory is.
    pub(crate) fn segments_of(&self, id: PoolId) -> Vec<(DevicePtr, usize)> {
        self.pool.lock().segments_of(id)
    }

    /// Ends a pool without live blocks: they are everybody's from then on, each when its last uses are over.
    pub(crate) fn dissolve(&self, id: PoolId) {
        self.pool.lock().dissolve(id);
    }

    #[cold]
    fn find<'a>(
        &'a self,
        mut pool: MutexGuard<'a, Pool>,
        len_bytes: usize,
        id: PoolId,
        stream: StreamId,
        order: &impl ReuseOrder,
        site: Site,
    ) -> Result<Grant, Error> {
        let exhausted = if pool.refuses() {
            Exhausted::Plan
        } else if len_bytes > isize::MAX as usize / 2 {
            Exhausted::Absurd
        } else {
            let size = units(len_bytes) * UNIT_BYTES;
            let request = Request { size, pool: id, stream, site };
            if let Some(grant) = pool.find(&request, order, false) {
                return Ok(grant);
            }
            drop(pool);
            match self.grow(&request, order)? {
                Ok(grant) => return Ok(grant),
                Err(exhausted) => {
                    pool = self.pool.lock();
                    exhausted
                }
            }
        };
        Err(self.out_of_memory(&pool, len_bytes, exhausted, order))
    }

    /// Rung 5 of the ladder.
    fn grow(&self, request: &Request, order: &impl ReuseOrder) -> Result<Result<Grant, Exhausted>, Error> {
        let _growing = self.growing.lock();
        // Whoever held the lock may have brought enough for two.
        if let Some(grant) = self.pool.lock().find(request, order, false) {
            return Ok(Ok(grant));
        }
        loop {
            // A graph's pool has nothing to begin with: were all of it new, captures would grow the device's memory one by one.
            if request.pool != PoolId::DEFAULT {
                let mut pool = self.pool.lock();
                if let Some(Segment { address, len, .. }) =
                    pool.give_up(request.segment_bytes(), &|used| order.is_over(used))
                {
                    return Ok(Ok(pool.grow(DevicePtr(address), len, request)));
                }
            }
            let exhausted = match self.take_segment(request)? {
                Ok(grant) => return Ok(Ok(grant)),
                Err(exhausted) => exhausted,
            };
            let given = if self.driver.can_free() {
                self.pool.lock().give_back(request.size, &|used| order.is_over(used))
            } else {
                Vec::new()
            };
            if given.is_empty() {
                if let Some(last) = self.pool.lock().find(request, order, true) {
                    return Ok(Ok(last));
                }
                if let Exhausted::Driver(_) = exhausted
                    && self.driver.release_idle()
                {
                    continue;
                }
                return Ok(Err(exhausted));
            }
            // Now, as the next round asks for it.
            self.free_segments(given, |driver, segment| {
                // SAFETY: as `free_segments` says.
                unsafe { driver.free(DevicePtr(segment.address), segment.len) };
            });
        }
    }

    /// Serves `request` from a new segment, of the usual length or, if that is too much, of its own.
    fn take_segment(&self, request: &Request) -> Result<Result<Grant, Exhausted>, Error> {
        let mut exhausted = Exhausted::Absurd;
        for len in [request.segment_bytes(), request.size] {
            let reserved = self.pool.lock().reserved();
            if let Some(limit) = self.limit_bytes.filter(|limit| len > limit.saturating_sub(reserved)) {
                exhausted = Exhausted::Limit { free: limit.saturating_sub(reserved), limit };
                continue;
            }
            match self.driver.alloc(len) {
                Ok(ptr) => {
                    tracing::debug!(target: "warpline", device = %self.driver.id(), len_bytes = len, "device memory grew");
                    return Ok(Ok(self.pool.lock().grow(ptr, len, request)));
                }
                Err(DriverError::OutOfMemory(free)) => exhausted = Exhausted::Driver(free),
                Err(DriverError::Refused(why) | DriverError::Halfway(why) | DriverError::Captured(why)) => {
                    let message = format!(
                        "{} gave no memory: {} asked: {why}",
                        self.driver.id(),
                        ByteSize(request.size)
                    );
                    return Err(Error::new(ErrorKind::Driver, message));
                }
            }
        }
        Ok(Err(exhausted))
    }

    /// Has `free` give segments back to the driver: with `Driver::free` or `Driver::free_in_time`, which need an allocation of
    /// this driver with its length, and no use unfinished or to come. Segments are made from `Driver::alloc` alone, and the pool
    /// forgot these: no block of them was live, none can be handed out again, and `finished` held for every use of every one.
    fn free_segments(&self, segments: Vec<Segment>, free: fn(&dyn Driver, Segment)) {
        if segments.is_empty() {
            return;
        }
        let driver = self.driver.clone();
        crate::background::run_where_it_may_block(move || {
            segments.into_iter().for_each(|segment| free(&*driver, segment));
        });
    }

    #[cold]
    fn out_of_memory(
        &self,
        pool: &Pool,
        len_bytes: usize,
        exhausted: Exhausted,
        order: &impl ReuseOrder,
    ) -> Error {
        let stats = pool.stats();
        let (device, asked) = (self.driver.id(), ByteSize(len_bytes));
        let mut text = format!("{device} is out of memory: {asked} asked, ");
        text += &match exhausted {
            Exhausted::Driver(Some(FreeMemory { free_bytes, total_bytes })) => {
                format!("{} free of {}", ByteSize(free_bytes), ByteSize(total_bytes))
            }
            Exhausted::Driver(None) => "more than the system gives".into(),
            Exhausted::Limit { free, limit } => {
                format!("{} free of the limit of {}", ByteSize(free), ByteSize(limit))
            }
            Exhausted::Plan => "refused by the fault plan".into(),
            Exhausted::Absurd => "more than can be addressed".into(),
        };
        let of_graphs = pool.free_bytes_of_graphs();
        let cached = stats.reserved_bytes - stats.allocated_bytes - of_graphs;
        text += &format!(" ({} in use, {} cached", ByteSize(stats.allocated_bytes), ByteSize(cached));
        if of_graphs > 0 {
            text += &format!(", {} kept for launches of graphs", ByteSize(of_graphs));
        }
        let unfinished = pool.unfinished_bytes(&|used| order.is_over(used));
        if unfinished > 0 {
            text += &format!(", {} of it not finished with", ByteSize(unfinished));
        }
        text += ")";
        let mut word = "; largest holders:";
        for (bytes, line) in pool.largest_holders(HOLDERS) {
            text += &format!("{word} {} from {}:{}", ByteSize(bytes), line.file(), line.line());
            word = ",";
        }
        Error::new(ErrorKind::OutOfMemory, text + "; drop tensors or lower the batch size")
    }

    /// Takes a block back. `uses`: the newest ticket of each stream that used it since it was allocated, the
    /// allocating stream's too; none: nobody did.
    #[inline(always)]
    pub(crate) fn free(&self, block: BlockId, uses: &[Use]) {
        self.pool.lock().free(block, uses);
    }

    /// The figures now.
    pub(crate) fn stats(&self) -> MemoryStats {
        self.pool.lock().stats()
    }

    /// Blocks, live and free, for figures.
    pub(crate) fn blocks(&self) -> usize {
        self.pool.lock().block_count()
    }

    /// Lets both peaks begin again at what is held now.
    pub(crate) fn reset_peak(&self) {
        self.pool.lock().reset_peak();
    }

    /// Gives every segment without a live block, and with no unfinished use, back to the driver,
    /// and has the driver give back what it keeps for libraries; how many bytes the segments have.
    pub(crate) fn empty_cache(&self, finished: impl Fn(Use) -> bool) -> usize {
        let bytes = self.give_all_back(finished, |driver, segment| {
            // SAFETY: as `free_segments` says.
            unsafe { driver.free_in_time(DevicePtr(segment.address), segment.len) };
        });
        self.driver.release_idle();
        bytes
    }

    /// Gives back the segments that [`empty_cache`](Self::empty_cache) would, without delay: a
    /// call of the driver needs the memory.
    pub(crate) fn make_room(&self, finished: impl Fn(Use) -> bool) {
        self.give_all_back(finished, |driver, segment| {
            // SAFETY: as `free_segments` says.
            unsafe { driver.free(DevicePtr(segment.address), segment.len) };
        });
    }

    fn give_all_back(&self, finished: impl Fn(Use) -> bool, free: fn(&dyn Driver, Segment)) -> usize {
        if !self.driver.can_free() {
            return 0;
        }
        let _growing = self.growing.lock();
        let given = self.pool.lock().give_back(usize::MAX, &finished);
        let bytes = given.iter().map(|segment| segment.len).sum();
        self.free_segments(given, free);
        bytes
    }

    /// Fault plan: the `nth` allocation from now (1: the next) fails as if there were no memory.
    pub(crate) fn refuse_allocation(&self, nth: u64) {
        self.pool.lock().refuse_allocation(nth);
    }
}

#[cfg(test)]
mod tests;
