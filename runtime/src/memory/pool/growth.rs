//! The addresses at which a device's memory grows, where the device has virtual memory.
//!
//! # Rules
//! 1. Each class of blocks of the default pool, and of that of budgets, has a range of addresses,
//!    reserved once ([`add_addresses`](Pool::add_addresses)). Memory is mapped to its holes in
//!    pieces, of whole granules. So free neighbours join whatever pieces they lie in. A further
//!    range is reserved if the first has no hole that is long enough.
//! 2. A request that no rung serves grows the hole that needs the fewest new bytes. Free memory
//!    beside the hole counts, if the stream may use it now.
//! 3. A piece is unmapped whole, and only if all its bytes are free and their uses have finished.
//!    Its addresses become a hole. Until the driver has answered, no request gets it.
//! 4. Memory that lies where no request can use it **moves**: before the device grows to more than
//!    5/4 of the most bytes that were ever live at once, and by 64 MiB at least, as many bytes are
//!    unmapped elsewhere.
//! 5. Holes and pieces change only under the lock `growing` of
//!    [`DeviceMemory`](crate::memory::DeviceMemory), so an extent is valid until the driver has
//!    mapped memory to it. The free memory beside it may be handed out meanwhile. Then the request
//!    asks for an extent again.
//! 6. A longer piece costs fewer driver calls, but a single live block keeps all of it. So a piece
//!    is a granule, or 1/4096 of the limit or of the device's memory where that is more, up to
//!    32 MiB. In the pool of budgets it is a granule.
// Decision: docs/decisions/0067-segments-grow.md

use super::{Pool, PoolId, Rank, Request, ReuseOrder, Verdict, judge};
use crate::memory::blocks::{Block, Class, NONE, Piece, State};
use crate::order::Use;
use std::ops::Range;
use warpline_driver::DevicePtr;

/// The unit of lengths of pieces: what GPUs map at least.
pub(in crate::memory) const GRANULE_BYTES: usize = 2 << 20;
/// The number of pieces that the memory of a large device is made of.
const MANY_PIECES: usize = 4096;
/// The maximum length of a piece.
const LONGEST_PIECE_BYTES: usize = 32 << 20;
/// The bytes beyond those that were live which memory never moves for: remapping a few bytes at
/// each request costs more than they are worth.
const SLACK_BYTES: usize = 64 << 20;

/// Returns the maximum length of a piece of a device with this memory or limit.
pub(in crate::memory) fn piece_bytes(most_bytes: usize) -> usize {
    let piece = most_bytes / MANY_PIECES / GRANULE_BYTES * GRANULE_BYTES;
    piece.clamp(GRANULE_BYTES, LONGEST_PIECE_BYTES)
}

/// The part of a hole that memory is to be mapped to.
#[derive(Clone, Debug)]
pub(in crate::memory) struct Extent {
    hole: u32,
    /// The bytes of the hole before it.
    skipped: usize,
    /// The bytes to map.
    pub(in crate::memory) len: usize,
    /// The length of each piece of them.
    piece: usize,
    /// The addresses of the hole and of the usable memory beside it.
    pub(in crate::memory) beside: Range<u64>,
}

/// The addresses that a driver is to map.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Mapping {
    pub(in crate::memory) at: DevicePtr,
    pub(in crate::memory) span: usize,
    pub(in crate::memory) piece_span: usize,
}

impl Pool {
    /// Takes in reserved addresses.
    pub(in crate::memory) fn add_addresses(&mut self, at: DevicePtr, len: usize, class: Class, pool: PoolId) {
        self.blocks.add_addresses(at.0, len, class, pool);
    }

