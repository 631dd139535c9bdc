//! The pool that chooses the block of each allocation.
//!
//! It is pure: it knows addresses, lengths, streams and tickets, and no driver.
//!
//! # The rule
//! A free block keeps the newest ticket of each stream that used it. It is handed out only if each
//! of these is **before** the allocating stream (its own, or covered by its known clock), or
//! **finished**, or **waited for** by each stream before it touches the block ([`Grant::wait`]).
//!
//! # The ladder
//! 1. The block of exactly that size which the stream itself freed last ([`Recent`]), without any
//!    check.
//! 2. The tightest fit whose uses are all before the stream or finished; among equals, the one
//!    freed longest ago. Both kinds cost the stream nothing, so the fit decides between them. If
//!    there is memory without any use, only a limited number of blocks is examined for a tighter
//!    one. So thousands of streams with a block in flight each do not slow each other down.
//! 3. Free neighbours that are all usable in that way and together large enough: joined. Only as
//!    many as needed are joined, so the others keep the sizes that made them hits.
//! 4. A block that one wait would release, if two or more of a fitting size are queued behind the
//!    same stream; of these the one freed longest ago. *Why two*: a loop that allocates on one
//!    stream and hands over to another never sees its block released before the next iteration.
//!    With one block queued, it gets a second, so that one can be filled while the other is read,
//!    as double buffering needs. With two queued it waits, on the device while the host continues,
//!    so a loop that never synchronizes stays bounded. *Why behind the same stream*: a wait ties
//!    two streams together that the program did not tie. Streams that each hold one block do not do
//!    that to a third one.
//! 5. Outside, in [`DeviceMemory`](super::DeviceMemory): more memory from the driver; then
//!    returning cached memory to it and trying again; then rung 4 whatever is queued; then making
//!    the driver release what it keeps for libraries.
//!
//! A split piece inherits the uses of the whole; joined blocks have the union.
//!
//! # While a block is live
//! It keeps the uses that were unfinished when it was handed out. If it is freed with a use by the
//! allocating stream, that use is after all of them (the stream was, or waited) and replaces them.
//! If it is freed without one (never touched, or only by other streams), they are kept: an
//! allocation that is returned unused is as unfinished as before.
// Decision: docs/decisions/0024-busy-memory-is-reused-behind-two-blocks.md
#![forbid(unsafe_code)]

mod budgets;
mod figures;
mod growth;
mod ladder;
mod reuse;
mod segments;
mod waits;

use super::blocks::{Block, Blocks, Class, NONE, State, unite};
use super::recent::Recent;
use super::stats::MemoryStats;
use super::zones::Zones;
use crate::order::{Site, StreamId, Use};
pub(crate) use budgets::BudgetId;
use budgets::{Budgets, Share, Source};
pub(super) use growth::{GRANULE_BYTES, Leaving, piece_bytes};
pub(crate) use reuse::ReuseOrder;
use reuse::{Rung, Verdict, judge};
use std::collections::BTreeSet;
pub(super) use waits::Wait;
use warpline_driver::DevicePtr;

/// The unit of which all lengths and addresses are multiples.
pub(super) const UNIT_BYTES: usize = 512;
/// The maximum length of a small block. Large ones are longer.
pub(super) const SMALL_BYTES: usize = 1 << 20;
/// The maximum length of a block that shares a segment with others.
const MIDDLE_BYTES: usize = 10 << 20;
const SMALL_SEGMENT_BYTES: usize = 2 << 20;
const MIDDLE_SEGMENT_BYTES: usize = 20 << 20;
const LARGE_UNIT_BYTES: usize = 2 << 20;
/// The number of blocks with uses that are examined where one without uses would do.
const LOOKS: usize = 32;

/// The pool that a block belongs to. Pools never exchange blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolId(pub(crate) u32);

impl PoolId {
    pub(crate) const DEFAULT: PoolId = PoolId(0);
    /// The pool that all budgets share. Graphs have those behind it.
    pub(crate) const BUDGETS: PoolId = PoolId(1);

    pub(super) fn is_graph(self) -> bool {
        self > Self::BUDGETS
    }
}

