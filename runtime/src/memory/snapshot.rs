//! Snapshots of a device's memory: its segments and blocks, for reports.
//!
//! With the feature `serde` they serialize, for JSON and other formats.
#![forbid(unsafe_code)]

mod summary;

use super::{MemoryStats, PinnedStats};
use crate::order::Site;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::panic::Location;
use std::time::Duration;
use warpline_driver::{DeviceId, MemoryHolder};

/// The memory of a device at one moment, as returned by
/// [`Device::memory_snapshot`](crate::Device::memory_snapshot).
///
/// Its `Display` is the table of [`Device::memory_summary`](crate::Device::memory_summary). With
/// the feature `serde` it implements `Serialize`: fields have the names below, states are in lower
/// case, and a device is its name.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemorySnapshot {
    /// The device.
    #[cfg_attr(feature = "serde", serde(serialize_with = "in_text::display"))]
    pub device: DeviceId,
    /// The statistics of the device memory, of the same moment as `segments`.
    pub stats: MemoryStats,
    /// The statistics of the pinned host memory.
    pub pinned: PinnedStats,
    /// The requests that wait for pinned memory.
    pub pinned_waiters: Option<MemoryWaiters>,
    /// The segments, by address. Memory that another owner lends is not among them.
    pub segments: Vec<MemorySegment>,
    /// The requests that wait for device memory; `None` if none does.
    pub waiters: Option<MemoryWaiters>,
    /// The requests that wait for a budget.
    pub budget_waiters: Option<MemoryWaiters>,
    /// The bytes that cannot be granted to budgets: the pieces of memory with a live block that no
    /// budget counts, the memory of graphs, and what the driver did not free.
    pub outside_bytes: usize,
}

/// The requests that wait for device memory, which are served in the order of their calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryWaiters {
    /// The number of requests.
    pub requests: usize,
    /// The bytes that they wait for together, each at its rounded length.
    pub bytes: usize,
    /// The bytes that the first one asks for.
    pub first_bytes: usize,
    /// The op and the source line of the first one.
    #[cfg_attr(feature = "serde", serde(serialize_with = "in_text::line"))]
    pub first_site: Site,
    /// The time for which the first one has waited.
    pub first_since: Duration,
}

/// A range of addresses with memory, and the blocks that it is cut into: one allocation of the
/// driver or, where the device has virtual memory, pieces that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemorySegment {
    /// The address on the device.
    pub address: u64,
    /// The length in bytes: that of all blocks together.
    pub len_bytes: usize,
    /// The blocks by address. On a CPU device, unused addresses lie behind each block, which no
    /// length counts. Otherwise blocks follow each other without gaps.
    pub blocks: Vec<MemoryBlock>,
}

/// A part of a segment that is allocated or free as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryBlock {
    /// The address on the device.
    pub address: u64,
    /// The length in bytes, a multiple of 512.
    pub len_bytes: usize,
    /// Whether the block is allocated or free.
    pub state: BlockState,
    /// The op and the source line that allocated the block. For a free block, the one that did so
    /// last; `None` if the block was cut or joined since.
    #[cfg_attr(feature = "serde", serde(serialize_with = "in_text::site"))]
    pub site: Option<Site>,
}

/// The state of a block of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum BlockState {
    /// Allocated: a buffer or tensor holds it.
    Live,
    /// Free, but unfinished work on streams still uses it. Only a stream that is ordered after that
    /// work can reuse the block before the work has finished.
    Waiting,
    /// Free, ready to be reused or returned to the driver.
    Cached,
    /// Free, and kept for the launches of a captured graph.
    Graph,
    /// Free, and kept for short allocations in the scope of a budget.
    Budget,
}

impl MemorySnapshot {
    /// Returns the length in bytes of the largest run of neighbouring
    /// [`Cached`](BlockState::Cached) blocks. The allocator joins neighbours where one alone is too
    /// small.
    pub fn largest_free_bytes(&self) -> usize {
        let runs = self.segments.iter().flat_map(|segment| {
            let runs = segment.blocks.split(|block| block.state != BlockState::Cached);
            runs.map(|run| run.iter().map(|block| block.len_bytes).sum())
        });
        runs.max().unwrap_or(0)
    }