    /// Returns the part of a hole that needs the fewest new bytes to serve `request`.
    pub(in crate::memory) fn extent_to_map(
        &mut self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Option<Extent> {
        let mut best: Option<Extent> = None;
        for index in 0..self.blocks.holes().len() {
            let hole = self.blocks.holes()[index];
            if (self.blocks[hole].pool, self.blocks[hole].class) != (request.pool, request.class()) {
                continue;
            }
            let extent = self.extent_in(hole, request, order);
            let key = |extent: &Extent| (extent.len, extent.beside.start);
            best = best.into_iter().chain(extent).min_by_key(key);
        }
        best
    }

    /// Returns the part of `hole` that needs the fewest new bytes.
    fn extent_in(&mut self, hole: u32, request: &Request, order: &impl ReuseOrder) -> Option<Extent> {
        let Block { address, len, left, right, .. } = self.blocks[hole];
        let (before, first) = self.usable(left, |block| block.left, request, order);
        let (behind, last) = self.usable(right, |block| block.right, request, order);
        let start = if first == NONE { address } else { self.blocks[first].address };
        let end =
            if last == NONE { address } else { self.blocks[last].address + self.blocks[last].len as u64 };
        let granules = |bytes: usize| bytes.next_multiple_of(GRANULE_BYTES);
        let (from_left, from_right) =
            (granules(request.size.saturating_sub(before)), granules(request.size.saturating_sub(behind)));
        // Not at both sides of a hole that only a part of is needed of.
        let (skipped, mapped) = if from_left <= len && (from_left <= from_right || from_right > len) {
            (0, from_left)
        } else if from_right <= len {
            (len - from_right, from_right)
        } else if before + len + behind >= request.size {
            (0, len)
        } else {
            return None;
        };
        // A longer piece would tie the blocks of several budgets together.
        let piece = if request.share.is_some() { GRANULE_BYTES } else { self.piece_bytes };
        Some(Extent { hole, skipped, len: mapped, piece, beside: start..end })
    }

    /// Returns the free bytes from `at` on that the request's stream may use now, and the last
    /// block of them.
    fn usable(
        &mut self,
        mut at: u32,
        next: impl Fn(&Block) -> u32,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> (usize, u32) {
        let (mut bytes, mut last) = (0, NONE);
        while at != NONE && self.blocks[at].state == State::Shelved {
            let block = &mut self.blocks[at];
            if !matches!(judge(&mut block.uses, request.stream, order), Verdict::Ready(_)) {
                break;
            }
            (bytes, last) = (bytes + block.len, at);
            at = next(block);
        }
        (bytes, last)
    }

    /// Returns the addresses that the driver is to map for an extent.
    pub(in crate::memory) fn mapping(&self, extent: &Extent) -> Mapping {
        let segment = self.blocks.segment(self.blocks[extent.hole].segment);
        let offset = self.blocks.offset(extent.hole) + extent.skipped;
        let addresses = |len| self.blocks.addresses(segment, offset, len);
        let whole = addresses(extent.len);
        let span = |addresses: &Range<u64>| (addresses.end - addresses.start) as usize;
        Mapping { at: DevicePtr(whole.start), span: span(&whole), piece_span: span(&addresses(extent.piece)) }
    }

    /// Takes in the memory that the driver has mapped to an extent.
    pub(in crate::memory) fn mapped(&mut self, extent: &Extent) {
        let block = self.blocks.fill(extent.hole, extent.skipped, extent.len, extent.piece);
        self.note_reserved(extent.len);
        self.shelve(block);
    }

    /// Returns the bytes that have to move before the device grows by `more` bytes for `request`.
    /// Segments of fixed length stay where they are, so they do not count.
    pub(in crate::memory) fn bytes_to_move(&self, request: &Request, more: usize) -> usize {
        let live = self.most_live().max(self.stats.allocated_bytes + request.size);
        let fixed = self.blocks.segments().filter(|segment| !segment.grows).map(|segment| segment.len);
        let moves = self.stats.reserved_bytes - fixed.sum::<usize>();
        (moves + more).saturating_sub(live + (live / 4).max(SLACK_BYTES))
    }

    /// Takes out pieces of segments that grow, all whose bytes are free and whose uses have
    /// finished, until they amount to `enough_bytes`: those with the highest addresses, and none
    /// that has an address in `spared`.
    pub(in crate::memory) fn take_pieces(
        &mut self,
        enough_bytes: usize,
        spared: &Range<u64>,
        finished: &impl Fn(Use) -> bool,
    ) -> Vec<Leaving> {
        self.spill(|_| true);
        let mut idle = Vec::new();
        for segment in self.blocks.segments().filter(|segment| segment.grows) {
            for piece in self.blocks.pieces(segment) {
                let addresses = self.blocks.addresses(segment, piece.offset, piece.len);
                let is_spared = addresses.start < spared.end && spared.start < addresses.end;
                if !is_spared && self.is_idle(piece, finished) {
                    idle.push((addresses, piece));
                }
            }
        }
        // From the last to the first: then the first blocks of earlier pieces stay as they are.
        idle.sort_unstable_by_key(|(addresses, _)| std::cmp::Reverse(addresses.start));
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for (addresses, piece) in idle {
            if bytes >= enough_bytes {
                break;
            }
            bytes += piece.len;
            let span = (addresses.end - addresses.start) as usize;
            taken.push(Leaving { block: self.take_piece(piece), at: DevicePtr(addresses.start), span });
        }
        taken
    }

    fn take_piece(&mut self, piece: Piece) -> u32 {
        let within: Vec<u32> = self.blocks.within(piece).collect();
        let mut end = self.blocks.offset(piece.first);
        for &at in &within {
            self.shelf.remove(&Rank::of(at, &self.blocks[at]));
            end += self.blocks[at].len;
        }
        let block = self.blocks.isolate(piece);
        let Block { left, right, .. } = self.blocks[block];
        if left == piece.first {
            self.shelve(left);
        }
        if end > piece.offset + piece.len {
            self.shelve(right);
        }
        self.blocks[block].state = State::Leaving;
        block
    }

    /// Notes that the driver has unmapped a piece, which is a hole now.
    pub(in crate::memory) fn unmapped(&mut self, leaving: &Leaving) {
        self.stats.reserved_bytes -= self.blocks[leaving.block].len;
        self.blocks.empty(leaving.block);
    }

    /// Takes back a piece that the driver did not unmap.
    pub(in crate::memory) fn not_unmapped(&mut self, leaving: &Leaving) {
        self.shelve(leaving.block);
    }
}

/// A free piece while the driver unmaps it.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Leaving {
    block: u32,
    pub(in crate::memory) at: DevicePtr,
    pub(in crate::memory) span: usize,
}
