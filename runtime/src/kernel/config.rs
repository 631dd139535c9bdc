//! How many threads a kernel is launched with.

/// Grid, block and dynamic shared memory of a launch. Twins run once, whatever it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory a block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// Threads a block of [`for_elements`](Self::for_elements).
    pub const BLOCK: u32 = 256;

    /// One thread an element, in blocks of 256; at least one block.
    pub fn for_elements(elements: impl TryInto<u64>) -> Self {
        let elements = elements.try_into().unwrap_or(u64::MAX);
        let blocks = elements.div_ceil(u64::from(Self::BLOCK)).clamp(1, i32::MAX as u64);
        LaunchConfig { grid: [blocks as u32, 1, 1], block: [Self::BLOCK, 1, 1], shared_bytes: 0 }
    }
}
