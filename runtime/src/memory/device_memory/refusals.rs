//! The errors of requests that get no memory.

use super::DeviceMemory;
use crate::memory::pool::{GRANULE_BYTES, Pool, Request, ReuseOrder};
use warpline_driver::internal::ErrorParts;
use warpline_driver::{ByteSize, Error, ErrorKind, MemoryShortage, OutOfMemory};

impl DeviceMemory {
    /// Returns the details of an allocation that cannot be served. `earlier`: the number of
    /// requests that wait, and their bytes.
    #[cold]
    pub(super) fn out_of_memory(
        &self,
        pool: &Pool,
        len_bytes: usize,
        shortage: MemoryShortage,
        order: &impl ReuseOrder,
        earlier: (usize, usize),
    ) -> OutOfMemory {
        let stats = pool.stats();
        let mut details = OutOfMemory::new(self.driver.id(), len_bytes, shortage);
        details.allocated_bytes = stats.allocated_bytes;
        details.graph_bytes = pool.free_bytes_of_graphs();
        details.cached_bytes = stats.reserved_bytes - stats.allocated_bytes - details.graph_bytes;
        details.budget_bytes = stats.budget_bytes;
        details.outside_bytes = if stats.budgets > 0 { pool.bytes_outside() + self.not_freed() } else { 0 };
        details.not_freed_bytes = self.not_freed();
        details.waiting_bytes = pool.unfinished_bytes(&|used| order.is_over(used));
        let mut unfinished = pool.uses_of_free_memory().filter(|used| !order.is_over(*used));
        details.held_up_by = unfinished.find_map(|used| order.held_up_by(used));
        (details.earlier_requests, details.earlier_bytes) = earlier;
        details.holders = pool.largest_holders(OutOfMemory::MOST_HOLDERS);
        details
    }

    /// Returns the error of a budget that does not fit into the capacity beside the memory
    /// outside.
    #[cold]
    pub(super) fn no_budget(
        &self,
        len_bytes: usize,
        pool: &Pool,
        (capacity, outside): (usize, usize),
    ) -> Error {
        let (free_bytes, total_bytes) =
            (capacity.saturating_sub(outside), self.driver.properties().total_bytes);
        let shortage = match self.limit.filter(|limit| limit.bytes <= capacity) {
            Some(limit) => limit.shortage(outside),
            None => MemoryShortage::Device { free_bytes, total_bytes },
        };
        let counted = len_bytes.max(1).checked_next_multiple_of(GRANULE_BYTES);
        let counts = match counted.filter(|counted| *counted != len_bytes) {
            Some(counted) => format!(", which counts as {},", ByteSize(counted)),
            None => String::new(),
        };
        let mut text = format!(
            "a budget of {}{counts} does not fit on {}: {shortage}, and {} are in use outside of budgets",
            ByteSize(len_bytes),
            self.driver.id(),
            ByteSize(outside)
        );
        let holders = pool.holders_outside(OutOfMemory::MOST_HOLDERS);
        let mut word = "; largest holders outside:";
        for holder in &holders {
            text += &format!("{word} {holder}");
            word = ",";
        }
        text += "; ask for less";
        if outside > 0 {
            text += ", or allocate the rest in the scopes of budgets, too";
        }
        if self.limit.is_some() {
            text += ", or raise the limit";
        }
        let mut details = OutOfMemory::new(self.driver.id(), len_bytes, shortage);
        let stats = self.stats_of(pool);
        details.allocated_bytes = stats.allocated_bytes;
        details.budget_bytes = stats.budget_bytes;
        details.not_freed_bytes = stats.not_freed_bytes;
        details.outside_bytes = outside;
        details.holders = holders;
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

#[cold]
pub(super) fn refusal_of(details: OutOfMemory) -> Error {
    Error::new(ErrorKind::OutOfMemory, details.to_string()).with_out_of_memory(details)
}
