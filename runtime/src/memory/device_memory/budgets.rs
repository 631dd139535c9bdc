//! The requests for budgets, in the order of their calls, and how they are served.
//!
//! # Rules
//! 1. A budget is granted if it fits beside the others and the memory outside
//!    (`../pool/budgets.rs`). While a request waits, later ones join behind it.
//! 2. Any thread may serve the queue: it needs no driver call and no allocation. It does so when a
//!    request joins or leaves, when a share has returned, and when memory outside was freed. So a
//!    request whose task is not polled stops no other one.
//! 3. The answer is sent to the owner while no lock is held. An owner that has gone away returns
//!    what it was granted: the sender, if the owner had gone before the answer was sent, and the
//!    owner otherwise.
//!
//! # Mutex order
//! `budgets` → `pool`.
// Decision: docs/decisions/0068-budgets.md

use super::{DeviceMemory, as_waker, refusal_of};
use crate::background;
use crate::memory::pool::{BudgetId, GRANULE_BYTES, Pool, Request, ReuseOrder};
use crate::memory::snapshot::MemoryWaiters;
use crate::order::Site;
use std::collections::VecDeque;
use std::time::Instant;
use tokio::sync::oneshot;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{ByteSize, Error, ErrorKind, MemoryShortage, OutOfMemory};

/// The answer to a request for a budget.
pub(crate) type Answer = Result<BudgetId, Error>;

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    number: u64,
    /// The bytes, as the program wrote them.
    len_bytes: usize,
    /// The bytes in whole granules.
    bytes: usize,
    /// The bytes that the allocator can hold at most.
    capacity: usize,
    site: Site,
    since: Instant,
    answer: oneshot::Sender<Answer>,
}

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct BudgetQueue {
    waiting: VecDeque<Waiting>,
    /// The number of requests so far.
    joined: u64,
    /// True while a thread sends an answer.
    is_served: bool,
}

impl BudgetQueue {
    /// Returns the requests that wait, for reports.
    pub(super) fn waiters(&self) -> Option<MemoryWaiters> {
        let first = self.waiting.front()?;
        Some(MemoryWaiters {
            requests: self.waiting.len(),
            bytes: self.waiting.iter().map(|waiting| waiting.bytes).sum(),
            first_bytes: first.len_bytes,
            first_site: first.site,
            first_since: first.since.elapsed(),
        })
    }
}

impl DeviceMemory {
    /// Joins the requests for budgets. Returns the request's number, and the receiver of the
    /// answer.
    ///
    /// # Errors
    /// `OutOfMemory` if the budget does not fit beside the memory outside; `InvalidArgument` if
    /// nobody knows how much memory the device has.
    pub(crate) fn ask_for_budget(
        &self,
        len_bytes: usize,
        site: Site,
    ) -> Result<(u64, oneshot::Receiver<Answer>), Error> {
        let capacity = self.capacity()?;
        let bytes = len_bytes.max(1).checked_next_multiple_of(GRANULE_BYTES);
        let mut queue = self.budgets.lock();
        let mut pool = self.pool.lock();
        let outside = pool.bytes_outside() + self.not_freed();
        let room = capacity.saturating_sub(outside);
        let Some(bytes) = bytes.filter(|bytes| *bytes <= room) else {
            return Err(self.no_budget(len_bytes, &pool, (capacity, outside)));
        };
        pool.set_budgets_awaited(true);
        drop(pool);
        queue.joined += 1;
        let (number, since) = (queue.joined, Instant::now());
        let (answer, receiver) = oneshot::channel();
        queue.waiting.push_back(Waiting { number, len_bytes, bytes, capacity, site, since, answer });
        drop(queue);
        self.serve_budgets();
        Ok((number, receiver))
    }

    /// Answers the requests in their order, until the first one has to wait. A call meanwhile, of
    /// another thread or by a waker, leaves that to the first one, which looks again after each
    /// answer.
    pub(super) fn serve_budgets(&self) {
        let mut queue = self.budgets.lock();
        if queue.is_served {
            return;
        }
        while let Some(first) = queue.waiting.front() {
            let mut pool = self.pool.lock();
            let Some(answer) = self.judge_budget(first, &mut pool) else { break };
            let first = queue.waiting.pop_front().expect("it is the first");
            pool.set_budgets_awaited(!queue.waiting.is_empty());
            queue.is_served = true;
            drop((pool, queue));
            let mut returned = None;
            as_waker(|| returned = first.answer.send(answer).err());
            if let Some(Ok(budget)) = returned {
                self.pool.lock().close_budget(budget);
            }
            queue = self.budgets.lock();
            queue.is_served = false;
        }
    }

