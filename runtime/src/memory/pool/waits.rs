//! The use that a request waits for on the host, when no rung of the ladder serves it.

use super::ladder::serves;
use super::{GRANULE_BYTES, Pool, Request, ReuseOrder, Source};
use crate::memory::blocks::{Block, NONE, Segment, State};
use crate::order::Use;
use std::ops::Range;

/// A use that a request waits for, among others.
#[derive(Clone, Copy)]
struct Awaited {
    /// The number of the free that freed the block of that use.
    freed: u64,
    used: Use,
}

/// Free memory that would serve a request, with the first use that it waits for. `None`: every use
/// is over.
type Hope = Option<Awaited>;

/// The wait that a request needs which the ladder does not serve.
pub(in crate::memory) enum Wait {
    /// Nothing any more: the ladder serves it now.
    Over,
    For(Use),
}

/// Returns the use whose block was freed first.
fn older(a: Hope, b: Hope) -> Hope {
    a.into_iter().chain(b).min_by_key(|awaited| awaited.freed)
}

/// Returns the hope that asks for less, of what two places offer.
fn better(a: Option<Hope>, b: Option<Hope>) -> Option<Hope> {
    a.into_iter().chain(b).min_by_key(|hope| hope.map_or(0, |awaited| awaited.freed + 1))
}

/// Returns what the uses of a free block leave to wait for, by `is_over`. Returns `None` if one of
/// them does not end by itself.
fn hope_of(block: &Block, order: &impl ReuseOrder, is_over: impl Fn(Use) -> bool) -> Option<Hope> {
    if !block.is_free() {
        return None;
    }
    let mut hope = None;
    for &used in block.uses.iter().filter(|used| !is_over(**used)) {
        if !order.ends(used) {
            return None;
        }
        hope = older(hope, Some(Awaited { freed: block.freed, used }));
    }
    Some(hope)
}

/// Returns true if at most one use of a free block would have to be waited for on the device.
fn is_after_one(block: &Block, request: &Request, order: &impl ReuseOrder) -> bool {
    let is_before = |used: Use| used.stream == request.stream || order.after(used) || order.finished(used);
    let mut others = block.uses.iter().filter(|used| !is_before(**used));
    others.next().is_none_or(|used| order.can_wait(*used)) && others.next().is_none()
}

impl Pool {
    /// Returns what to wait for, if the ladder would serve `request` once all uses that end by
    /// themselves have ended. `room`: the bytes that the limit leaves. `can_free`: true if
    /// segments can be returned to the driver.
    pub(in crate::memory) fn wait_for(
        &self,
        request: &Request,
        order: &impl ReuseOrder,
        room: usize,
        can_free: bool,
    ) -> Option<Wait> {
        match self.source(request, order) {
            Source::Kept(..) => return Some(Wait::Over),
            Source::Busy(used) => return Some(Wait::For(used)),
            Source::Beyond => return None,
            Source::New => {}
        }
        if self.has_block_after_one(request, order) {
            return Some(Wait::Over);
        }
        let pieces = if can_free { self.to_return(order) } else { Vec::new() };
        let mut best = better(self.in_place(request, order), returned(&pieces, &(0..0), request.size, room));
        for Stretch { bytes, addresses, hope } in self.beside_holes(request, order) {
            let more = granules(request.size.saturating_sub(bytes));
            let rest = returned(&pieces, &addresses, more, room);
            best = better(best, rest.map(|rest| older(hope, rest)));
        }
        let hope = best?;
        Some(hope.map_or(Wait::Over, |awaited| Wait::For(awaited.used)))
    }

    /// Returns the bytes of free memory that `request` could be served from, now or once uses have
    /// ended by themselves.
    pub(in crate::memory) fn bytes_to_come(&self, request: &Request, order: &impl ReuseOrder) -> usize {
        let ends = |used: Use| order.is_over(used) || order.ends(used);
        let comes = |block: &&Block| {
            !block.pool.is_graph()
                && block.is_free()
                && (block.uses.iter().all(|used| ends(*used)) || is_after_one(block, request, order))
        };
        self.blocks.iter().filter(comes).map(|block| block.len).sum()
    }

    /// Returns true if a block serves `request` now, or after one wait on the device. Then nothing
    /// but an earlier request keeps it from being served.
    fn has_block_after_one(&self, request: &Request, order: &impl ReuseOrder) -> bool {
        self.blocks.iter().any(|block| {
            block.is_free()
                && (block.pool, block.class) == (request.pool, request.class())
                && serves(&self.blocks, block, request)
                && is_after_one(block, request, order)
        })
    }

    /// Returns the uses of free memory that no graph owns, finished or not.
    pub(in crate::memory) fn uses_of_free_memory(&self) -> impl Iterator<Item = Use> {
        let is_free = |block: &&Block| !block.pool.is_graph() && block.is_free();
        self.blocks.iter().filter(is_free).flat_map(|block| block.uses.iter().copied())
    }

