//! The allocator of a device's memory: the [`Pool`] behind one lock, and the driver it grows from.
//!
//! Called by streams when they allocate and by buffers when they are dropped.
//!
//! # Rules
//! 1. Freeing takes one lock, and neither calls the driver nor waits.
//! 2. Memory returns to the driver only when its last uses have finished.
//!
//! # Mutex order
//! stream → `growing` → `queue` → `pool`, and `budgets` → `pool`. `growing` is held across driver
//! calls. So threads that all miss do not each take a segment, and the limit is exact. `pool` is
//! not held across driver calls, so hits and frees continue meanwhile. `growing` is held while the
//! queue of requests that wait is served (`queue.rs`), and the waiters are woken while none of
//! these locks is held.
//!
//! # Dropping
//! Dropping returns nothing to the driver, because blocks may still be in use. A caller that has
//! drained the device calls [`empty_cache`](DeviceMemory::empty_cache) first. Memory that is left
//! then ends with the driver.

mod budgets;
mod growth;
mod refusals;
mod waiting;

use super::MemoryLimit;
use super::blocks::Segment;
use super::pool::{BudgetId, Grant, Pool, PoolId, Request, ReuseOrder, piece_bytes};
use super::queue::Queue;
use super::snapshot::{MemorySegment, MemoryWaiters};
use super::stats::MemoryStats;
use super::zones::Zones;
use crate::background;
use crate::order::{Site, StreamId, Use};
pub(crate) use budgets::Answer;
use budgets::BudgetQueue;
use parking_lot::{Mutex, MutexGuard};
use refusals::refusal_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;
pub(crate) use waiting::wake_all;
use warpline_driver::{DevicePtr, Driver, Error, MemoryShortage};

/// The stream-ordered caching allocator of one device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pool: Mutex<Pool>,
    growing: Mutex<()>,
    queue: Mutex<Queue>,
    /// The requests that wait for a budget.
    budgets: Mutex<BudgetQueue>,
    /// The bytes that the allocator can hold at most, once a budget was asked for.
    capacity: OnceLock<usize>,
    /// Notified, while requests wait, when memory was freed and when a queue moves.
    changed: Notify,
    driver: Arc<dyn Driver>,
    limit: Option<MemoryLimit>,
    zones: Zones,
    /// True if the driver maps memory to reserved addresses. Segments that no graph owns then
    /// grow.
    maps: bool,
    /// The counter that numbers the pools of graphs.
    pools: AtomicU32,
}

impl DeviceMemory {
    /// Creates an allocator. It takes nothing from the driver before it is needed, and never more
    /// than `limit`, apart from zones.
    pub(crate) fn new(driver: Arc<dyn Driver>, limit: Option<MemoryLimit>, zones: Zones) -> Self {
        let maps = driver.granule_bytes().is_some();
        let most_bytes = limit.map_or_else(|| driver.properties().total_bytes, |limit| limit.bytes);
        DeviceMemory {
            zones,
            pool: Mutex::new(Pool::new(zones, piece_bytes(most_bytes))),
            growing: Mutex::default(),
            queue: Mutex::default(),
            budgets: Mutex::default(),
            capacity: OnceLock::new(),
            changed: Notify::new(),
            driver,
            limit,
            maps,
            pools: AtomicU32::new(PoolId::BUDGETS.0),
        }
    }

    /// Allocates `len_bytes`, rounded up to 512, for `stream`, whose order `order`
    /// knows. Zero bytes are served as 512, so every allocation has an address of its own.
    ///
    /// `budget` returns the budget that it counts against. It is called under the pool's lock, and
    /// not at all while the device has no budget and a block is there.
    ///
    /// The caller makes sure that `Grant::wait` is waited for.
    ///
    /// # Errors
    /// `OutOfMemory` also if unfinished work uses the memory, or if other requests wait for some:
    /// the caller may [`join`](Self::join) them. `Driver` if the driver fails.
    #[inline]
    pub(crate) fn alloc(
        &self,
        len_bytes: usize,
        stream: StreamId,
        order: &impl ReuseOrder,
        site: Site,
        budget: impl FnOnce() -> Option<BudgetId>,
    ) -> Result<Grant, Error> {
        let mut pool = self.pool.lock();
        if let Some(grant) = pool.take_recent(len_bytes, stream, site) {
            return Ok(grant);
        }
        let budget = budget();
        self.find(pool, MemoryCall { len_bytes, pool: PoolId::DEFAULT, budget, stream, site }, order)
    }

