//! The ladder's rungs 2 to 4: the search for a free block.

use super::{LOOKS, Pool, Rank, Request, ReuseOrder, Rung, SMALL_BYTES, Source, Verdict, judge};
use crate::memory::blocks::{Block, Blocks, Class, NONE, State};
use crate::memory::pool::Grant;
use crate::order::Use;

impl Pool {
    /// Finds a free block: rungs 2 to 4. With `last_resort`, rung 4 takes any block, and runs of
    /// neighbours, that one wait would release.
    pub(in crate::memory) fn find(
        &mut self,
        request: &Request,
        order: &impl ReuseOrder,
        last_resort: bool,
    ) -> Option<Grant> {
        match self.source(request, order) {
            Source::Kept(opening, wait) => {
                return Some(self.hand_out_kept(&opening, wait, request, order));
            }
            Source::Busy(_) | Source::Beyond => return None,
            Source::New => {}
        }
        let (block, rung, wait) = self.find_block(request, order, last_resort)?;
        Some(self.hand_out(block, request, rung, wait))
    }

    /// Like [`find`](Self::find), after the driver has mapped memory for the request.
    pub(in crate::memory) fn find_grown(
        &mut self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Option<Grant> {
        let (block, _, wait) = self.find_block(request, order, false)?;
        // However short the rest is, it is beside a hole, and counts when that hole grows.
        if self.blocks[block].len > request.size {
            let rest = self.blocks.split(block, request.size);
            self.shelve(rest);
        }
        Some(self.hand_out(block, request, Rung::Grown, wait))
    }

    /// Finds a free block, and takes it off the shelf.
    fn find_block(
        &mut self,
        request: &Request,
        order: &impl ReuseOrder,
        last_resort: bool,
    ) -> Option<(u32, Rung, Option<Use>)> {
        let Request { size, pool, stream, .. } = *request;
        let class = request.class();
        // A list is keyed by the requested length. Its blocks may be longer, by a rest that was not
        // worth splitting.
        let slack = if class == Class::Large { SMALL_BYTES } else { 0 };
        self.spill(|len| len + slack >= size && (len <= SMALL_BYTES) == (class == Class::Small));

        let mut waits = std::mem::take(&mut self.waits);
        waits.clear();
        let least = Rank { pool, class, used: false, len: size, freed: 0, block: 0 };
        let most = Rank { len: usize::MAX, freed: u64::MAX, ..least };
        let fits = |blocks: &Blocks, place: &Rank| serves(blocks, &blocks[place.block], request);
        let unused = self.shelf.range(least..=most).find(|place| fits(&self.blocks, place));
        let mut ready = unused.map(|place| (place.block, Rung::Finished));
        let (tighter, looks) = unused.map_or((usize::MAX, usize::MAX), |place| (place.len, LOOKS));
        let most = Rank { used: true, len: tighter, ..least };
        for &place in self.shelf.range(Rank { used: true, ..least }..most).take(looks) {
            if !fits(&self.blocks, &place) {
                continue;
            }
            match judge(&mut self.blocks[place.block].uses, stream, order) {
                Verdict::Ready(rung) => {
                    ready = Some((place.block, rung));
                    break;
                }
                Verdict::AfterOne(used) => waits.push((used, place)),
                Verdict::No => {}
            }
        }
        let mut wait = None;
        if ready.is_none() {
            ready = self.join(request, order, false).map(|(block, _)| (block, Rung::Merged));
        }
        if ready.is_none()
            && let Some((used, place)) = longest_queued(&mut waits, last_resort)
        {
            wait = Some(used);
            ready = Some((place.block, Rung::Waited));
        }
        if ready.is_none() && last_resort {
            ready = self.join(request, order, true).map(|(block, used)| {
                wait = used;
                (block, Rung::Waited)
            });
        }
        self.waits = waits;
        let (block, rung) = ready?;
        let place = Rank::of(block, &self.blocks[block]);
        self.shelf.remove(&place);
        Some((block, rung, wait))
    }

    /// Joins a run of neighbours that `request.stream` may have and that together are large enough.
    /// With `one_wait`, a single wait may be needed, which is returned. Leaves the result on the
    /// shelf.
    fn join(
        &mut self,
        request: &Request,
        order: &impl ReuseOrder,
        one_wait: bool,
    ) -> Option<(u32, Option<Use>)> {
        let (size, stream, class) = (request.size, request.stream, request.class());
        self.spill(|len| (len <= SMALL_BYTES) == (class == Class::Small));
        let least = Rank { pool: request.pool, class, used: false, len: 0, freed: 0, block: 0 };
        let smaller = |used| Rank { used, ..least }..Rank { used, len: size, ..least };
        let blocks = &mut self.blocks;
        // Returns `wait` with the wait that this block adds, or `None` if the block cannot be part
        // of the run.
        let fits = |blocks: &mut Blocks, at: u32, wait: Option<Use>| -> Option<Option<Use>> {
            let block = &mut blocks[at];
            if block.state != State::Shelved {
                return None;
            }
            match (judge(&mut block.uses, stream, order), wait) {
                (Verdict::Ready(_), wait) => Some(wait),
                (Verdict::AfterOne(used), None) if one_wait => Some(Some(used)),
                (Verdict::AfterOne(used), Some(wait)) if used.stream == wait.stream => {
                    Some(Some(Use { ticket: used.ticket.max(wait.ticket), ..wait }))
                }
                _ => None,
            }
        };
        // A run begins with a smaller block: one that is large enough alone was found before.
        let mut found = None;
        'starts: for place in self.shelf.range(smaller(false)).chain(self.shelf.range(smaller(true))) {
            let start = place.block;
            let left = blocks[start].left;
            // Without waits, "usable" does not depend on where the run began. So a run starts only
            // at its leftmost block.
            if !one_wait && left != NONE && fits(blocks, left, None).is_some() {
                continue;
            }
            let (mut at, mut total, mut wait, mut joins) = (start, 0, None, 0);
            while let Some(so_far) = fits(blocks, at, wait) {
                wait = so_far;
                total += blocks[at].len;
                if total >= size {
                    found = Some((start, joins, wait));
                    break 'starts;
                }
                joins += 1;
                at = blocks[at].right;
                if at == NONE {
                    break;
                }
            }
        }
        let (start, joins, wait) = found?;
        self.shelf.remove(&Rank::of(start, &self.blocks[start]));
        for _ in 0..joins {
            self.unshelve_and_join_right(start, |used| used.stream != stream && order.finished(used));
        }
        self.shelve(start);
        Some((start, wait))
    }

    fn unshelve_and_join_right(&mut self, at: u32, finished: impl FnMut(Use) -> bool) {
        let right = self.blocks[at].right;
        self.shelf.remove(&Rank::of(right, &self.blocks[right]));
        self.blocks.join_right(at, finished);
    }
}

/// Returns true if a free block may serve a request, by its length. A segment of fixed length that
/// a budget has a part of would be lost for the others.
pub(super) fn serves(blocks: &Blocks, block: &Block, request: &Request) -> bool {
    block.len == request.size
        || block.len > request.size && (request.share.is_none() || blocks.segment(block.segment).grows)
}

/// Returns the block to wait for, of those that one wait would release. It is the one freed
/// longest ago among those queued behind a stream with two or more of them; with `any`, behind any
/// stream.
fn longest_queued(waits: &mut [(Use, Rank)], any: bool) -> Option<(Use, Rank)> {
    waits.sort_unstable_by_key(|(used, place)| (used.stream, place.freed));
    let queues = waits.chunk_by(|a, b| a.0.stream == b.0.stream);
    queues.filter(|queue| any || queue.len() >= 2).map(|queue| queue[0]).min_by_key(|(_, place)| place.freed)
}
