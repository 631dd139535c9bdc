//! Budgets: shares of a device's memory that are granted as a whole.
//!
//! # Rules
//! 1. Budgets share one pool, [`PoolId::BUDGETS`], all of whose memory is cut at granules. A long
//!    block counts as its length in granules. What is free is whole granules, and any budget, or
//!    memory outside, gets them once their uses have ended.
//! 2. Short blocks of a budget share granules of its own, each of which counts whole. A granule
//!    without a live block returns to the pool at once. The others' free blocks are
//!    [`State::Kept`]: no other request gets them.
//! 3. A short block goes to an end of the shortest run of free neighbours that is long enough: to
//!    the end that was freed longest ago. If uses there are unfinished, it waits for them. So
//!    which granules count follows from the order of the calls alone. *Why the shortest*: then a
//!    loop that repeats its lengths finds the same places again, and needs no more granules in
//!    later rounds. *Why longest ago*: a loop that fills one block while another stream reads the
//!    one before gets them in turns. A place behind host code, which the program made wait, is the
//!    last resort.
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
    most_used_bytes: usize,
    /// The granules of its short blocks, in the order in which it got them.
    granules: Vec<Granule>,
    is_open: bool,
}

impl Budget {
    fn count(&mut self, bytes: usize) {
        self.used_bytes += bytes;
        self.most_used_bytes = self.most_used_bytes.max(self.used_bytes);
    }
}

/// A granule that short blocks share.
#[derive(Clone, Copy, Debug)]
struct Granule {
    first: u32,
    /// The bytes of its free blocks.
    kept_bytes: usize,
}

/// An opening for a short block in a granule: some free neighbours, at an end of a run of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    /// The length of the run.
    run_bytes: usize,
    /// The number of the last free of its blocks.
    freed: u64,
    /// The number of its granule among those of the budget.
    granule: usize,
    first: u32,
    count: usize,
    /// True if it is the last of the run, and the block takes its last bytes.
    is_last: bool,
}

/// The memory that serves a request, by the budget that it counts against.
pub(super) enum Source {
    /// Memory that the budget keeps, and a use that it has to be waited for.
    Kept(Opening, Option<Use>),
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
            budgets.by_id.insert(
                id,
                Budget { bytes, used_bytes: 0, most_used_bytes: 0, granules: Vec::new(), is_open: true },
            );
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

    /// Returns the bytes of a budget, those that count against it, and the most that did so far.
    pub(in crate::memory) fn budget(&self, id: BudgetId) -> (usize, usize, usize) {
        let figures = |budget: &Budget| (budget.bytes, budget.used_bytes, budget.most_used_bytes);
        self.budgets.by_id.get(&id).map_or((0, 0, 0), figures)
    }

    pub(in crate::memory) fn granted_bytes(&self) -> usize {
        self.budgets.granted_bytes
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
        let (budget_bytes, used_bytes, _) = self.budget(share.budget);
        let free_bytes = budget_bytes - used_bytes;
        Some(MemoryShortage::Budget { counted_bytes: request.size, free_bytes, budget_bytes })
    }

    /// Returns the lines that hold the most memory outside, largest first.
    pub(in crate::memory) fn holders_outside(&self, at_most: usize) -> Vec<MemoryHolder> {
        let is_outside = |block: &&Block| block.state == State::Live && block.budget.is_none();
        let live = self.blocks.iter().filter(is_outside);
        largest_holders(live.filter_map(|block| Some((block.site?.location, block.len))), at_most)
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
        self.budgets.by_id.get_mut(&share.budget)?.count(request.size);
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
            Source::Kept(opening, wait) => Some(self.hand_out_kept(&opening, wait, request, order)),
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
        let openings = share.short_bytes.map_or_else(Vec::new, |len| self.openings(budget, len));
        if let Some(source) = self.kept_source(&openings, request, order, true) {
            return source;
        }
        if budget.bytes - budget.used_bytes >= request.size {
            return Source::New;
        }
        self.kept_source(&openings, request, order, false).unwrap_or(Source::Beyond)
    }

    /// Returns the openings for a block of `len` bytes in the granules of a budget, the best
    /// first.
    fn openings(&self, budget: &Budget, len: usize) -> Vec<Opening> {
        let mut openings = Vec::new();
        for (number, granule) in budget.granules.iter().enumerate() {
            if granule.kept_bytes < len {
                continue;
            }
            let blocks: Vec<u32> = self.blocks_of_granule(granule.first).collect();
            let is_kept = |at: u32| self.blocks[at].state == State::Kept;
            for run in blocks.chunk_by(|&a, &b| is_kept(a) && is_kept(b)).filter(|run| is_kept(run[0])) {
                let run_bytes = run.iter().map(|&at| self.blocks[at].len).sum();
                if run_bytes >= len {
                    openings.extend(
                        [false, true].map(|is_last| self.end_of(run, is_last, (number, run_bytes), len)),
                    );
                }
            }
        }
        // Stable, so that the first of equal ones is the first in the granules.
        openings.sort_by_key(|opening| (opening.run_bytes, opening.freed));
        openings
    }

