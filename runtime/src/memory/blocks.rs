//! Segments of device memory, and the blocks that each is cut into.
//!
//! Blocks are split, joined and removed here. This module knows neither order nor sizes.
//!
//! A segment is a range of addresses. Its blocks tile its bytes, and each is linked to its
//! neighbours. [`Zones`] decides where each byte lies. Both live in slabs and are named by index,
//! so that cutting and joining allocate nothing in the steady state.
//!
//! A segment of fixed length is one piece of memory from the driver. A segment that grows is made
//! of addresses, to which pieces are mapped. Its other addresses are **holes**: blocks without
//! memory, none of them beside another.
#![forbid(unsafe_code)]

use super::pool::{BudgetId, PoolId};
use super::zones::Zones;
use crate::order::{Site, StreamId, Use};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut, Range};

/// The index that stands for no block or segment.
pub(super) const NONE: u32 = u32::MAX;

/// The newest use by each stream, with at most one entry per stream.
pub(super) type Uses = SmallVec<[Use; 2]>;

/// A size class. Each class has segments of its own, so that small blocks do not perforate large
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Small,
    Large,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In use.
    Live,
    /// Free, in a list of [`Recent`](super::recent::Recent).
    Recent,
    /// Free, on the pool's shelf.
    Shelved,
    /// Free, in a granule that a budget shares out among its short blocks.
    Kept,
    /// Free, while the driver unmaps it.
    Leaving,
    /// Addresses without memory.
    Hole,
    /// Not a block but a free place in the slab.
    Vacant,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) len: usize,
    /// The number of times this place was handed out, so that a stale id is noticed.
    pub(super) generation: u32,
    pub(super) state: State,
    pub(super) class: Class,
    pub(super) pool: PoolId,
    /// The budget that it counts against while it is live.
    pub(super) budget: Option<BudgetId>,
    pub(super) segment: u32,
    /// Neighbours by address, within the segment.
    pub(super) left: u32,
    pub(super) right: u32,
    /// The next block in a list of `Recent`, or in the chain of vacant places.
    pub(super) below: u32,
    /// The requested length in units of 512 bytes: `len` or a little less. 0: never put into
    /// `Recent`.
    pub(super) asked_units: u32,
    /// The stream that it was last allocated on.
    pub(super) stream: StreamId,
    /// The uses that have to finish. While the block is live: those that were unfinished when it
    /// was handed out.
    pub(super) uses: Uses,
    /// True if it had uses when it was put on the shelf.
    pub(super) used: bool,
    /// The number of the free that freed it, which grows.
    pub(super) freed: u64,
    /// The site that allocated it last. `None` if it was cut or joined since, or never allocated.
    pub(super) site: Option<Site>,
}

impl Block {
    /// Returns true if a request may get this block, once its uses allow it.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.state, State::Recent | State::Shelved)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) len: usize,
    /// The number of addresses: `len` and the zones.
    pub(super) span: usize,
    pub(super) first: u32,
    /// True if pieces are mapped to its addresses one by one.
    pub(super) grows: bool,
    /// The length of each piece of memory from the driver, by its offset.
    pub(super) pieces: BTreeMap<usize, usize>,
}

/// A piece of memory from the driver, with the first block that has bytes of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) first: u32,
}

#[derive(Debug)]
pub(super) struct Blocks {
    zones: Zones,
    blocks: Vec<Block>,
    /// The head of the chain of vacant places.
    vacant: u32,
    count: usize,
    segments: Vec<Option<Segment>>,
    vacant_segments: Vec<u32>,
    holes: Vec<u32>,
}

impl Index<u32> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, at: u32) -> &Block {
        &self.blocks[at as usize]
    }
}

impl IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Block {
        &mut self.blocks[at as usize]
    }
}

impl Blocks {
    pub(super) fn new(zones: Zones) -> Self {
        Blocks {
            zones,
            blocks: Vec::new(),
            vacant: NONE,
            count: 0,
            segments: Vec::new(),
            vacant_segments: Vec::new(),
            holes: Vec::new(),
        }
    }