/// The identity of a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockId {
    index: u32,
    generation: u32,
}

/// An allocated block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) ptr: DevicePtr,
    pub(crate) block: BlockId,
    /// The length of the block, at least what was asked for.
    pub(crate) len_bytes: usize,
    /// A use that each stream has to wait for before it touches the block. If the block is freed
    /// and the allocating stream has not touched it, the allocation itself is no use of it.
    pub(crate) wait: Option<Use>,
}

/// A request for memory: its size, pool, stream and call site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) size: usize,
    pub(super) pool: PoolId,
    pub(super) stream: StreamId,
    pub(super) site: Site,
    /// The share of a budget that it asks for.
    pub(super) share: Option<Share>,
}

impl Request {
    /// Returns a request for `len_bytes` in `pool` or, if there is a budget, in that of budgets.
    pub(super) fn new(
        len_bytes: usize,
        pool: PoolId,
        budget: Option<BudgetId>,
        stream: StreamId,
        site: Site,
    ) -> Self {
        let size = units(len_bytes) * UNIT_BYTES;
        let Some(budget) = budget else { return Request { size, pool, stream, site, share: None } };
        let short_bytes = (size <= SMALL_BYTES).then_some(size);
        let share = Some(Share { budget, short_bytes, is_charged: false });
        Request { size: size.next_multiple_of(GRANULE_BYTES), pool: PoolId::BUDGETS, stream, site, share }
    }

    pub(super) fn class(&self) -> Class {
        let len = self.share.and_then(|share| share.short_bytes).unwrap_or(self.size);
        if len <= SMALL_BYTES { Class::Small } else { Class::Large }
    }

    /// Returns the number of bytes to ask the driver for.
    pub(super) fn segment_bytes(&self) -> usize {
        if self.share.is_some() {
            self.size
        } else if self.size <= SMALL_BYTES {
            SMALL_SEGMENT_BYTES
        } else if self.size <= MIDDLE_BYTES {
            MIDDLE_SEGMENT_BYTES
        } else {
            self.size.next_multiple_of(LARGE_UNIT_BYTES)
        }
    }
}

/// Returns whether the rest of a block is worth a block of its own.
fn worth_splitting(class: Class, rest: usize) -> bool {
    match class {
        Class::Small => rest >= UNIT_BYTES,
        Class::Large => rest > SMALL_BYTES,
    }
}

/// Returns `len_bytes` in units; zero bytes are served as one unit.
#[inline]
pub(super) fn units(len_bytes: usize) -> usize {
    len_bytes.div_ceil(UNIT_BYTES).max(1)
}

/// A free block's place among the others: by whether it has uses, by fit, then by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    pool: PoolId,
    class: Class,
    used: bool,
    len: usize,
    freed: u64,
    block: u32,
}

impl Rank {
    fn of(index: u32, block: &Block) -> Self {
        let Block { pool, class, used, len, freed, .. } = *block;
        Rank { pool, class, used, len, freed, block: index }
    }
}

/// The blocks of a device.
#[derive(Debug)]
pub(super) struct Pool {
    blocks: Blocks,
    recent: Recent,
    /// The free blocks that are not in `recent`.
    shelf: BTreeSet<Rank>,
    /// Scratch: blocks that one wait would release.
    waits: Vec<(Use, Rank)>,
    /// The number of frees so far.
    freed: u64,
    /// The number of allocations so far, including refused ones.
    asked: u64,
    /// The number of the allocation that is planned to fail, or `u64::MAX`.
    refusal: u64,
    /// The most bytes that were ever live, as of the last time that the statistics were reset.
    most_live_before: usize,
    /// The maximum length of a piece that is mapped.
    piece_bytes: usize,
    budgets: Budgets,
    /// True while requests wait for memory. No other request may take any then.
    is_awaited: bool,
    budgets_awaited: bool,
    /// True while requests wait for memory or for a budget: then a free wakes them.
    wakes: bool,
    /// True while requests wait for memory or budgets are granted: then not every request may have
    /// a block of `recent`.
    is_guarded: bool,
    /// Statistics, without those that are derived from the blocks.
    stats: MemoryStats,
}