    /// Creates a separate pool, from which [`alloc_in`](Self::alloc_in) serves.
    pub(crate) fn new_pool(&self) -> PoolId {
        PoolId(self.pools.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Like [`alloc`](Self::alloc), from blocks of the pool `id` alone.
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
        self.find(pool, MemoryCall { len_bytes, pool: id, budget: None, stream, site }, order)
    }

    /// Forgets the uses of a pool's blocks. They belong to ops that were recorded and have not run.
    pub(crate) fn forget_uses(&self, id: PoolId) {
        self.pool.lock().forget_uses(id);
    }

    /// Returns the addresses of a pool's memory, and its bytes without the zones.
    pub(crate) fn pieces_of(&self, id: PoolId) -> (Vec<Range<u64>>, usize) {
        let pool = self.pool.lock();
        let (addresses, bytes): (_, Vec<usize>) = pool.pieces_of(id).unzip();
        (addresses, bytes.iter().sum())
    }

    /// Ends a pool without live blocks. Its blocks go to the default pool, each usable once its
    /// last uses have finished. Returns true as [`free`](Self::free) does.
    pub(crate) fn dissolve(&self, id: PoolId) -> bool {
        let mut pool = self.pool.lock();
        pool.dissolve(id);
        pool.wakes()
    }

    #[cold]
    fn find<'a>(
        &'a self,
        mut pool: MutexGuard<'a, Pool>,
        call: MemoryCall,
        order: &impl ReuseOrder,
    ) -> Result<Grant, Error> {
        let MemoryCall { len_bytes, stream, site, .. } = call;
        let mut earlier = (0, 0);
        let shortage = if pool.refuses() {
            MemoryShortage::Planned
        } else if len_bytes > isize::MAX as usize / 2 {
            MemoryShortage::Unaddressable
        } else {
            let request = call.request();
            // Memory that a graph or a budget keeps serves no request that waits.
            let found = if pool.is_awaited() && !call.pool.is_graph() {
                pool.find_kept(&request, order)
            } else {
                let recent = if call.is_plain() { pool.pop_recent(len_bytes, stream, site) } else { None };
                recent.or_else(|| pool.find(&request, order, false))
            };
            if let Some(grant) = found {
                return Ok(grant);
            }
            drop(pool);
            // A thread that holds the lock may be in a driver call that waits for the device,
            // which may wait for this thread.
            let is_barred = background::duty().is_barred();
            let growing = if is_barred { self.growing.try_lock() } else { Some(self.growing.lock()) };
            earlier = self.queue.lock().figures();
            let may_grow = growing.is_some() && earlier.0 == 0;
            let grown = if may_grow { self.grow(&request, order)? } else { Err(self.shortage_now()) };
            let shortage = match grown {
                Ok(grant) => return Ok(grant),
                Err(shortage) => shortage,
            };
            pool = self.pool.lock();
            // Judged under the lock `growing`: otherwise, a request that is being served may be
            // about to leave an opening for this one.
            let beyond = growing.as_ref().and_then(|_| pool.beyond_budget(&request, order));
            if let Some(shortage) = beyond {
                return Err(self.beyond_budget(&pool, &request, len_bytes, shortage, order));
            }
            shortage
        };
        let details = self.out_of_memory(&pool, len_bytes, shortage, order, earlier);
        drop(pool);
        Err(refusal_of(details))
    }

