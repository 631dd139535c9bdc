//! Segments that return to the driver, or from a graph's pool to the default pool.

use super::{Pool, PoolId, Rank};
use crate::memory::blocks::{NONE, Piece, Segment, State};
use crate::order::Use;
use std::ops::Range;

impl Pool {
    /// Forgets free segments of fixed length that no graph owns, whose every use has finished,
    /// until they amount to `enough_bytes`. The largest go first, but a single one that suffices
    /// is preferred. The caller returns them to the driver.
    pub(in crate::memory) fn give_back(
        &mut self,
        enough_bytes: usize,
        finished: &impl Fn(Use) -> bool,
    ) -> Vec<Segment> {
        self.spill(|_| true);
        let mut idle: Vec<Segment> = self.idle(finished).collect();
        idle.sort_by_key(|segment| (std::cmp::Reverse(segment.len), segment.address));
        let single = idle.iter().rposition(|segment| segment.len >= enough_bytes);
        let mut given = Vec::new();
        let mut bytes = 0;
        for segment in idle.drain(single.unwrap_or(0)..) {
            if bytes >= enough_bytes {
                break;
            }
            bytes += segment.len;
            given.push(segment);
        }
        given.iter().for_each(|segment| self.forget(segment));
        given
    }

    /// Like [`give_back`](Self::give_back), for one segment of `len` bytes that a graph's pool
    /// begins with. Its zones are those of `span` bytes, which differ with the class of its
    /// blocks.
    pub(in crate::memory) fn give_up(
        &mut self,
        len: usize,
        span: usize,
        finished: &impl Fn(Use) -> bool,
    ) -> Option<Segment> {
        self.spill(|_| true);
        let segment = self.idle(finished).find(|segment| (segment.len, segment.span) == (len, span))?;
        self.forget(&segment);
        Some(segment)
    }

    /// Returns the segments of fixed length that no graph owns, that are free and whose every use
    /// has finished.
    fn idle(&self, finished: &impl Fn(Use) -> bool) -> impl Iterator<Item = Segment> {
        let is_idle = |segment: &&Segment| {
            // The next launch of a graph also touches free blocks of the graph's pool.
            !segment.grows
                && !self.blocks[segment.first].pool.is_graph()
                && self.blocks.pieces(segment).all(|piece| self.is_idle(piece, finished))
        };
        self.blocks.segments().filter(is_idle).cloned()
    }

    /// Returns true if all bytes of a piece are free and their uses have finished.
    pub(super) fn is_idle(&self, piece: Piece, finished: &impl Fn(Use) -> bool) -> bool {
        self.blocks.within(piece).all(|at| {
            let block = &self.blocks[at];
            block.state == State::Shelved && block.uses.iter().all(|used| finished(*used))
        })
    }

    fn forget(&mut self, segment: &Segment) {
        let mut at = segment.first;
        while at != NONE {
            self.shelf.remove(&Rank::of(at, &self.blocks[at]));
            at = self.blocks[at].right;
        }
        self.blocks.remove_segment(segment.first);
        self.stats.reserved_bytes -= segment.len;
    }

    /// Returns the segments of `pool`.
    fn segments_of(&self, pool: PoolId) -> impl Iterator<Item = &Segment> {
        self.blocks.segments().filter(move |segment| self.blocks[segment.first].pool == pool)
    }

    /// Returns the addresses of the pieces of memory of `pool`, each with its bytes.
    pub(in crate::memory) fn pieces_of(&self, pool: PoolId) -> impl Iterator<Item = (Range<u64>, usize)> {
        self.segments_of(pool).flat_map(|segment| {
            let pieces = segment.pieces.iter();
            pieces.map(|(&offset, &len)| (self.blocks.addresses(segment, offset, len), len))
        })
    }

    /// Forgets the uses of the blocks of `pool`: they were recorded, and nothing has run.
    pub(in crate::memory) fn forget_uses(&mut self, pool: PoolId) {
        for index in self.blocks_of(pool) {
            self.blocks[index].uses.clear();
        }
    }

    /// Moves the blocks of `pool`, which are all free, to the default pool.
    pub(in crate::memory) fn dissolve(&mut self, pool: PoolId) {
        for index in self.blocks_of(pool) {
            debug_assert!(self.blocks[index].state == State::Shelved, "a pool in use was dissolved");
            self.shelf.remove(&Rank::of(index, &self.blocks[index]));
            self.blocks[index].pool = PoolId::DEFAULT;
            self.shelve(index);
        }
    }

    fn blocks_of(&self, pool: PoolId) -> Vec<u32> {
        self.segments_of(pool).flat_map(|segment| self.blocks.along(segment.first)).collect()
    }
}