    /// Returns the number of blocks that have memory.
    pub(super) fn len(&self) -> usize {
        self.count - self.holes.len()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Block> {
        self.blocks.get_mut(at as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(|block| block.state != State::Vacant)
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().flatten()
    }

    pub(super) fn segment(&self, index: u32) -> &Segment {
        self.segments[index as usize].as_ref().expect("a block names a segment that exists")
    }

    fn segment_mut(&mut self, index: u32) -> &mut Segment {
        self.segments[index as usize].as_mut().expect("a block names a segment that exists")
    }

    /// Returns the number of pieces of memory from the driver.
    pub(super) fn piece_count(&self) -> usize {
        self.segments().map(|segment| segment.pieces.len()).sum()
    }

    /// Returns the blocks without memory.
    pub(super) fn holes(&self) -> &[u32] {
        &self.holes
    }

    /// Returns the number of bytes of the segment before `at`.
    pub(super) fn offset(&self, at: u32) -> usize {
        let Block { address, class, segment, .. } = self[at];
        self.zones.len(class, (address - self.segment(segment).address) as usize)
    }

    /// Returns the addresses of `len` bytes of a segment from `offset` on, with their zones.
    pub(super) fn addresses(&self, segment: &Segment, offset: usize, len: usize) -> Range<u64> {
        let class = self[segment.first].class;
        let at = |offset| segment.address + self.zones.span(class, offset) as u64;
        at(offset)..at(offset + len)
    }

    /// Returns the pieces of a segment, by offset.
    pub(super) fn pieces(&self, segment: &Segment) -> impl Iterator<Item = Piece> {
        let (mut first, mut start) = (segment.first, 0);
        segment.pieces.iter().map(move |(&offset, &len)| {
            while start + self[first].len <= offset {
                start += self[first].len;
                first = self[first].right;
            }
            Piece { offset, len, first }
        })
    }

    /// Returns the blocks that have bytes of a piece.
    pub(super) fn within(&self, piece: Piece) -> impl Iterator<Item = u32> {
        let mut start = self.offset(piece.first);
        self.along(piece.first).take_while(move |&at| {
            let is_within = start < piece.offset + piece.len;
            start += self[at].len;
            is_within
        })
    }

    /// Returns the blocks of the segment that begins with `first`, by address.
    pub(super) fn along(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(first), |&at| Some(self[at].right).filter(|&right| right != NONE))
    }

    /// Takes in new memory as one free block that is in no list, and returns that block.
    pub(super) fn add_segment(&mut self, address: u64, len: usize, class: Class, pool: PoolId) -> u32 {
        let (segment, first) = self.new_segment(address, len, class, pool);
        self.segment_mut(segment).pieces.insert(0, len);
        first
    }

    /// Takes in addresses without memory: a segment that grows. Returns its only block, a hole.
    pub(super) fn add_addresses(&mut self, address: u64, len: usize, class: Class, pool: PoolId) -> u32 {
        let (segment, first) = self.new_segment(address, len, class, pool);
        self.segment_mut(segment).grows = true;
        self[first].state = State::Hole;
        self.holes.push(first);
        first
    }

    fn new_segment(&mut self, address: u64, len: usize, class: Class, pool: PoolId) -> (u32, u32) {
        let segment = self.vacant_segments.pop().unwrap_or_else(|| {
            self.segments.push(None);
            self.segments.len() as u32 - 1
        });
        let first = self.place(Block {
            address,
            len,
            generation: 0,
            state: State::Shelved,
            class,
            pool,
            budget: None,
            segment,
            left: NONE,
            right: NONE,
            below: NONE,
            asked_units: 0,
            stream: StreamId::from_number(0),
            uses: Uses::new(),
            used: false,
            freed: 0,
            site: None,
        });
        let span = self.zones.span(class, len);
        self.segments[segment as usize] =
            Some(Segment { address, len, span, first, grows: false, pieces: BTreeMap::new() });
        (segment, first)
    }

    /// Gives memory to `len` bytes of a hole, after the first `skipped`: pieces of `piece` bytes.
    /// Returns them as one free block that is in no list.
    pub(super) fn fill(&mut self, hole: u32, skipped: usize, len: usize, piece: usize) -> u32 {
        debug_assert!(len > 0);
        let block = if skipped == 0 { hole } else { self.split(hole, skipped) };
        if self[block].len > len {
            self.split(block, len);
        }
        self.holes.retain(|&at| at != block);
        self[block].state = State::Shelved;
        let offset = self.offset(block);
        let pieces = &mut self.segment_mut(self[block].segment).pieces;
        for start in (0..len).step_by(piece) {
            pieces.insert(offset + start, piece.min(len - start));
        }
        block
    }

    /// Makes the bytes of a piece one block. All blocks that have bytes of it are free and in no
    /// list, and so are the new ones to its left and right.
    pub(super) fn isolate(&mut self, piece: Piece) -> u32 {
        let before = piece.offset - self.offset(piece.first);
        let block = if before == 0 { piece.first } else { self.split(piece.first, before) };
        while self[block].len < piece.len {
            self.join_right(block, |_| false);
        }
        if self[block].len > piece.len {
            self.split(block, piece.len);
        }
        block
    }

    /// Makes a block that is a whole piece, whose memory the driver has taken back, a hole.
    pub(super) fn empty(&mut self, block: u32) {
        let offset = self.offset(block);
        let Block { segment, left, right, .. } = self[block];
        self.segment_mut(segment).pieces.remove(&offset);
        self[block].state = State::Hole;
        self[block].uses = Uses::new();
        self.holes.push(block);
        let is_hole = |blocks: &Self, at: u32| at != NONE && blocks[at].state == State::Hole;
        if is_hole(self, right) {
            self.join_right(block, |_| true);
        }
        if is_hole(self, left) {
            self.join_right(left, |_| true);
        }
    }

    /// Forgets the segment that begins with `first`, and all its blocks.
    pub(super) fn remove_segment(&mut self, first: u32) -> Segment {
        let index = self[first].segment;
        let mut at = first;
        while at != NONE {
            let right = self[at].right;
            self.vacate(at);
            at = right;
        }
        self.vacant_segments.push(index);
        self.segments[index as usize].take().expect("a block names a segment that exists")
    }

    /// Cuts `at` after `len` bytes. Returns the right part, which has the same state, uses and time
    /// of freeing.
    pub(super) fn split(&mut self, at: u32, len: usize) -> u32 {
        let block = &self[at];
        debug_assert!(len > 0 && len < block.len);
        let start = self.segment(block.segment).address;
        let offset = self.offset(at);
        let rest = Block {
            address: start + self.zones.span(block.class, offset + len) as u64,
            len: block.len - len,
            left: at,
            uses: block.uses.clone(),
            below: NONE,
            site: None,
            ..*block
        };
        let right = rest.right;
        let rest = self.place(rest);
        if self[rest].state == State::Hole {
            self.holes.push(rest);
        }
        if right != NONE {
            self[right].left = rest;
        }
        let block = &mut self[at];
        block.right = rest;
        block.len = len;
        block.site = None;
        rest
    }

    /// Joins the right neighbour of `at` to it. The uses are those of both, except those that
    /// `finished` holds for.
    pub(super) fn join_right(&mut self, at: u32, mut finished: impl FnMut(Use) -> bool) {
        let gone = self[at].right;
        let (len, right, freed) = (self[gone].len, self[gone].right, self[gone].freed);
        let uses = std::mem::take(&mut self[gone].uses);
        self.vacate(gone);
        let block = &mut self[at];
        block.len += len;
        block.right = right;
        block.site = None;
        block.freed = block.freed.max(freed);
        unite(&mut block.uses, &uses);
        block.uses.retain(|used| !finished(*used));
        if right != NONE {
            self[right].left = at;
        }
    }

    fn place(&mut self, mut block: Block) -> u32 {
        self.count += 1;
        if self.vacant == NONE {
            let at = u32::try_from(self.blocks.len()).ok().filter(|&at| at != NONE);
            self.blocks.push(block);
            return at.expect("fewer than 2^32 blocks");
        }
        let at = self.vacant;
        // An id of the block that was here before must not fit the new one.
        block.generation = self[at].generation;
        self.vacant = self[at].below;
        self[at] = block;
        at
    }

    fn vacate(&mut self, at: u32) {
        let vacant = self.vacant;
        let block = &mut self[at];
        debug_assert!(block.state != State::Live && block.state != State::Vacant);
        let was_hole = block.state == State::Hole;
        block.state = State::Vacant;
        block.uses = Uses::new();
        block.below = vacant;
        self.vacant = at;
        self.count -= 1;
        if was_hole {
            self.holes.retain(|&hole| hole != at);
        }
    }
}

/// The maximum number of uses that are united by comparing each with each.
const FEW_USES: usize = 16;

/// Adds `more` to `uses`, keeping the newest of each stream.
pub(super) fn unite(uses: &mut Uses, more: &[Use]) {
    if uses.len() + more.len() > FEW_USES {
        uses.extend_from_slice(more);
        uses.sort_unstable_by_key(|used| (used.stream, Reverse(used.ticket)));
        uses.dedup_by_key(|used| used.stream);
        return;
    }
    for &used in more {
        match uses.iter_mut().find(|known| known.stream == used.stream) {
            Some(known) => known.ticket = known.ticket.max(used.ticket),
            None => uses.push(used),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(stream: u64, ticket: u64) -> Use {
        Use { stream: StreamId::from_number(stream), ticket }
    }

    fn lengths(blocks: &Blocks, first: u32) -> Vec<(u64, usize)> {
        blocks.along(first).map(|at| (blocks[at].address, blocks[at].len)).collect()
    }

    #[test]
    fn pieces_tile_their_segment_whatever_is_cut_and_joined() {
        let mut blocks = Blocks::new(Zones::None);
        let first = blocks.add_segment(1000, 100, Class::Small, PoolId::DEFAULT);
        let rest = blocks.split(first, 30);
        let last = blocks.split(rest, 20);
        assert_eq!(lengths(&blocks, first), [(1000, 30), (1030, 20), (1050, 50)]);
        assert_eq!((blocks[last].left, blocks.len()), (rest, 3));
        blocks.join_right(first, |_| false);
        assert_eq!(lengths(&blocks, first), [(1000, 50), (1050, 50)]);
        assert_eq!(blocks[last].left, first);
        blocks.join_right(first, |_| false);
        assert_eq!(lengths(&blocks, first), [(1000, 100)]);
        let segment = blocks.remove_segment(first);
        assert_eq!((segment.address, segment.len, blocks.len(), blocks.piece_count()), (1000, 100, 0, 0));
    }

    #[test]
    fn joined_blocks_keep_the_newest_unfinished_use_of_each_stream() {
        let mut blocks = Blocks::new(Zones::None);
        let first = blocks.add_segment(0, 100, Class::Small, PoolId::DEFAULT);
        let rest = blocks.split(first, 50);
        blocks[first].uses = Uses::from_slice(&[used(1, 5), used(2, 9)]);
        blocks[rest].uses = Uses::from_slice(&[used(3, 1), used(1, 7)]);
        blocks.join_right(first, |used| used.stream == StreamId::from_number(3));
        assert_eq!(blocks[first].uses.as_slice(), [used(1, 7), used(2, 9)]);
    }

    #[test]
    fn uses_by_many_streams_are_united_as_uses_by_few_are() {
        for count in [3, 100] {
            let mut uses: Uses = (0..count).map(|stream| used(stream, 5)).collect();
            let more: Vec<Use> = (1..=count).map(|stream| used(stream, 4 + stream % 2 * 2)).collect();
            unite(&mut uses, &more);
            uses.sort_unstable_by_key(|used| used.stream);
            let ticket = |stream| if stream == count { 4 + stream % 2 * 2 } else { 5 + stream % 2 };
            let expected: Uses = (0..=count).map(|stream| used(stream, ticket(stream))).collect();
            assert_eq!(uses, expected);
        }
    }

    #[test]
    fn blocks_that_are_cut_or_joined_forget_who_allocated_them() {
        let mut blocks = Blocks::new(Zones::None);
        let first = blocks.add_segment(0, 100, Class::Small, PoolId::DEFAULT);
        let site = Some(Site::here(&"alloc"));
        blocks[first].site = site;
        let rest = blocks.split(first, 50);
        assert_eq!((blocks[first].site, blocks[rest].site), (None, None));
        (blocks[first].site, blocks[rest].site) = (site, site);
        blocks.join_right(first, |_| false);
        assert_eq!(blocks[first].site, None);
    }

    #[test]
    fn both_halves_of_a_cut_keep_the_uses() {
        let mut blocks = Blocks::new(Zones::None);
        let first = blocks.add_segment(0, 100, Class::Small, PoolId::DEFAULT);
        blocks[first].uses.push(used(1, 5));
        let rest = blocks.split(first, 50);
        assert_eq!(blocks[rest].uses.as_slice(), [used(1, 5)]);
    }
}
