//! The table of a snapshot, as text with aligned columns.

use super::{BlockState, MemorySnapshot, MemoryWaiters};
use std::fmt::{self, Formatter};
use warpline_driver::ByteSize;

/// The number of source lines that the table names.
const HOLDERS: usize = 5;
const NAME_WIDTH: usize = 24;
const FIGURE_WIDTH: usize = 11;

/// Writes a row: a name, and a figure for each column.
fn row(f: &mut Formatter<'_>, name: &str, figures: &[&str]) -> fmt::Result {
    write!(f, "{name:<NAME_WIDTH$}")?;
    figures.iter().try_for_each(|figure| write!(f, "{figure:>FIGURE_WIDTH$}"))?;
    writeln!(f)
}

/// Writes a row of sizes.
fn sizes(f: &mut Formatter<'_>, name: &str, sizes: &[usize]) -> fmt::Result {
    let sizes: Vec<String> = sizes.iter().map(|&bytes| ByteSize(bytes).to_string()).collect();
    row(f, name, &sizes.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Writes a row of a number of blocks and their bytes.
fn blocks(f: &mut Formatter<'_>, name: &str, (count, bytes): (usize, usize)) -> fmt::Result {
    row(f, name, &[&count.to_string(), &ByteSize(bytes).to_string()])
}

/// Writes a table of the requests that wait, if there are any.
fn waiters(f: &mut Formatter<'_>, name: &str, waiters: Option<MemoryWaiters>) -> fmt::Result {
    let Some(MemoryWaiters { requests, bytes, first_bytes, first_site, first_since }) = waiters else {
        return Ok(());
    };
    writeln!(f)?;
    row(f, name, &["number", "size"])?;
    blocks(f, "", (requests, bytes))?;
    writeln!(f, "the first has waited {first_since:.0?} for {}: {first_site}", ByteSize(first_bytes))
}

impl fmt::Display for MemorySnapshot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (stats, pinned) = (&self.stats, &self.pinned);
        if stats.is_lost {
            writeln!(f, "memory of {}, which cannot be used any more: what it held is lost", self.device)?;
        }
        row(f, &format!("memory of {}", self.device), &["now", "peak"])?;
        sizes(f, "allocated", &[stats.allocated_bytes, stats.peak_allocated_bytes])?;
        sizes(f, "reserved", &[stats.reserved_bytes, stats.peak_reserved_bytes])?;
        if stats.not_freed_bytes > 0 {
            sizes(f, "not freed by the driver", &[stats.not_freed_bytes])?;
        }
        match stats.limit_bytes {
            Some(limit) => sizes(f, "limit", &[limit])?,
            None => row(f, "limit", &["none"])?,
        }
        sizes(f, "largest free block", &[self.largest_free_bytes()])?;
        sizes(f, "pinned, allocated", &[pinned.allocated_bytes, pinned.peak_allocated_bytes])?;
        sizes(f, "pinned, reserved", &[pinned.reserved_bytes, pinned.peak_reserved_bytes])?;
        if pinned.not_freed_bytes > 0 {
            sizes(f, "pinned, not freed", &[pinned.not_freed_bytes])?;
        }
        sizes(f, "pinned, cap", &[pinned.cap_bytes])?;
        if pinned.reserve_bytes > 0 {
            sizes(f, "pinned beyond the cap, for short copies", &[pinned.reserve_bytes])?;
        }
        writeln!(f)?;
        row(f, "blocks", &["number", "size"])?;
        blocks(f, "live", self.count(BlockState::Live))?;
        blocks(f, "free, cached", self.count(BlockState::Cached))?;
        blocks(f, "free, used by streams", self.count(BlockState::Waiting))?;
        blocks(f, "free, kept for graphs", self.count(BlockState::Graph))?;
        if stats.budgets > 0 {
            blocks(f, "free, kept for budgets", self.count(BlockState::Budget))?;
        }
        blocks(f, "in segments", (self.segments.len(), stats.reserved_bytes))?;
        if stats.budgets > 0 {
            writeln!(f)?;
            row(f, "budgets", &["number", "size", "used"])?;
            let sizes =
                [stats.budget_bytes, stats.budget_used_bytes].map(|bytes| ByteSize(bytes).to_string());
            row(f, "", &[&stats.budgets.to_string(), &sizes[0], &sizes[1]])?;
            row(f, "outside of budgets", &["", &ByteSize(self.outside_bytes).to_string()])?;
        }
        waiters(f, "requests that wait", self.waiters)?;
        waiters(f, "requests for budgets", self.budget_waiters)?;
        waiters(f, "requests for pinned memory", self.pinned_waiters)?;
        let holders = self.largest_holders(HOLDERS);
        if holders.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        row(f, "largest holders", &["number", "size"])?;
        for holder in holders {
            let line = format!("{}:{}", holder.file, holder.line);
            let (count, bytes) = (holder.allocations, ByteSize(holder.bytes).to_string());
            // The line stands last, because a path may be longer than a column.
            writeln!(f, "{:NAME_WIDTH$}{count:>FIGURE_WIDTH$}{bytes:>FIGURE_WIDTH$}  {line}", "")?;
        }
        Ok(())
    }
}
