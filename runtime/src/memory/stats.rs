//! What the memory of a device comes to, in numbers, and numbers of bytes as text.
#![forbid(unsafe_code)]

use std::fmt;

/// The device memory of one device: live, cached, and how allocations were served.
///
/// `allocated` and `reserved` are what PyTorch's notes call `memory_allocated` and `memory_reserved`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of live allocations, each at its rounded length.
    pub allocated_bytes: usize,
    /// The most `allocated_bytes` has been since the start or the last reset.
    pub peak_allocated_bytes: usize,
    /// Bytes held from the driver: live ones and cached ones.
    pub reserved_bytes: usize,
    /// The most `reserved_bytes` has been since the start or the last reset.
    pub peak_reserved_bytes: usize,
    /// Live allocations.
    pub live_blocks: usize,
    /// Free pieces of segments, ready to be reused.
    pub cached_blocks: usize,
    /// Pieces of memory held from the driver.
    pub segments: usize,
    /// Bytes of `reserved_bytes` that belong to captured graphs: what their ops allocated, and what is free between.
    pub graph_bytes: usize,
    /// How allocations were served so far.
    pub served: Served,
}

/// How many allocations each way of finding memory has served. Never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// By a block last used on the allocating stream itself: the order of the stream protects it.
    pub own: u64,
    /// By a block whose last uses are on other streams, which the allocating stream is already after.
    pub ordered: u64,
    /// By a block whose last uses are finished, or that never had one.
    pub finished: u64,
    /// By joining free neighbours.
    pub merged: u64,
    /// By letting the allocating stream wait, on the device, for the last use of a block.
    pub waited: u64,
    /// By new memory from the driver.
    pub grown: u64,
}

/// A number of bytes, for people: `512 B`, `4.0 KiB`, `139 GiB`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteSize(pub(crate) usize);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].iter();
        let mut unit = units.next().unwrap_or(&"KiB");
        // 1023.95 would be printed as 1024.
        while value >= 1023.95 {
            let Some(next) = units.next() else { break };
            value /= 1024.0;
            unit = next;
        }
        if value >= 99.95 { write!(f, "{value:.0} {unit}") } else { write!(f, "{value:.1} {unit}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let text = |bytes| ByteSize(bytes).to_string();
        assert_eq!(text(0), "0 B");
        assert_eq!(text(1023), "1023 B");
        assert_eq!(text(4096), "4.0 KiB");
        assert_eq!(text((1 << 20) - 1), "1.0 MiB");
        assert_eq!(text(3 << 29), "1.5 GiB");
        assert_eq!(text(139 << 30), "139 GiB");
    }
}