    /// Takes more memory: rung 5 of the ladder. Called under `growing`.
    fn grow(
        &self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Result<Result<Grant, MemoryShortage>, Error> {
        let mut pool = self.pool.lock();
        // The previous holder of the lock may have brought enough for two.
        if let Some(grant) = pool.find(request, order, false) {
            return Ok(Ok(grant));
        }
        // It counts from now on, so that no other request of the budget takes its place.
        let charged = match (pool.charge(request, order), pool.beyond_budget(request, order)) {
            (Some(charged), _) => charged,
            (None, Some(shortage)) => return Ok(Err(shortage)),
            (None, None) => {
                drop(pool);
                return Ok(Err(self.shortage_now()));
            }
        };
        drop(pool);
        let grown = self.grow_charged(&charged, order);
        if !matches!(grown, Ok(Ok(_))) {
            self.pool.lock().uncharge(&charged);
        }
        grown
    }

    fn grow_charged(
        &self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Result<Result<Grant, MemoryShortage>, Error> {
        loop {
            // A graph's pool begins empty. If all of its memory were new, each capture would grow
            // the device's memory.
            if request.pool.is_graph() {
                let mut pool = self.pool.lock();
                let len = request.segment_bytes();
                let span = self.zones.span(request.class(), len);
                if let Some(Segment { address, .. }) = pool.give_up(len, span, &|used| order.is_over(used)) {
                    return Ok(Ok(pool.grow(DevicePtr(address), len, request)));
                }
            }
            let (shortage, missing) = match self.take_memory(request, order)? {
                Ok(grant) => return Ok(Ok(grant)),
                Err(shortage) => shortage,
            };
            // Freed without delay, because the next round asks for it.
            if self.give_back(missing, |used| order.is_over(used), Need::Now) > 0 {
                continue;
            }
            if let Some(last) = self.pool.lock().find(request, order, true) {
                return Ok(Ok(last));
            }
            let of_driver = matches!(shortage, MemoryShortage::Device { .. } | MemoryShortage::System);
            if !(of_driver && self.driver.release_idle()) {
                return Ok(Err(shortage));
            }
        }
    }

    /// Frees segments of fixed length, which the pool forgot.
    fn free_segments(&self, segments: Vec<Segment>, need: Need) {
        if segments.is_empty() {
            return;
        }
        let driver = self.driver.clone();
        background::run_where_it_may_block(move || {
            let memory = segments.iter().map(|segment| (DevicePtr(segment.address), segment.span));
            match need {
                // SAFETY: `free_all` needs allocations of this driver with their lengths, and no
                // use of them unfinished or to come. Segments of fixed length are made from
                // `Driver::alloc` alone. No block of these was live, none can be handed out again,
                // and `finished` held for every use of every one.
                Need::Now => unsafe { driver.free_all(memory.collect()) },
                // SAFETY: as above.
                Need::InTime => memory.for_each(|(ptr, len)| unsafe { driver.free_in_time(ptr, len) }),
            }
        });
    }

    /// Returns the current statistics.
    pub(crate) fn stats(&self) -> MemoryStats {
        self.stats_of(&self.pool.lock())
    }

    fn stats_of(&self, pool: &Pool) -> MemoryStats {
        let limit_bytes = self.limit.map(|limit| limit.bytes);
        MemoryStats { limit_bytes, not_freed_bytes: self.not_freed(), ..pool.stats() }
    }

    fn not_freed(&self) -> usize {
        self.driver.not_freed().device_bytes
    }

    /// Returns the current statistics, and the segments with their blocks by address, all of the
    /// same moment; and the requests that wait for memory, and for a budget.
    pub(crate) fn snapshot(
        &self,
        finished: impl Fn(Use) -> bool,
    ) -> (MemoryStats, Vec<MemorySegment>, [Option<MemoryWaiters>; 2]) {
        let of_memory = self.queue.lock().waiters();
        let of_budgets = self.budgets.lock().waiters();
        let pool = self.pool.lock();
        (self.stats_of(&pool), pool.describe(&finished), [of_memory, of_budgets])
    }

    /// Returns the number of blocks, live and free, for statistics.
    pub(crate) fn blocks(&self) -> usize {
        self.pool.lock().block_count()
    }

    /// Resets both peaks to what is held now.
    pub(crate) fn reset_peak(&self) {
        self.pool.lock().reset_peak();
    }

    /// Frees every segment without a live block or an unfinished use, and makes the driver release
    /// what it keeps for libraries. Returns the number of bytes of the segments, without those that
    /// the driver has refused to free by then.
    pub(crate) fn empty_cache(&self, finished: impl Fn(Use) -> bool) -> usize {
        let bytes = self.give_all_back(finished, Need::InTime);
        self.driver.release_idle();
        bytes
    }

    /// Frees the same segments as [`empty_cache`](Self::empty_cache) without delay, because a
    /// driver call needs the memory.
    pub(crate) fn make_room(&self, finished: impl Fn(Use) -> bool) {
        self.give_all_back(finished, Need::Now);
    }

    fn give_all_back(&self, finished: impl Fn(Use) -> bool, need: Need) -> usize {
        let growing = self.growing.lock();
        let before = self.not_freed();
        let bytes = self.give_back(usize::MAX, finished, need);
        drop(growing);
        if self.pool.lock().wakes() {
            self.wake_waiters();
        }
        bytes.saturating_sub(self.not_freed().saturating_sub(before))
    }

    /// Makes the `nth` allocation from now (1: the next) fail as if there were no memory. Part of a
    /// fault plan.
    pub(crate) fn refuse_allocation(&self, nth: u64) {
        self.pool.lock().refuse_allocation(nth);
    }
}

/// A call for memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryCall {
    pub(crate) len_bytes: usize,
    pub(crate) pool: PoolId,
    /// The budget that it counts against.
    pub(crate) budget: Option<BudgetId>,
    pub(crate) stream: StreamId,
    pub(crate) site: Site,
}

impl MemoryCall {
    fn request(self) -> Request {
        Request::new(self.len_bytes, self.pool, self.budget, self.stream, self.site)
    }

    /// Returns true if neither a graph nor a budget owns the memory.
    fn is_plain(self) -> bool {
        self.pool == PoolId::DEFAULT && self.budget.is_none()
    }
}

/// The need for memory that returns to the driver.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Need {
    Now,
    InTime,
}

#[cfg(test)]
mod budget_tests;
#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod tests;