impl Pool {
    pub(super) fn new(zones: Zones, piece_bytes: usize) -> Self {
        Pool {
            piece_bytes,
            budgets: Budgets::default(),
            blocks: Blocks::new(zones),
            recent: Recent::new(),
            shelf: BTreeSet::new(),
            waits: Vec::new(),
            freed: 0,
            asked: 0,
            refusal: u64::MAX,
            most_live_before: 0,
            is_awaited: false,
            budgets_awaited: false,
            wakes: false,
            is_guarded: false,
            stats: MemoryStats::default(),
        }
    }

    /// Takes a recently freed block: rung 1. Also counts the allocation, so it is called once for
    /// each, before anything else.
    #[inline]
    pub(super) fn take_recent(&mut self, len_bytes: usize, stream: StreamId, site: Site) -> Option<Grant> {
        self.count_allocation();
        if self.refuses() || self.is_guarded {
            return None;
        }
        self.pop_recent(len_bytes, stream, site)
    }

    /// Does the same for an allocation that was counted, that no budget counts, and before which
    /// no request waits.
    #[inline]
    pub(super) fn pop_recent(&mut self, len_bytes: usize, stream: StreamId, site: Site) -> Option<Grant> {
        let units = u32::try_from(units(len_bytes)).ok()?;
        let index = self.recent.pop(stream, units, &self.blocks)?;
        self.stats.served.own += 1;
        Some(self.make_live(index, stream, site, None))
    }

    #[inline(always)]
    fn make_live(&mut self, index: u32, stream: StreamId, site: Site, wait: Option<Use>) -> Grant {
        let block = &mut self.blocks[index];
        block.state = State::Live;
        block.generation = block.generation.wrapping_add(1);
        block.stream = stream;
        block.site = Some(site);
        self.stats.live_blocks += 1;
        self.stats.allocated_bytes += block.len;
        self.stats.peak_allocated_bytes = self.stats.peak_allocated_bytes.max(self.stats.allocated_bytes);
        let (ptr, generation) = (DevicePtr(block.address), block.generation);
        Grant { ptr, block: BlockId { index, generation }, len_bytes: block.len, wait }
    }

    /// Returns true while requests wait for memory.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Returns true if the caller is to wake those that wait, as after a free.
    #[inline]
    pub(super) fn wakes(&self) -> bool {
        self.wakes
    }

    /// Notes whether requests wait for memory.
    pub(super) fn set_awaited(&mut self, is_awaited: bool) {
        self.is_awaited = is_awaited;
        self.note_flags();
    }

    /// Notes whether requests wait for a budget.
    pub(super) fn set_budgets_awaited(&mut self, is_awaited: bool) {
        self.budgets_awaited = is_awaited;
        self.note_flags();
    }

    fn note_flags(&mut self) {
        self.wakes = self.is_awaited || self.budgets_awaited;
        self.is_guarded = self.is_awaited || self.has_budgets();
    }

    /// Counts an allocation, for callers that skip [`take_recent`](Self::take_recent).
    #[inline]
    pub(super) fn count_allocation(&mut self) {
        self.asked += 1;
    }

    /// Returns whether a fault plan refuses the allocation counted last.
    #[inline]
    pub(super) fn refuses(&self) -> bool {
        self.asked == self.refusal
    }

    pub(super) fn refuse_allocation(&mut self, nth: u64) {
        self.refusal = self.asked + nth;
    }

    /// Adds new memory from the driver, and serves the request from it.
    pub(super) fn grow(&mut self, ptr: DevicePtr, len: usize, request: &Request) -> Grant {
        let block = self.blocks.add_segment(ptr.0, len, request.class(), request.pool);
        self.note_reserved(len);
        self.hand_out(block, request, Rung::Grown, None)
    }

    fn note_reserved(&mut self, more: usize) {
        self.stats.reserved_bytes += more;
        self.stats.peak_reserved_bytes = self.stats.peak_reserved_bytes.max(self.stats.reserved_bytes);
    }

