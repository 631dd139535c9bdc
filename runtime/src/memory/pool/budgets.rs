//! Budgets: shares of a device's memory that are granted as a whole.
//!
//! # Rules
//! 1. Budgets share one pool, [`PoolId::BUDGETS`], all of whose memory is cut at granules. A long
//!    block counts as its length in granules. What is free is whole granules, and any budget, or
//!    memory outside, gets them once their uses have ended.
//! 2. Short blocks of a budget share granules of its own, each of which counts whole. A granule
//!    without a live block returns to the pool at once. The others' free blocks are
//!    [`State::Kept`]: no other request gets them.
//! 3. A short block goes to the place that was freed longest ago, among those that are long
//!    enough. If uses of that place are unfinished, it waits for them. So which granules count
//!    follows from the order of the calls alone. *Why longest ago*: a loop that fills one block
//!    while another stream reads the one before gets them in turns. The exception is a place
//!    behind host code, which the program made wait.
//! 4. A budget ends when its owner has closed it and nothing counts against it.
// Decision: docs/decisions/0068-budgets.md

use super::{GRANULE_BYTES, Grant, Pool, PoolId, Request, ReuseOrder, Rung};
use crate::memory::blocks::{Block, Class, State, Uses, unite};
use crate::memory::snapshot::largest_holders;
use crate::order::Use;
use std::collections::BTreeMap;
use warpline_driver::{MemoryHolder, MemoryShortage};

/// The identity of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BudgetId(u32);

/// The share of a budget that a request asks for.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Share {
    pub(in crate::memory) budget: BudgetId,
    /// The length of a short block, whose request is for a granule.
    pub(super) short_bytes: Option<usize>,
    /// True if it counts already, while the driver is asked for its memory.
    pub(super) is_charged: bool,
}

/// The budgets of a device.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    by_id: BTreeMap<BudgetId, Budget>,
    last_id: u32,
    granted_bytes: usize,
    /// The bytes of the live blocks that count.
    live_bytes: usize,
}

#[derive(Debug)]
struct Budget {
    bytes: usize,
    /// The bytes that count against it.
    used_bytes: usize,
    /// The granules of its short blocks, in the order in which it got them.
    granules: Vec<Granule>,
    is_open: bool,
}

/// A granule that short blocks share.
#[derive(Clone, Copy, Debug)]
struct Granule {
    first: u32,
    live: u32,
}

/// Neighbours in a granule that are free and together long enough for a short block.
#[derive(Debug)]
pub(super) struct Run {
    /// The number of the last free of its blocks.
    freed: u64,
    /// The place of its granule among those of the budget.
    granule: usize,
    blocks: Vec<u32>,
}

/// The memory that serves a request, by the budget that it counts against.
pub(super) enum Source {
    /// Memory that the budget keeps, and a use that it has to be waited for.
    Kept(Run, Option<Use>),
    /// Memory that the budget keeps, once this use and others have ended.
    Busy(Use),
    /// Memory that does not count yet. Also for requests that no budget counts.
    New,
    /// None: the request is beyond the budget.
    Beyond,
}

/// The figures of a device's budgets.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::memory) struct BudgetFigures {
    pub(in crate::memory) count: usize,
    pub(in crate::memory) granted_bytes: usize,
    pub(in crate::memory) used_bytes: usize,
}

impl Pool {
    /// Grants a budget of `bytes`, a number of whole granules.
    pub(in crate::memory) fn open_budget(&mut self, bytes: usize) -> BudgetId {
        let budgets = &mut self.budgets;
        loop {
            budgets.last_id = budgets.last_id.wrapping_add(1);
            let id = BudgetId(budgets.last_id);
            if budgets.by_id.contains_key(&id) {
                continue;
            }
            budgets.by_id.insert(id, Budget { bytes, used_bytes: 0, granules: Vec::new(), is_open: true });
            budgets.granted_bytes += bytes;
            self.note_flags();
            return id;
        }
    }

    /// Closes a budget: its share returns when nothing counts against it any more.
    pub(in crate::memory) fn close_budget(&mut self, id: BudgetId) {
        if let Some(budget) = self.budgets.by_id.get_mut(&id) {
            budget.is_open = false;
            self.end_if_over(id);
        }
    }

    fn end_if_over(&mut self, id: BudgetId) {
        let budgets = &mut self.budgets;
        if let Some(budget) =
            budgets.by_id.get(&id).filter(|budget| !budget.is_open && budget.used_bytes == 0)
        {
            budgets.granted_bytes -= budget.bytes;
            budgets.by_id.remove(&id);
            self.note_flags();
        }
    }

    pub(super) fn has_budgets(&self) -> bool {
        !self.budgets.by_id.is_empty()
    }

    /// Returns the bytes of a budget, and those that count against it.
    pub(in crate::memory) fn budget(&self, id: BudgetId) -> (usize, usize) {
        self.budgets.by_id.get(&id).map_or((0, 0), |budget| (budget.bytes, budget.used_bytes))
    }

