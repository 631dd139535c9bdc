//! Stands in for the pool of device memory: units that are free, and units behind one use each.

use crate::driver::MemoryShortage;
use crate::order::{Site, StreamId, Use};
use crate::sync::Arc;

pub(crate) const UNIT_BYTES: usize = 512;

/// A granule is a unit here.
pub(crate) const GRANULE_BYTES: usize = UNIT_BYTES;

pub(crate) fn units(len_bytes: usize) -> usize {
    len_bytes.div_ceil(UNIT_BYTES)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PoolId(u32);

/// The identity of a budget, which is its number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BudgetId(pub(crate) usize);

impl PoolId {
    pub(crate) const DEFAULT: PoolId = PoolId(0);
}

/// A live block, by its number of units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockId(pub(crate) usize);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) block: BlockId,
}

#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) size: usize,
    pub(crate) pool: PoolId,
    pub(crate) stream: StreamId,
    pub(crate) site: Site,
    pub(crate) share: Option<Share>,
}

/// The share of a budget that a request asks for.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    pub(crate) budget: BudgetId,
}

impl Request {
    pub(crate) fn new(
        size: usize,
        pool: PoolId,
        budget: Option<BudgetId>,
        stream: StreamId,
        site: Site,
    ) -> Self {
        Request { size, pool, stream, site, share: budget.map(|budget| Share { budget }) }
    }
}

pub(crate) enum Wait {
    Over,
    For(Use),
}

pub(crate) trait ReuseOrder {
    fn is_over(&self, used: Use) -> bool;
}

impl<T: ReuseOrder + ?Sized> ReuseOrder for Arc<T> {
    fn is_over(&self, used: Use) -> bool {
        (**self).is_over(used)
    }
}

/// A budget. It is over once it is closed and nothing counts.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: usize,
    used_bytes: usize,
    is_open: bool,
}

impl Budget {
    fn granted_bytes(&self) -> usize {
        if self.is_open || self.used_bytes > 0 { self.bytes } else { 0 }
    }
}

/// The memory of a device. All of its uses end by themselves, and all of its blocks are outside of
/// budgets.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub(crate) is_awaited: bool,
    pub(crate) free: usize,
    /// In the order of their frees.
    pub(crate) behind: Vec<Use>,
    /// The units of the live blocks.
    pub(crate) live: usize,
    pub(crate) budgets_awaited: bool,
    /// By number.
    pub(crate) budgets: Vec<Budget>,
}

/// The budgets, like those of the runtime.
impl Pool {
    /// Fails the model if the budget does not fit.
    pub(crate) fn open_budget(&mut self, bytes: usize) -> BudgetId {
        self.budgets.push(Budget { bytes, used_bytes: 0, is_open: true });
        let promised = self.granted_bytes() + self.bytes_outside();
        assert!(promised <= self.len_bytes(), "more is granted than there is");
        BudgetId(self.budgets.len() - 1)
    }

    /// Fails the model if the budget was closed before.
    pub(crate) fn close_budget(&mut self, id: BudgetId) {
        assert!(std::mem::take(&mut self.budgets[id.0].is_open), "it was closed before");
    }

    /// Lets a request count before it has its memory.
    pub(crate) fn charge(&mut self, request: &Request) -> Result<(), MemoryShortage> {
        let Some(share) = request.share else { return Ok(()) };
        let budget = &mut self.budgets[share.budget.0];
        let free_bytes = budget.granted_bytes() - budget.used_bytes;
        if free_bytes < request.size {
            return Err(MemoryShortage::Budget { free_bytes });
        }
        budget.used_bytes += request.size;
        Ok(())
    }

    /// Takes back the charge of a request that got no memory.
    pub(crate) fn uncharge(&mut self, request: &Request) {
        if let Some(share) = request.share {
            self.budgets[share.budget.0].used_bytes -= request.size;
        }
    }

    pub(crate) fn budget(&self, id: BudgetId) -> (usize, usize, usize) {
        (self.budgets[id.0].bytes, self.budgets[id.0].used_bytes, self.budgets[id.0].used_bytes)
    }

    pub(crate) fn granted_bytes(&self) -> usize {
        self.budgets.iter().map(Budget::granted_bytes).sum()
    }

    pub(crate) fn bytes_outside(&self) -> usize {
        self.live * UNIT_BYTES
    }

    pub(crate) fn live_bytes_outside(&self) -> usize {
        self.bytes_outside()
    }

    pub(crate) fn holders_of_budget(&self, _id: BudgetId, _at_most: usize) -> Vec<()> {
        Vec::new()
    }

    pub(crate) fn set_budgets_awaited(&mut self, is_awaited: bool) {
        self.budgets_awaited = is_awaited;
    }
}

impl Pool {
    pub(crate) fn set_awaited(&mut self, is_awaited: bool) {
        self.is_awaited = is_awaited;
    }

    pub(crate) fn wakes(&self) -> bool {
        self.is_awaited || self.budgets_awaited
    }

    /// Returns the bytes of all memory.
    pub(crate) fn len_bytes(&self) -> usize {
        (self.free + self.behind.len() + self.live) * UNIT_BYTES
    }

    /// Returns false, because no budget keeps memory.
    pub(crate) fn has_kept(&self, _request: &Request, _order: &impl ReuseOrder) -> bool {
        false
    }

    pub(crate) fn find(&mut self, request: &Request, order: &impl ReuseOrder) -> Option<Grant> {
        let wanted = units(request.size);
        if self.free < wanted {
            let before = self.behind.len();
            self.behind.retain(|&used| !order.is_over(used));
            self.free += before - self.behind.len();
        }
        self.free = self.free.checked_sub(wanted)?;
        assert!(request.share.is_none(), "no model allocates in a budget");
        self.live += wanted;
        Some(Grant { block: BlockId(wanted) })
    }

    pub(crate) fn wait_for(
        &self,
        request: &Request,
        order: &impl ReuseOrder,
        _room: usize,
        _can_free: bool,
    ) -> Option<Wait> {
        let missing = units(request.size).saturating_sub(self.free);
        let unfinished: Vec<Use> = self.behind.iter().copied().filter(|&used| !order.is_over(used)).collect();
        let over = self.behind.len() - unfinished.len();
        match () {
            () if missing <= over => Some(Wait::Over),
            () if missing <= self.behind.len() => Some(Wait::For(unfinished[0])),
            () => None,
        }
    }

    pub(crate) fn bytes_to_come(&self, _request: &Request, _order: &impl ReuseOrder) -> usize {
        (self.free + self.behind.len()) * UNIT_BYTES
    }

    pub(crate) fn free(&mut self, block: BlockId, uses: &[Use]) {
        assert!(uses.is_empty(), "no model uses what it was granted");
        self.live -= block.0;
        self.free += block.0;
    }
}
