//! Statistics of the pool.

use super::Pool;
use crate::memory::blocks::{Block, Segment, State};
use crate::memory::snapshot::{BlockState, MemoryBlock, MemorySegment, largest_holders};
use crate::memory::stats::MemoryStats;
use crate::order::Use;
use warpline_driver::MemoryHolder;

impl Pool {
    /// Returns the number of blocks, live and free.
    pub(in crate::memory) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    pub(in crate::memory) fn reserved(&self) -> usize {
        self.stats.reserved_bytes
    }

    /// Returns the bytes of graphs' segments that are free, and that nothing outside the graph
    /// gets.
    pub(in crate::memory) fn free_bytes_of_graphs(&self) -> usize {
        let free = |block: &&Block| block.pool.is_graph() && block.is_free();
        self.blocks.iter().filter(free).map(|block| block.len).sum()
    }

    /// Returns the bytes of the segments that belong to graphs.
    fn graph_bytes(&self) -> usize {
        let graphs = |segment: &&Segment| self.blocks[segment.first].pool.is_graph();
        self.blocks.segments().filter(graphs).map(|segment| segment.len).sum()
    }

    pub(in crate::memory) fn stats(&self) -> MemoryStats {
        let budgets = self.budget_figures();
        MemoryStats {
            budgets: budgets.count,
            budget_bytes: budgets.granted_bytes,
            budget_used_bytes: budgets.used_bytes,
            cached_blocks: self.blocks.len() - self.stats.live_blocks,
            segments: self.blocks.piece_count(),
            graph_bytes: self.graph_bytes(),
            ..self.stats
        }
    }

    pub(in crate::memory) fn reset_peak(&mut self) {
        self.most_live_before = self.most_live();
        self.stats.peak_allocated_bytes = self.stats.allocated_bytes;
        self.stats.peak_reserved_bytes = self.stats.reserved_bytes;
    }

    /// Returns the most bytes that were ever live at once.
    pub(super) fn most_live(&self) -> usize {
        self.most_live_before.max(self.stats.peak_allocated_bytes)
    }

    /// Returns the lines that hold the most live memory, largest first.
    pub(in crate::memory) fn largest_holders(&self, at_most: usize) -> Vec<MemoryHolder> {
        let live = self.blocks.iter().filter(|block| block.state == State::Live);
        largest_holders(live.filter_map(|block| Some((block.site?.location, block.len))), at_most)
    }

    /// Returns the segments with their blocks, by address.
    pub(in crate::memory) fn describe(&self, finished: &impl Fn(Use) -> bool) -> Vec<MemorySegment> {
        let state = |block: &Block| match block.state {
            State::Live => BlockState::Live,
            State::Kept => BlockState::Budget,
            _ if block.pool.is_graph() => BlockState::Graph,
            _ if block.uses.iter().any(|used| !finished(*used)) => BlockState::Waiting,
            _ => BlockState::Cached,
        };
        let describe = |at| {
            let block = &self.blocks[at];
            let (address, len_bytes) = (block.address, block.len);
            MemoryBlock { address, len_bytes, state: state(block), site: block.site }
        };
        let mut segments = Vec::new();
        for segment in self.blocks.segments() {
            let blocks: Vec<u32> = self.blocks.along(segment.first).collect();
            let runs = blocks.split(|&at| self.blocks[at].state == State::Hole);
            segments.extend(runs.filter(|run| !run.is_empty()).map(|run| {
                let blocks: Vec<MemoryBlock> = run.iter().map(|&at| describe(at)).collect();
                let len_bytes = blocks.iter().map(|block| block.len_bytes).sum();
                MemorySegment { address: blocks[0].address, len_bytes, blocks }
            }));
        }
        segments.sort_unstable_by_key(|segment| segment.address);
        segments
    }

    /// Returns the bytes of cached blocks that have an unfinished use.
    pub(in crate::memory) fn unfinished_bytes(&self, finished: &impl Fn(Use) -> bool) -> usize {
        let free = self.blocks.iter().filter(|block| block.is_free() && !block.pool.is_graph());
        free.filter(|block| block.uses.iter().any(|used| !finished(*used))).map(|block| block.len).sum()
    }
}