    /// Makes a free block that is in no list live, and shelves what is left over.
    fn hand_out(&mut self, index: u32, request: &Request, rung: Rung, wait: Option<Use>) -> Grant {
        let rest = self.blocks[index].len - request.size;
        if rest > 0 && worth_splitting(request.class(), rest) {
            let rest = self.blocks.split(index, request.size);
            self.shelve(rest);
        }
        self.count_served(rung);
        self.count_share(index, request);
        self.blocks[index].asked_units = match request.pool {
            PoolId::DEFAULT => u32::try_from(request.size / UNIT_BYTES).unwrap_or(0),
            _ => 0,
        };
        self.make_live(index, request.stream, request.site, wait)
    }

    fn count_served(&mut self, rung: Rung) {
        match rung {
            Rung::Own => self.stats.served.own += 1,
            Rung::Ordered => self.stats.served.ordered += 1,
            Rung::Finished => self.stats.served.finished += 1,
            Rung::Merged => self.stats.served.merged += 1,
            Rung::Waited => self.stats.served.waited += 1,
            Rung::Grown => self.stats.served.grown += 1,
        }
    }

    /// Takes a block back.
    #[inline(always)]
    pub(super) fn free(&mut self, id: BlockId, uses: &[Use]) {
        let Some(block) = self.blocks.get_mut(id.index) else {
            debug_assert!(false, "a block of another pool was freed");
            return;
        };
        if block.generation != id.generation || block.state != State::Live {
            debug_assert!(false, "a block was freed twice");
            return;
        }
        self.stats.live_blocks -= 1;
        self.stats.allocated_bytes -= block.len;
        self.freed += 1;
        block.freed = self.freed;
        if let [only] = uses
            && only.stream == block.stream
        {
            block.uses.clear();
            block.uses.push(*only);
            let (stream, units) = (block.stream, block.asked_units);
            self.keep_recent(id.index, stream, units);
        } else {
            self.free_of_many(id.index, uses);
        }
    }

    #[inline(never)]
    fn free_of_many(&mut self, index: u32, uses: &[Use]) {
        let block = &mut self.blocks[index];
        if uses.iter().any(|used| used.stream == block.stream) {
            block.uses.clear();
        }
        unite(&mut block.uses, uses);
        let units = block.asked_units;
        match block.uses.as_slice() {
            [] => {
                let stream = block.stream;
                self.keep_recent(index, stream, units);
            }
            &[only] => self.keep_recent(index, only.stream, units),
            _ => self.shelve_freed(index),
        }
    }

    /// Always inlined, like the callers from the drop of an allocation on: three calls are a
    /// twentieth of that drop.
    #[inline(always)]
    fn keep_recent(&mut self, index: u32, stream: StreamId, units: u32) {
        if units == 0 {
            return self.shelve_freed(index);
        }
        self.blocks[index].state = State::Recent;
        let evicted = self.recent.push(stream, units, index, &mut self.blocks);
        if evicted != NONE {
            self.shelve_list(evicted);
        }
    }

    #[inline(never)]
    fn shelve_freed(&mut self, index: u32) {
        match self.blocks[index].budget.take() {
            Some(budget) => self.free_in(budget, index),
            None => self.shelve(index),
        }
    }

    fn shelve(&mut self, index: u32) {
        let block = &mut self.blocks[index];
        block.state = State::Shelved;
        block.used = !block.uses.is_empty();
        self.shelf.insert(Rank::of(index, block));
    }

    #[cold]
    fn shelve_list(&mut self, mut head: u32) {
        while head != NONE {
            let below = self.blocks[head].below;
            self.shelve(head);
            head = below;
        }
    }

    /// Moves recently freed blocks, of those requested lengths that `wanted` holds for, to the
    /// shelf, where every stream finds them. Each was put there by one free, so this costs no more
    /// than the frees did.
    fn spill(&mut self, wanted: impl Fn(usize) -> bool) {
        while let Some(head) = self.recent.spill(|units| wanted(units as usize * UNIT_BYTES)) {
            self.shelve_list(head);
        }
    }
}
