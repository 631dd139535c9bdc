//! The requests that wait for memory: how they join the queue, and how it is served and woken
//! (`../queue.rs`).

use super::{DeviceMemory, MemoryCall, refusal_of};
use crate::memory::pool::{BlockId, Grant, Wait};
use crate::memory::queue::{Outcome, Queue, SharedOrder, Waiting};
use crate::order::Use;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use warpline_driver::{Error, MemoryShortage, reentry};

impl DeviceMemory {
    /// Makes a request wait, if it will be served once all uses that end by themselves have ended,
    /// and those before it have got their memory. Returns its number.
    ///
    /// # Errors
    /// `refusal`, the error of [`alloc`](Self::alloc), if it will not be.
    pub(crate) fn join(&self, call: MemoryCall, order: SharedOrder, refusal: Error) -> Result<u64, Error> {
        let request = call.request();
        // While another thread returns memory to the driver, it counts neither as free nor as
        // room.
        let _growing = self.growing.lock();
        let room = refusal.out_of_memory().map_or(0, |details| {
            // Behind others, nothing was asked of the driver yet.
            let refused = if details.earlier_requests > 0 { usize::MAX } else { request.size };
            self.room(details.shortage, refused)
        });
        let can_free = self.driver.can_free();
        let mut queue = self.queue.lock();
        let mut pool = self.pool.lock();
        let to_come = room.saturating_add(pool.bytes_to_come(&request, &order));
        // Memory that a budget keeps is taken from nobody else.
        let bytes = if pool.has_kept(&request, &order) { 0 } else { request.size };
        let fits = bytes == 0 || to_come >= queue.bytes().saturating_add(bytes);
        if !fits || pool.wait_for(&request, &order, room, can_free).is_none() {
            return Err(refusal);
        }
        pool.set_awaited(true); // weaken: join-then-free
        Ok(queue.join(request, (call.len_bytes, bytes), order))
    }

    /// Returns the outcome of a request that waits, or the use that the first one waits for.
    /// Serves the queue before, unless `may_serve` is false.
    pub(crate) fn look(&self, number: u64, may_serve: bool) -> Result<Outcome, Option<Use>> {
        if may_serve {
            self.serve();
        }
        let mut queue = self.queue.lock();
        queue.take_outcome(number).ok_or(queue.awaited)
    }

    /// Serves the queue from the front, until the first request has to wait. Wakes the waiters if
    /// that changed anything for them.
    pub(crate) fn serve(&self) {
        let growing = self.growing.lock();
        let before = self.queue.lock().awaited;
        // Requests hold their streams, so they are dropped while no lock is held.
        let (mut seen, mut settled) = (Vec::new(), false);
        loop {
            let mut queue = self.queue.lock();
            let Some(first) = queue.first().cloned() else {
                queue.awaited = None;
                break;
            };
            drop(queue);
            seen.push(first.clone());
            let outcome = match self.serve_now(&first) {
                Ok(Err(used)) => {
                    self.queue.lock().awaited = Some(used);
                    break;
                }
                Ok(Ok(grant)) => Ok(grant),
                Err(error) => Err(error),
            };
            let mut queue = self.queue.lock();
            // Its owner may have gone away meanwhile.
            if let Err(Ok(grant)) = queue.settle(first.number, outcome) {
                self.pool.lock().free(grant.block, &[]); // weaken: return-the-unclaimed
            }
            self.note_awaited(&queue);
            settled = true;
        }
        drop(growing);
        if settled || self.queue.lock().awaited != before {
            self.wake_waiters(); // weaken: serve-then-wake
        } else {
            // The first request counts against its budget while memory is sought. A budget that is
            // closed meanwhile ends here, if there is no memory.
            self.serve_budgets(); // weaken: seek-then-answer
        }
    }

    /// Serves the first request, or returns the use that it waits for.
    fn serve_now(&self, first: &Waiting) -> Result<Result<Grant, Use>, Error> {
        let Waiting { request, order, .. } = first;
        let mut tries = 0;
        loop {
            let shortage = match self.grow(request, order)? {
                Ok(grant) => return Ok(Ok(grant)),
                Err(shortage) => shortage,
            };
            let (room, can_free) = (self.room(shortage, request.size), self.driver.can_free());
            let pool = self.pool.lock();
            if let MemoryShortage::Budget { .. } = shortage {
                return Err(self.beyond_budget(&pool, request, first.len_bytes, shortage, order));
            }
            match pool.wait_for(request, order, room, can_free) {
                Some(Wait::For(used)) => return Ok(Err(used)),
                // The use that it would have waited for ended just now. The driver may refuse
                // nevertheless.
                Some(Wait::Over) if tries < 2 => tries += 1,
                _ => {
                    let details = self.out_of_memory(&pool, first.len_bytes, shortage, order, (0, 0));
                    return Err(refusal_of(details));
                }
            }
        }
    }

    /// Removes a request whose owner goes away, and returns what it was granted.
    pub(crate) fn leave(&self, number: u64) {
        let mut queue = self.queue.lock();
        let (left, outcome) = (queue.leave(number), queue.take_outcome(number));
        if left.is_none() && outcome.is_none() {
            return;
        }
        if let Some(Ok(grant)) = &outcome {
            self.pool.lock().free(grant.block, &[]); // weaken: leave-then-return
        }
        self.note_awaited(&queue);
        drop(queue);
        drop((left, outcome));
        self.wake_waiters(); // weaken: leave-then-wake
    }

    /// Notes whether requests wait.
    fn note_awaited(&self, queue: &Queue) {
        self.pool.lock().set_awaited(!queue.is_empty());
    }
}

/// The waking of requests that wait.
impl DeviceMemory {
    /// Takes a block back. `uses`: the newest ticket of each stream that used it since it was
    /// allocated, including the allocating stream's; empty if it was not used.
    ///
    /// Returns true if requests wait for memory or a budget. The caller then calls
    /// [`wake_waiters`](Self::wake_waiters) while it holds no lock.
    #[inline(always)]
    pub(crate) fn free(&self, block: BlockId, uses: &[Use]) -> bool {
        let mut pool = self.pool.lock();
        pool.free(block, uses);
        pool.wakes()
    }

    /// Returns a future that is ready after the next call of [`wake_waiters`](Self::wake_waiters).
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Makes all that wait for memory look again, and serves the requests for budgets. Called
    /// while no lock is held.
    #[cold]
    pub(crate) fn wake_waiters(&self) {
        wake_all(&self.changed);
        self.serve_budgets(); // weaken: free-then-answer
    }
}

/// Wakes all that `waiters` notifies.
pub(crate) fn wake_all(waiters: &Notify) {
    as_waker(|| waiters.notify_waiters());
}

/// Calls `f`, which calls wakers. They are code of executors: what they may do is that of any
/// waker, and a panic of one stays here.
pub(super) fn as_waker(f: impl FnOnce()) {
    let _calling = reentry::calling(reentry::Caller::Waker);
    let _ = catch_unwind(AssertUnwindSafe(f));
}