    /// Returns the source lines that hold live memory, largest first, and at most `at_most` of
    /// them.
    pub fn largest_holders(&self, at_most: usize) -> Vec<MemoryHolder> {
        let live = self.blocks().filter(|block| block.state == BlockState::Live);
        largest_holders(live.filter_map(|block| Some((block.site?.location, block.len_bytes))), at_most)
    }

    fn blocks(&self) -> impl Iterator<Item = &MemoryBlock> {
        self.segments.iter().flat_map(|segment| &segment.blocks)
    }

    /// Returns the number of blocks in this state, and their bytes together.
    fn count(&self, state: BlockState) -> (usize, usize) {
        let blocks = self.blocks().filter(|block| block.state == state);
        blocks.fold((0, 0), |(count, bytes), block| (count + 1, bytes + block.len_bytes))
    }
}

/// Adds up `live` blocks, each a line and a length, by line.
pub(super) fn largest_holders(
    live: impl Iterator<Item = (&'static Location<'static>, usize)>,
    at_most: usize,
) -> Vec<MemoryHolder> {
    let mut by_line = HashMap::new();
    for (location, len_bytes) in live {
        let (file, line) = (location.file(), location.line());
        let holder =
            by_line.entry((file, line)).or_insert(MemoryHolder { file, line, allocations: 0, bytes: 0 });
        holder.allocations += 1;
        holder.bytes += len_bytes;
    }
    let mut holders: Vec<_> = by_line.into_values().collect();
    holders.sort_unstable_by_key(|holder| (Reverse(holder.bytes), holder.file, holder.line));
    holders.truncate(at_most);
    holders
}

/// The serialized forms of types that have no `Serialize` of their own.
#[cfg(feature = "serde")]
mod in_text {
    use crate::order::Site;
    use serde::{Serialize, Serializer};
    use std::fmt::Display;

    #[derive(Serialize)]
    struct Line {
        op: &'static str,
        file: &'static str,
        line: u32,
        column: u32,
    }

    pub(super) fn display<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    fn line_of(site: &Site) -> Line {
        Line {
            op: site.op(),
            file: site.location.file(),
            line: site.location.line(),
            column: site.location.column(),
        }
    }

    pub(super) fn site<S: Serializer>(site: &Option<Site>, to: S) -> Result<S::Ok, S::Error> {
        site.as_ref().map(line_of).serialize(to)
    }

    pub(super) fn line<S: Serializer>(site: &Site, to: S) -> Result<S::Ok, S::Error> {
        line_of(site).serialize(to)
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_snapshot_is_json_with_the_names_of_its_fields() {
        let site = Site::here(&"alloc");
        let block = |address, state, site| MemoryBlock { address, len_bytes: 512, state, site };
        let blocks = vec![
            block(4096, BlockState::Live, Some(site)),
            block(4608, BlockState::Waiting, None),
            block(5120, BlockState::Cached, None),
            block(5632, BlockState::Graph, None),
        ];
        let snapshot = MemorySnapshot {
            device: DeviceId::Cpu(1),
            stats: MemoryStats { allocated_bytes: 512, limit_bytes: Some(9999), ..MemoryStats::default() },
            pinned: PinnedStats::default(),
            pinned_waiters: None,
            segments: vec![MemorySegment { address: 4096, len_bytes: 2048, blocks }],
            waiters: None,
            budget_waiters: None,
            outside_bytes: 0,
        };
        let json = serde_json::to_value(snapshot).unwrap();
        assert_eq!(json["device"], "cpu:1");
        assert_eq!(json["stats"]["allocated_bytes"], 512);
        assert_eq!(json["stats"]["limit_bytes"], 9999);
        assert_eq!(json["stats"]["served"]["grown"], 0);
        assert_eq!(json["pinned"]["cap_bytes"], 0);
        let line = site.location;
        let site = json!({
            "op": "alloc", "file": line.file(), "line": line.line(), "column": line.column(),
        });
        let block = |address: u64, state, site| {
            let len_bytes = 512;
            json!({ "address": address, "len_bytes": len_bytes, "state": state, "site": site })
        };
        let blocks = [
            block(4096, "live", site),
            block(4608, "waiting", json!(null)),
            block(5120, "cached", json!(null)),
            block(5632, "graph", json!(null)),
        ];
        assert_eq!(json["segments"], json!([{ "address": 4096, "len_bytes": 2048, "blocks": blocks }]));
    }
}
