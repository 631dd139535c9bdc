//! Stands in for the allocator of a device's memory, which takes nothing from a driver. The
//! waiting requests are the production file.

#[path = "../../../../runtime/src/memory/device_memory/budgets.rs"]
mod budgets;
#[path = "../../../../runtime/src/memory/device_memory/waiting.rs"]
mod waiting;

use crate::driver::{Driver, MemoryShortage, NoDriver, OutOfMemory};
use crate::memory::pool::{BudgetId, Grant, Pool, PoolId, Request, ReuseOrder, UNIT_BYTES};
use crate::memory::queue::Queue;
use crate::order::{Site, StreamId};
use crate::sync::{Arc, Mutex, Notify};
use crate::{Error, clock};
pub(crate) use budgets::Answer;
use budgets::BudgetQueue;
pub(crate) use waiting::wake_all;

pub(crate) struct DeviceMemory {
    pool: Mutex<Pool>,
    growing: Mutex<()>,
    queue: Mutex<Queue>,
    budgets: Mutex<BudgetQueue>,
    changed: Notify,
    driver: Arc<dyn Driver>,
    capacity: usize,
}

impl DeviceMemory {
    pub(crate) fn new(pool: Pool) -> Self {
        DeviceMemory {
            capacity: pool.len_bytes(),
            pool: Mutex::new(pool),
            growing: Mutex::default(),
            queue: Mutex::default(),
            budgets: Mutex::default(),
            changed: Notify::new(),
            driver: Arc::new(NoDriver),
        }
    }

    /// Takes the steps of `find` in `device_memory.rs` of the runtime.
    pub(crate) fn alloc(&self, call: MemoryCall, order: &impl ReuseOrder) -> Result<Grant, Error> {
        let request = call.request();
        let mut pool = self.pool.lock();
        if !pool.is_awaited
            && let Some(grant) = pool.find(&request, order)
        {
            return Ok(grant);
        }
        drop(pool);
        let _growing = self.growing.lock();
        let may_grow = self.queue.lock().is_empty();
        if may_grow { self.grow(&request, order)?.map_err(|_| Error) } else { Err(Error) }
    }

    /// Takes the steps of the runtime's.
    fn grow(
        &self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Result<Result<Grant, MemoryShortage>, Error> {
        if let Err(shortage) = self.pool.lock().charge(request) {
            return Ok(Err(shortage));
        }
        let grown = self.pool.lock().find(request, order).ok_or(MemoryShortage::System);
        if grown.is_err() {
            self.pool.lock().uncharge(request);
        }
        Ok(grown)
    }

    fn capacity(&self) -> Result<usize, Error> {
        Ok(self.capacity)
    }

    fn no_budget(&self, _len_bytes: usize, _pool: &Pool, _figures: (usize, usize)) -> Error {
        Error
    }

    fn beyond_budget(
        &self,
        _pool: &Pool,
        _request: &Request,
        _len_bytes: usize,
        _shortage: MemoryShortage,
        _order: &impl ReuseOrder,
    ) -> Error {
        Error
    }

    fn not_freed(&self) -> usize {
        0
    }

    fn room(&self, _shortage: MemoryShortage, _refused_bytes: usize) -> usize {
        0
    }

    fn out_of_memory(
        &self,
        _pool: &Pool,
        _len_bytes: usize,
        shortage: MemoryShortage,
        _order: &impl ReuseOrder,
        (earlier_requests, _): (usize, usize),
    ) -> OutOfMemory {
        OutOfMemory { shortage, earlier_requests, holders: Vec::new() }
    }

    /// Returns the number of requests that wait.
    pub(crate) fn waiting_len(&self) -> usize {
        self.queue.lock().figures().0
    }

    /// Returns the number of requests for budgets that wait.
    pub(crate) fn waiting_for_budgets(&self) -> usize {
        self.budgets.lock().waiters().map_or(0, |waiters| waiters.requests)
    }

    /// Returns the units that are free or behind a use. Fails the model if the pool counts as
    /// awaited, if a request waits, or if a budget is left.
    pub(crate) fn units_at_rest(&self) -> usize {
        assert_eq!(self.waiting_len(), 0, "a request is left");
        assert_eq!(self.waiting_for_budgets(), 0, "a request for a budget is left");
        let pool = self.pool.lock();
        assert!(!pool.wakes(), "frees wake, though no request waits");
        assert_eq!(pool.granted_bytes(), 0, "a budget is lost");
        pool.free + pool.behind.len()
    }
}

/// Like that of the runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryCall {
    pub(crate) len_bytes: usize,
    pub(crate) pool: PoolId,
    pub(crate) budget: Option<BudgetId>,
    pub(crate) stream: StreamId,
    pub(crate) site: Site,
}

impl MemoryCall {
    fn request(self) -> Request {
        Request::new(self.len_bytes, self.pool, self.budget, self.stream, self.site)
    }
}

fn refusal_of(_details: OutOfMemory) -> Error {
    Error
}
