//! The use that a request waits for on the host, when no rung of the ladder serves it.

use super::{Pool, PoolId, Request, ReuseOrder};
use crate::memory::blocks::{Block, State};
use crate::order::Use;

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
    if block.state == State::Live {
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
        if self.has_block_after_one(request, order) {
            return Some(Wait::Over);
        }
        let returned = if can_free { self.returned(request.size, room, order) } else { None };
        let hope = better(self.in_place(request, order), returned)?;
        Some(hope.map_or(Wait::Over, |awaited| Wait::For(awaited.used)))
    }

    /// Returns the bytes of free memory that `request` could be served from, now or once uses have
    /// ended by themselves.
    pub(in crate::memory) fn bytes_to_come(&self, request: &Request, order: &impl ReuseOrder) -> usize {
        let ends = |used: Use| order.is_over(used) || order.ends(used);
        let comes = |block: &&Block| {
            block.pool == PoolId::DEFAULT
                && block.state != State::Live
                && (block.uses.iter().all(|used| ends(*used)) || is_after_one(block, request, order))
        };
        self.blocks.iter().filter(comes).map(|block| block.len).sum()
    }

    /// Returns true if a block serves `request` now, or after one wait on the device. Then nothing
    /// but an earlier request keeps it from being served.
    fn has_block_after_one(&self, request: &Request, order: &impl ReuseOrder) -> bool {
        self.blocks.iter().any(|block| {
            block.state != State::Live
                && (block.pool, block.class) == (request.pool, request.class())
                && block.len >= request.size
                && is_after_one(block, request, order)
        })
    }

    /// Returns the uses of free memory of the default pool, finished or not.
    pub(in crate::memory) fn uses_of_free_memory(&self) -> impl Iterator<Item = Use> {
        let is_free = |block: &&Block| block.pool == PoolId::DEFAULT && block.state != State::Live;
        self.blocks.iter().filter(is_free).flat_map(|block| block.uses.iter().copied())
    }

    /// Looks for neighbours that are large enough together. What was captured has not run, so no
    /// block of a graph is worth a wait.
    fn in_place(&self, request: &Request, order: &impl ReuseOrder) -> Option<Hope> {
        if request.pool != PoolId::DEFAULT {
            return None;
        }
        let is_over = |used: Use| used.stream == request.stream || order.after(used) || order.finished(used);
        let mut best = None;
        for segment in self.blocks.segments() {
            let first = &self.blocks[segment.first];
            if (first.pool, first.class) != (request.pool, request.class()) {
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

    /// Looks for segments that would make room for `size` bytes if they were returned to the
    /// driver: those that were freed first.
    fn returned(&self, size: usize, room: usize, order: &impl ReuseOrder) -> Option<Hope> {
        let mut idle: Vec<(u64, usize, Hope)> = Vec::new();
        'segments: for segment in self.blocks.segments() {
            if self.blocks[segment.first].pool != PoolId::DEFAULT {
                continue;
            }
            let (mut freed, mut hope) = (0, None);
            for at in self.blocks.along(segment.first) {
                let block = &self.blocks[at];
                let of_block = hope_of(block, order, |used| order.is_over(used));
                let Some(of_block) = of_block else { continue 'segments };
                (freed, hope) = (block.freed.max(freed), older(hope, of_block));
            }
            idle.push((freed, segment.len, hope));
        }
        idle.sort_unstable_by_key(|(freed, ..)| *freed);
        let (mut room, mut hope) = (room, None);
        for (_, len, of_segment) in idle {
            if room >= size {
                break;
            }
            room += len;
            hope = older(hope, of_segment);
        }
        (room >= size).then_some(hope)
    }
}