    /// Returns the first or the last `len` bytes of a run.
    fn end_of(
        &self,
        run: &[u32],
        is_last: bool,
        (granule, run_bytes): (usize, usize),
        len: usize,
    ) -> Opening {
        let (mut bytes, mut freed, mut count) = (0, 0, 0);
        while bytes < len {
            let at = if is_last { run[run.len() - 1 - count] } else { run[count] };
            bytes += self.blocks[at].len;
            freed = freed.max(self.blocks[at].freed);
            count += 1;
        }
        let first = if is_last { run[run.len() - count] } else { run[0] };
        Opening { run_bytes, freed, granule, first, count, is_last }
    }

    /// Returns the first of `openings` that may serve a request. With `by_itself`, its uses end by
    /// themselves.
    fn kept_source(
        &self,
        openings: &[Opening],
        request: &Request,
        order: &impl ReuseOrder,
        by_itself: bool,
    ) -> Option<Source> {
        openings.iter().find_map(|opening| {
            let uses = self.unfinished_uses(opening, request, order);
            let all_end = uses.iter().all(|used| order.ends(*used));
            match uses.as_slice() {
                _ if by_itself && !all_end => None,
                [] => Some(Source::Kept(*opening, None)),
                &[only] if order.can_wait(only) => Some(Source::Kept(*opening, Some(only))),
                all => all_end.then(|| Source::Busy(all[0])),
            }
        })
    }

    fn blocks_at(&self, opening: &Opening) -> impl Iterator<Item = u32> {
        self.blocks.along(opening.first).take(opening.count)
    }

    /// Returns the uses of an opening that the stream of a request is not after.
    fn unfinished_uses(&self, opening: &Opening, request: &Request, order: &impl ReuseOrder) -> Uses {
        let mut uses = Uses::new();
        for at in self.blocks_at(opening) {
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
        opening: &Opening,
        wait: Option<Use>,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Grant {
        let mut index = opening.first;
        for _ in 1..opening.count {
            self.blocks.join_right(index, |used| used.stream != request.stream && order.finished(used));
        }
        let share = request.share.expect("only a request in a budget is served there");
        let len = share.short_bytes.expect("a granule is for short blocks");
        let rest = self.blocks[index].len - len;
        if rest > 0 && opening.is_last {
            index = self.blocks.split(index, rest);
        }
        match wait {
            Some(_) => self.count_served(Rung::Waited),
            None => self.count_served(Rung::Finished),
        }
        self.cut_short(index, len, share.budget, opening.granule);
        self.make_live(index, request.stream, request.site, wait)
    }

    /// Makes the first bytes of a kept block a short block.
    fn cut_short(&mut self, index: u32, len: usize, id: BudgetId, granule: usize) {
        if self.blocks[index].len > len {
            self.blocks.split(index, len);
        }
        let block = &mut self.blocks[index];
        block.budget = Some(id);
        block.asked_units = 0;
        self.budgets.live_bytes += len;
        if let Some(budget) = self.budgets.by_id.get_mut(&id) {
            budget.granules[granule].kept_bytes -= len;
        }
    }

    /// Lets a block of the pool of budgets, which is handed out, count against its budget.
    pub(super) fn count_share(&mut self, index: u32, request: &Request) {
        let Some(share) = request.share else { return };
        let Some(budget) = self.budgets.by_id.get_mut(&share.budget) else { return };
        if !share.is_charged {
            budget.count(request.size);
        }
        let Some(len) = share.short_bytes else {
            let block = &mut self.blocks[index];
            block.budget = Some(share.budget);
            self.budgets.live_bytes += block.len;
            return;
        };
        budget.granules.push(Granule { first: index, kept_bytes: GRANULE_BYTES });
        let granule = budget.granules.len() - 1;
        let block = &mut self.blocks[index];
        block.state = State::Kept;
        // The earlier owner's number depends on which granule was ready.
        block.freed = 0;
        self.cut_short(index, len, share.budget, granule);
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
        budget.granules[at].kept_bytes += len;
        if budget.granules[at].kept_bytes < GRANULE_BYTES {
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
