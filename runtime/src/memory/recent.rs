//! Lists of recently freed blocks, by size and by the one stream that may reuse them immediately.
//!
//! A block is here only if all its last uses are on one stream, so that stream may have it without
//! a check. The number of lists is fixed. Each is last in first out, because that memory is warm,
//! and sets of four share a cache line. Nothing grows with the number of streams that came and
//! went. A key that finds its set full evicts another list to the shelf.
#![forbid(unsafe_code)]

use super::blocks::{Blocks, NONE};
use crate::order::StreamId;

const SETS: usize = 256;
const WAYS: usize = 4;

#[derive(Clone, Copy)]
struct List {
    stream: StreamId,
    units: u32,
    /// The newest block. `NONE`: the list is empty and its place may be taken.
    head: u32,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Set([List; WAYS]);

pub(super) struct Recent {
    sets: Box<[Set; SETS]>,
    /// A bit for each list that is not empty, four to a set.
    filled: [u64; SETS * WAYS / 64],
    /// A counter that selects the way to evict.
    turn: usize,
}

impl std::fmt::Debug for Recent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lists: u32 = self.filled.iter().map(|word| word.count_ones()).sum();
        f.debug_struct("Recent").field("lists", &lists).finish_non_exhaustive()
    }
}

#[inline]
fn set_of(stream: StreamId, units: u32) -> usize {
    let key = stream.number().rotate_left(32) ^ u64::from(units);
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.trailing_zeros())) as usize
}

impl Recent {
    pub(super) fn new() -> Self {
        let empty = Set([List { stream: StreamId::from_number(0), units: 0, head: NONE }; WAYS]);
        Recent { sets: Box::new([empty; SETS]), filled: [0; SETS * WAYS / 64], turn: 0 }
    }

    #[inline]
    pub(super) fn pop(&mut self, stream: StreamId, units: u32, blocks: &Blocks) -> Option<u32> {
        let set = set_of(stream, units);
        for (way, list) in self.sets[set].0.iter_mut().enumerate() {
            if list.units == units && list.stream == stream && list.head != NONE {
                let block = list.head;
                list.head = blocks[block].below;
                if list.head == NONE {
                    self.filled[set / 16] &= !(1 << (set % 16 * WAYS + way));
                }
                return Some(block);
            }
        }
        None
    }

    /// Puts a block on top of its list. Returns the head of an evicted list, chained by `below`, or
    /// `NONE`.
    #[inline(always)]
    pub(super) fn push(&mut self, stream: StreamId, units: u32, block: u32, blocks: &mut Blocks) -> u32 {
        let set = set_of(stream, units);
        let lists = &mut self.sets[set].0;
        let same = |list: &List| list.units == units && list.stream == stream;
        let way = lists.iter().position(same).or_else(|| lists.iter().position(|list| list.head == NONE));
        let way = way.unwrap_or_else(|| {
            self.turn = (self.turn + 1) % WAYS;
            self.turn
        });
        let list = &mut lists[way];
        let mut evicted = NONE;
        if !same(list) {
            evicted = list.head;
            *list = List { stream, units, head: NONE };
        }
        blocks[block].below = list.head;
        list.head = block;
        self.filled[set / 16] |= 1 << (set % 16 * WAYS + way);
        evicted
    }

    /// Takes out one list whose size `wanted` holds for, and returns its head.
    pub(super) fn spill(&mut self, wanted: impl Fn(u32) -> bool) -> Option<u32> {
        for (index, word) in self.filled.iter_mut().enumerate() {
            let mut left = *word;
            while left != 0 {
                let bit = left.trailing_zeros() as usize;
                left &= left - 1;
                let list = &mut self.sets[index * 16 + bit / WAYS].0[bit % WAYS];
                if wanted(list.units) {
                    *word &= !(1 << bit);
                    return Some(std::mem::replace(&mut list.head, NONE));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::Class;
    use super::super::pool::PoolId;
    use super::super::zones::Zones;
    use super::*;

    fn blocks(count: usize) -> Blocks {
        let mut blocks = Blocks::new(Zones::None);
        for at in 0..count {
            blocks.add_segment(at as u64 * 512, 512, Class::Small, PoolId::DEFAULT);
        }
        blocks
    }

    #[test]
    fn last_in_is_first_out_for_the_same_stream_and_size_only() {
        let (mut recent, mut blocks) = (Recent::new(), blocks(3));
        let s = StreamId::from_number(7);
        for block in 0..3 {
            assert_eq!(recent.push(s, 8, block, &mut blocks), NONE);
        }
        assert_eq!(recent.pop(StreamId::from_number(8), 8, &blocks), None);
        assert_eq!(recent.pop(s, 9, &blocks), None);
        assert_eq!([(); 4].map(|()| recent.pop(s, 8, &blocks)), [Some(2), Some(1), Some(0), None]);
        assert_eq!(recent.spill(|_| true), None);
    }

    #[test]
    fn every_block_of_many_streams_is_in_a_list_or_pushed_out() {
        let (mut recent, mut blocks) = (Recent::new(), blocks(10_000));
        let mut found = 0;
        let mut count = |mut head: u32, blocks: &Blocks| {
            while head != NONE {
                found += 1;
                head = blocks[head].below;
            }
        };
        for block in 0..10_000 {
            let evicted = recent.push(StreamId::from_number(u64::from(block)), 8, block, &mut blocks);
            count(evicted, &blocks);
        }
        while let Some(head) = recent.spill(|_| true) {
            count(head, &blocks);
        }
        assert_eq!(found, 10_000);
    }
}