    /// Looks for neighbours that are large enough together. What was captured has not run, so no
    /// block of a graph is worth a wait.
    fn in_place(&self, request: &Request, order: &impl ReuseOrder) -> Option<Hope> {
        if request.pool.is_graph() {
            return None;
        }
        let is_over = |used: Use| used.stream == request.stream || order.after(used) || order.finished(used);
        let mut best = None;
        for segment in self.blocks.segments() {
            let first = &self.blocks[segment.first];
            // One of fixed length in the pool of budgets is one block.
            let is_served = segment.grows || serves(&self.blocks, first, request) || request.share.is_none();
            if (first.pool, first.class) != (request.pool, request.class()) || !is_served {
                continue;
            }
            let (mut len, mut run) = (0, None);
            for at in self.blocks.along(segment.first) {
                let block = &self.blocks[at];
                (len, run) = match hope_of(block, order, is_over) {
                    Some(hope) => (len + block.len, older(run, hope)),
                    None => (0, None),
                };
                if len >= request.size {
                    best = better(best, Some(run));
                    (len, run) = (0, None);
                }
            }
        }
        best
    }

    /// Returns the memory that could return to the driver, by when it was freed: segments of fixed
    /// length, and pieces of those that grow.
    fn to_return(&self, order: &impl ReuseOrder) -> Vec<ToReturn> {
        let may_return = |segment: &&Segment| !self.blocks[segment.first].pool.is_graph();
        let mut pieces = Vec::new();
        for segment in self.blocks.segments().filter(may_return) {
            for piece in self.blocks.pieces(segment) {
                let blocks = || self.blocks.within(piece).map(|at| &self.blocks[at]);
                let hope = hope_of_all(blocks(), order, |used| order.is_over(used));
                let freed = blocks().map(|block| block.freed).max().unwrap_or(0);
                let addresses = self.blocks.addresses(segment, piece.offset, piece.len);
                pieces.extend(hope.map(|hope| ToReturn { freed, len: piece.len, addresses, hope }));
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.freed);
        pieces
    }

    /// Returns the stretches of free memory beside holes, which new memory could be mapped beside.
    fn beside_holes(&self, request: &Request, order: &impl ReuseOrder) -> Vec<Stretch> {
        if request.pool.is_graph() {
            return Vec::new();
        }
        let is_over = |used: Use| used.stream == request.stream || order.after(used) || order.finished(used);
        let comes = |at: u32| hope_of(&self.blocks[at], order, is_over).is_some();
        let is_hole = |at: u32| at != NONE && self.blocks[at].state == State::Hole;
        let mut found = Vec::new();
        let grows = |segment: &&Segment| {
            let first = &self.blocks[segment.first];
            segment.grows && (first.pool, first.class) == (request.pool, request.class())
        };
        for segment in self.blocks.segments().filter(grows) {
            let all: Vec<u32> = self.blocks.along(segment.first).collect();
            let stretches = all.chunk_by(|&a, &b| comes(a) == comes(b)).filter(|stretch| comes(stretch[0]));
            for stretch in stretches {
                let (first, last) = (&self.blocks[stretch[0]], &self.blocks[stretch[stretch.len() - 1]]);
                let hole = |at: u32| if is_hole(at) { self.blocks[at].len } else { 0 };
                let blocks = || stretch.iter().map(|&at| &self.blocks[at]);
                let bytes: usize = blocks().map(|block| block.len).sum();
                // Memory is mapped to one hole.
                let more = granules(request.size.saturating_sub(bytes));
                if more > hole(first.left).max(hole(last.right)) {
                    continue;
                }
                let addresses = first.address..last.address + last.len as u64;
                let hope = hope_of_all(blocks(), order, is_over);
                found.extend(hope.map(|hope| Stretch { bytes, addresses, hope }));
            }
        }
        found
    }
}

/// Free memory beside a hole.
struct Stretch {
    bytes: usize,
    addresses: Range<u64>,
    hope: Hope,
}

/// A piece of memory that returns to the driver if it has to, once its uses have ended.
struct ToReturn {
    /// The number of the last free of its blocks.
    freed: u64,
    len: usize,
    addresses: Range<u64>,
    hope: Hope,
}

/// Returns what to wait for until `room` and `pieces`, those that were freed first, are `size`
/// bytes. Pieces with an address in `kept` stay.
fn returned(pieces: &[ToReturn], kept: &Range<u64>, size: usize, mut room: usize) -> Option<Hope> {
    let stays = |piece: &&ToReturn| piece.addresses.start < kept.end && kept.start < piece.addresses.end;
    let mut hope = None;
    for piece in pieces.iter().filter(|piece| !stays(piece)) {
        if room >= size {
            break;
        }
        room += piece.len;
        hope = older(hope, piece.hope);
    }
    (room >= size).then_some(hope)
}

/// Returns what all of `blocks` leave to wait for. Returns `None` if one of them does not come.
fn hope_of_all<'a>(
    blocks: impl Iterator<Item = &'a Block>,
    order: &impl ReuseOrder,
    is_over: impl Fn(Use) -> bool,
) -> Option<Hope> {
    let mut all = None;
    for block in blocks {
        all = older(all, hope_of(block, order, &is_over)?);
    }
    Some(all)
}

fn granules(bytes: usize) -> usize {
    bytes.next_multiple_of(GRANULE_BYTES)
}
