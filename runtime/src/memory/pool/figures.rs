//! Statistics of the pool.

use super::{Pool, PoolId};
use crate::memory::blocks::{Block, Segment, State};
use crate::memory::stats::MemoryStats;
use crate::order::Use;
use std::panic::Location;

impl Pool {
    /// Returns the number of blocks, live and free.
    pub(in crate::memory) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    pub(in crate::memory) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Returns the bytes of graphs' segments that are free, and that nothing outside the graph
    /// gets.
    pub(in crate::memory) fn free_bytes_of_graphs(&self) -> usize {
        let free = |block: &&Block| block.pool != PoolId::DEFAULT && block.state != State::Live;
        self.blocks.iter().filter(free).map(|block| block.len).sum()
    }

    /// Returns the bytes of the segments that belong to graphs.
    fn graph_bytes(&self) -> usize {
        let graphs = |segment: &&Segment| self.blocks[segment.first].pool != PoolId::DEFAULT;
        self.blocks.segments().filter(graphs).map(|segment| segment.len).sum()
    }

    pub(in crate::memory) fn stats(&self) -> MemoryStats {
        MemoryStats {
            allocated_bytes: self.allocated,
            peak_allocated_bytes: self.peak_allocated,
            reserved_bytes: self.reserved,
            peak_reserved_bytes: self.peak_reserved,
            live_blocks: self.live,
            cached_blocks: self.blocks.len() - self.live,
            segments: self.blocks.segment_count(),
            graph_bytes: self.graph_bytes(),
            served: self.served,
        }
    }

    pub(in crate::memory) fn reset_peak(&mut self) {
        self.peak_allocated = self.allocated;
        self.peak_reserved = self.reserved;
    }

    /// Returns the lines that hold the most live memory, with the number of bytes, largest first.
    pub(in crate::memory) fn largest_holders(
        &self,
        at_most: usize,
    ) -> Vec<(usize, &'static Location<'static>)> {
        let mut holders: Vec<(usize, &'static Location<'static>)> = Vec::new();
        let mut by_line = std::collections::HashMap::new();
        for block in self.blocks.iter().filter(|block| block.state == State::Live) {
            if let Some(site) = block.site {
                *by_line.entry(site.location).or_insert(0) += block.len;
            }
        }
        holders.extend(by_line.into_iter().map(|(line, bytes)| (bytes, line)));
        holders.sort_by_key(|&(bytes, line)| (std::cmp::Reverse(bytes), line.file(), line.line()));
        holders.truncate(at_most);
        holders
    }

    /// Returns the bytes of cached blocks that have an unfinished use.
    pub(in crate::memory) fn unfinished_bytes(&self, finished: &impl Fn(Use) -> bool) -> usize {
        let free =
            self.blocks.iter().filter(|block| block.state != State::Live && block.pool == PoolId::DEFAULT);
        free.filter(|block| block.uses.iter().any(|used| !finished(*used))).map(|block| block.len).sum()
    }
}