    /// Returns the answer to the first request, or `None` if it has to wait.
    fn judge_budget(&self, first: &Waiting, pool: &mut Pool) -> Option<Answer> {
        let Waiting { len_bytes, bytes, capacity, .. } = *first;
        let granted = pool.granted_bytes();
        let all = bytes.saturating_add(granted);
        let room = capacity.saturating_sub(all);
        // Live memory outside takes at least its length, which is known without a look at pieces.
        if granted > 0 && pool.live_bytes_outside() > room {
            return None;
        }
        let outside = pool.bytes_outside() + self.not_freed();
        if all <= capacity.saturating_sub(outside) {
            return Some(Ok(pool.open_budget(bytes)));
        }
        // The memory outside grew, and no budget is left to wait for.
        (granted == 0).then(|| Err(self.no_budget(len_bytes, pool, (capacity, outside))))
    }

    /// Ends a request whose owner goes away, and returns what it was granted.
    pub(crate) fn leave_budgets(&self, number: u64, mut receiver: oneshot::Receiver<Answer>) {
        receiver.close();
        let mut queue = self.budgets.lock();
        let at = queue.waiting.iter().position(|waiting| waiting.number == number);
        let left = at.and_then(|at| queue.waiting.remove(at));
        let mut pool = self.pool.lock();
        pool.set_budgets_awaited(!queue.waiting.is_empty());
        if let Ok(Ok(budget)) = receiver.try_recv() {
            pool.close_budget(budget);
        }
        drop((pool, queue));
        drop(left);
        self.serve_budgets();
    }

    /// Closes a budget. Its share returns when nothing counts against it any more.
    pub(crate) fn close_budget(&self, id: BudgetId) {
        self.pool.lock().close_budget(id);
        self.serve_budgets();
    }

    /// Returns the bytes of a budget, and those that count against it.
    pub(crate) fn budget(&self, id: BudgetId) -> (usize, usize) {
        self.pool.lock().budget(id)
    }

    pub(crate) fn bytes_outside(&self) -> usize {
        self.pool.lock().bytes_outside() + self.not_freed()
    }

    /// Returns the bytes that the allocator can hold at most: what the limit and the device allow.
    fn capacity(&self) -> Result<usize, Error> {
        if let Some(capacity) = self.capacity.get() {
            return Ok(*capacity);
        }
        let total = Some(self.driver.properties().total_bytes).filter(|total| *total > 0);
        let known = if background::duty().is_barred() {
            // This thread must not call the driver.
            total
        } else {
            // Under the lock, no memory is on its way between the driver and the pool.
            let _growing = self.growing.lock();
            self.driver.free_bytes().map(|free| free.saturating_add(self.reserved())).or(total)
        };
        let limit = self.limit.map(|limit| limit.bytes);
        let Some(capacity) = limit.into_iter().chain(known).min() else {
            let text = format!(
                "a budget is a share of the memory of {}, and its driver does not report how much that is; \
                 set memory_limit",
                self.driver.id()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        // Two of this length can be added.
        let capacity = capacity.min(isize::MAX as usize);
        Ok(if background::duty().is_barred() { capacity } else { *self.capacity.get_or_init(|| capacity) })
    }

    #[cold]
    fn no_budget(&self, len_bytes: usize, pool: &Pool, (capacity, outside): (usize, usize)) -> Error {
        let (free_bytes, total_bytes) =
            (capacity.saturating_sub(outside), self.driver.properties().total_bytes);
        let shortage = match self.limit.filter(|limit| limit.bytes <= capacity) {
            Some(limit) => limit.shortage(outside),
            None => MemoryShortage::Device { free_bytes, total_bytes },
        };
        let counted = len_bytes.max(1).checked_next_multiple_of(GRANULE_BYTES).unwrap_or(len_bytes);
        let text = format!(
            "a budget of {}, which counts as {}, does not fit on {}: {shortage}, and {} are in use outside of \
             budgets; ask for less, or drop tensors",
            ByteSize(len_bytes),
            ByteSize(counted),
            self.driver.id(),
            ByteSize(outside)
        );
        let mut details = OutOfMemory::new(self.driver.id(), len_bytes, shortage);
        let stats = self.stats_of(pool);
        details.allocated_bytes = stats.allocated_bytes;
        details.budget_bytes = stats.budget_bytes;
        details.not_freed_bytes = stats.not_freed_bytes;
        details.holders = pool.largest_holders(OutOfMemory::MOST_HOLDERS);
        Error::new(ErrorKind::OutOfMemory, text).with_out_of_memory(details)
    }

    /// Returns the error of a request that is beyond its budget.
    #[cold]
    pub(super) fn beyond_budget(
        &self,
        pool: &Pool,
        request: &Request,
        len_bytes: usize,
        shortage: MemoryShortage,
        order: &impl ReuseOrder,
    ) -> Error {
        let mut details = self.out_of_memory(pool, len_bytes, shortage, order, (0, 0));
        if let Some(share) = request.share {
            details.holders = pool.holders_of_budget(share.budget, OutOfMemory::MOST_HOLDERS);
        }
        refusal_of(details)
    }
}