    pub(in crate::memory) fn budget_figures(&self) -> BudgetFigures {
        let Budgets { by_id, granted_bytes, .. } = &self.budgets;
        let used_bytes = by_id.values().map(|budget| budget.used_bytes).sum();
        BudgetFigures { count: by_id.len(), granted_bytes: *granted_bytes, used_bytes }
    }

    /// Returns the bytes of live blocks that no budget counts.
    pub(in crate::memory) fn live_bytes_outside(&self) -> usize {
        self.stats.allocated_bytes - self.budgets.live_bytes
    }

    /// Returns the bytes of the memory outside: that of graphs, and the pieces with a live block
    /// that no budget counts.
    pub(in crate::memory) fn bytes_outside(&self) -> usize {
        let mut bytes = 0;
        for segment in self.blocks.segments() {
            let pool = self.blocks[segment.first].pool;
            if pool == PoolId::BUDGETS {
                continue;
            }
            let is_live = |at: u32| self.blocks[at].state == State::Live;
            let pieces = self.blocks.pieces(segment);
            let counts = pieces.filter(|piece| pool.is_graph() || self.blocks.within(*piece).any(is_live));
            bytes += counts.map(|piece| piece.len).sum::<usize>();
        }
        bytes
    }

    /// Returns the shortage of a request that is beyond its budget.
    pub(in crate::memory) fn beyond_budget(
        &self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Option<MemoryShortage> {
        let share = request.share?;
        if !matches!(self.source(request, order), Source::Beyond) {
            return None;
        }
        let (budget_bytes, used_bytes) = self.budget(share.budget);
        let free_bytes = budget_bytes - used_bytes;
        Some(MemoryShortage::Budget { counted_bytes: request.size, free_bytes, budget_bytes })
    }

    /// Returns the lines that hold the most memory of a budget, largest first.
    pub(in crate::memory) fn holders_of_budget(&self, id: BudgetId, at_most: usize) -> Vec<MemoryHolder> {
        let live = self.blocks.iter().filter(|block| block.budget == Some(id));
        largest_holders(live.filter_map(|block| Some((block.site?.location, block.len))), at_most)
    }

    /// Lets a request count before it has its memory. Returns it as charged, or `None` if it does
    /// not need new memory.
    pub(in crate::memory) fn charge(
        &mut self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Option<Request> {
        let Some(share) = request.share else { return Some(*request) };
        if !matches!(self.source(request, order), Source::New) {
            return None;
        }
        self.budgets.by_id.get_mut(&share.budget)?.used_bytes += request.size;
        Some(Request { share: Some(Share { is_charged: true, ..share }), ..*request })
    }

    /// Takes back the charge of a request that got no memory.
    pub(in crate::memory) fn uncharge(&mut self, request: &Request) {
        if let Some(share) = request.share {
            self.discharge(share.budget, request.size);
        }
    }

    fn discharge(&mut self, id: BudgetId, bytes: usize) {
        if let Some(budget) = self.budgets.by_id.get_mut(&id) {
            budget.used_bytes -= bytes;
            self.end_if_over(id);
        }
    }

    /// Serves a request from memory that its budget keeps.
    pub(in crate::memory) fn find_kept(
        &mut self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Option<Grant> {
        match self.source(request, order) {
            Source::Kept(run, wait) => Some(self.hand_out_kept(&run, wait, request, order)),
            _ => None,
        }
    }

    /// Returns true if a request is served from memory that its budget keeps, now or once uses
    /// have ended.
    pub(in crate::memory) fn has_kept(&self, request: &Request, order: &impl ReuseOrder) -> bool {
        matches!(self.source(request, order), Source::Kept(..) | Source::Busy(_))
    }

    /// Returns the memory that serves a request.
    pub(super) fn source(&self, request: &Request, order: &impl ReuseOrder) -> Source {
        let Some(share) = request.share.filter(|share| !share.is_charged) else { return Source::New };
        let Some(budget) = self.budgets.by_id.get(&share.budget) else { return Source::Beyond };
        if let Some(len) = share.short_bytes
            && let Some(source) = self.kept_source(budget, len, request, order)
        {
            return source;
        }
        if budget.bytes - budget.used_bytes < request.size { Source::Beyond } else { Source::New }
    }

    /// Returns the place that was freed longest ago, of those that do not wait for host code.
    fn kept_source(
        &self,
        budget: &Budget,
        len: usize,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Option<Source> {
        let mut runs = Vec::new();
        for (granule, Granule { first, .. }) in budget.granules.iter().enumerate() {
            let blocks: Vec<u32> = self.blocks_of_granule(*first).collect();
            for start in 0..blocks.len() {
                runs.extend(self.run(&blocks[start..], granule, len));
            }
        }
        // Stable, so that the first of several places is the first in the granules.
        runs.sort_by_key(|run| run.freed);
        runs.into_iter().find_map(|run| {
            let uses = self.unfinished_uses(&run, request, order);
            match uses.as_slice() {
                [] => Some(Source::Kept(run, None)),
                &[only] if order.can_wait(only) => Some(Source::Kept(run, Some(only))),
                all => all.iter().all(|used| order.ends(*used)).then(|| Source::Busy(all[0])),
            }
        })
    }

    /// Returns the shortest run that begins with the first of `blocks`.
    fn run(&self, blocks: &[u32], granule: usize, len: usize) -> Option<Run> {
        let (mut bytes, mut freed) = (0, 0);
        for (count, &at) in blocks.iter().enumerate() {
            let block = &self.blocks[at];
            if block.state != State::Kept {
                return None;
            }
            bytes += block.len;
            freed = freed.max(block.freed);
            if bytes >= len {
                return Some(Run { freed, granule, blocks: blocks[..=count].to_vec() });
            }
        }
        None
    }

    /// Returns the uses of a run that the stream of a request is not after.
    fn unfinished_uses(&self, run: &Run, request: &Request, order: &impl ReuseOrder) -> Uses {
        let mut uses = Uses::new();
        for &at in &run.blocks {
            for &used in &self.blocks[at].uses {
                if used.stream != request.stream && !order.after(used) && !order.finished(used) {
                    unite(&mut uses, &[used]);
                }
            }
        }
        uses
    }

    fn blocks_of_granule(&self, first: u32) -> impl Iterator<Item = u32> {
        let mut before = 0;
        self.blocks.along(first).take_while(move |&at| {
            let is_within = before < GRANULE_BYTES;
            before += self.blocks[at].len;
            is_within
        })
    }

    pub(super) fn hand_out_kept(
        &mut self,
        run: &Run,
        wait: Option<Use>,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Grant {
        let first = run.blocks[0];
        for _ in &run.blocks[1..] {
            self.blocks.join_right(first, |used| used.stream != request.stream && order.finished(used));
        }
        match wait {
            Some(_) => self.count_served(Rung::Waited),
            None => self.count_served(Rung::Finished),
        }
        let share = request.share.expect("only a request in a budget has a place there");
        self.cut_short(first, share, run.granule);
        self.make_live(first, request.stream, request.site, wait)
    }

    /// Makes the first bytes of a kept block a short block, which counts as live in its granule.
    fn cut_short(&mut self, index: u32, share: Share, granule: usize) {
        let len = share.short_bytes.expect("a granule is for short blocks");
        if self.blocks[index].len > len {
            self.blocks.split(index, len);
        }
        let block = &mut self.blocks[index];
        block.budget = Some(share.budget);
        block.asked_units = 0;
        self.budgets.live_bytes += block.len;
        if let Some(budget) = self.budgets.by_id.get_mut(&share.budget) {
            budget.granules[granule].live += 1;
        }
    }

    /// Lets a block of the pool of budgets, which is handed out, count against its budget.
    pub(super) fn count_share(&mut self, index: u32, request: &Request) {
        let Some(share) = request.share else { return };
        let Some(budget) = self.budgets.by_id.get_mut(&share.budget) else { return };
        if !share.is_charged {
            budget.used_bytes += request.size;
        }
        if share.short_bytes.is_none() {
            let block = &mut self.blocks[index];
            block.budget = Some(share.budget);
            self.budgets.live_bytes += block.len;
            return;
        }
        budget.granules.push(Granule { first: index, live: 0 });
        let granule = budget.granules.len() - 1;
        let block = &mut self.blocks[index];
        block.state = State::Kept;
        // The earlier owner's number depends on which granule was ready.
        block.freed = 0;
        self.cut_short(index, share, granule);
    }

    /// Takes back a block that counts against a budget.
    pub(super) fn free_in(&mut self, id: BudgetId, index: u32) {
        let Block { class, len, .. } = self.blocks[index];
        self.budgets.live_bytes -= len;
        if class == Class::Large {
            self.shelve(index);
            return self.discharge(id, len);
        }
        self.blocks[index].state = State::Kept;
        let offset = self.blocks.offset(index);
        let start = (self.blocks[index].segment, offset - offset % GRANULE_BYTES);
        let is_here = |granule: &Granule| {
            (self.blocks[granule.first].segment, self.blocks.offset(granule.first)) == start
        };
        let Some(budget) = self.budgets.by_id.get_mut(&id) else { return };
        let Some(at) = budget.granules.iter().position(is_here) else { return };
        budget.granules[at].live -= 1;
        if budget.granules[at].live > 0 {
            return;
        }
        let Granule { first, .. } = budget.granules.remove(at);
        while self.blocks[first].len < GRANULE_BYTES {
            self.blocks.join_right(first, |_| false);
        }
        self.shelve(first);
        self.discharge(id, GRANULE_BYTES);
    }
}
