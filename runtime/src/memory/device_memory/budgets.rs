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

use super::DeviceMemory;
use super::waiting::as_waker;
use crate::memory::pool::{BudgetId, GRANULE_BYTES, Pool};
use crate::memory::snapshot::MemoryWaiters;
use crate::order::Site;
use std::collections::VecDeque;
use std::time::Instant;
use tokio::sync::oneshot;
use warpline_driver::Error;

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
        // Set under both locks. Otherwise the answer to another request could reset it before this
        // one is in the queue, and no free would end this wait.
        pool.set_budgets_awaited(true); // weaken: ask-then-free
        drop(pool);
        queue.joined += 1;
        let (number, since) = (queue.joined, Instant::now());
        let (answer, receiver) = oneshot::channel();
        queue.waiting.push_back(Waiting { number, len_bytes, bytes, capacity, site, since, answer });
        drop(queue);
        self.serve_budgets(); // weaken: ask-then-answer
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
            pool.set_budgets_awaited(!queue.waiting.is_empty()); // weaken: answer-then-free
            queue.is_served = true;
            drop((pool, queue)); // weaken: unlock-then-send
            let mut returned = None;
            as_waker(|| returned = first.answer.send(answer).err());
            if let Some(Ok(budget)) = returned {
                self.pool.lock().close_budget(budget); // weaken: return-the-unsent
            }
            queue = self.budgets.lock();
            queue.is_served = false; // weaken: answer-then-look
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
        let refusal = || Err(self.no_budget(len_bytes, pool, (capacity, outside)));
        (granted == 0).then(refusal) // weaken: refuse-the-last
    }

    /// Ends a request whose owner goes away, and returns what it was granted.
    pub(crate) fn leave_budgets(&self, number: u64, mut receiver: oneshot::Receiver<Answer>) {
        receiver.close(); // weaken: close-then-receive
        let mut queue = self.budgets.lock();
        let at = queue.waiting.iter().position(|waiting| waiting.number == number);
        let left = at.and_then(|at| queue.waiting.remove(at)); // weaken: leave-the-budgets
        let mut pool = self.pool.lock();
        pool.set_budgets_awaited(!queue.waiting.is_empty()); // weaken: leave-then-free
        if let Ok(Ok(budget)) = receiver.try_recv() {
            pool.close_budget(budget); // weaken: return-the-received
        }
        drop((pool, queue));
        drop(left);
        self.serve_budgets(); // weaken: leave-then-answer
    }

    /// Closes a budget. Its share returns when nothing counts against it any more.
    pub(crate) fn close_budget(&self, id: BudgetId) {
        self.pool.lock().close_budget(id);
        self.serve_budgets(); // weaken: close-then-answer
    }

    /// Returns the bytes of a budget, those that count against it, and the most that did so far.
    pub(crate) fn budget(&self, id: BudgetId) -> (usize, usize, usize) {
        self.pool.lock().budget(id)
    }

    pub(crate) fn bytes_outside(&self) -> usize {
        self.pool.lock().bytes_outside() + self.not_freed()
    }
}
