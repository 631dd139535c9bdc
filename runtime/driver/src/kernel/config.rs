//! How many threads a kernel is launched with.

use crate::error::{Error, ErrorKind, Result};

/// Grid, block and dynamic shared memory of a launch. Twins run once, whatever it says.
///
/// # Examples
/// ```
/// use warpline_driver::kernel::LaunchConfig;
///
/// let config = LaunchConfig::for_elements(1000);
/// assert_eq!((config.grid, config.block), ([4, 1, 1], [256, 1, 1]));
/// let tiled = LaunchConfig::new([8, 8, 1], [16, 16, 1]).with_shared_bytes(2048);
/// assert_eq!(tiled.threads(), 64 * 256);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory a block, in bytes. Above 48 KiB the device is asked for it.
    pub shared_bytes: u32,
    /// Blocks of a cluster in x, y, z: those that can reach each other's shared memory (compute capability 9.0 and on).
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks run at once, so that they can wait for each other. Refused if they do not fit.
    pub cooperative: bool,
}

impl LaunchConfig {
    /// Threads a block of [`for_elements`](Self::for_elements).
    pub const BLOCK: u32 = 256;

    // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the same for 5.0 and everything since.
    const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
    const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
    const MAX_BLOCK_THREADS: u64 = 1024;
    const MAX_CLUSTER_BLOCKS: u64 = 8;

    /// `grid` blocks of `block` threads, in x, y, z, without dynamic shared memory.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        LaunchConfig { grid, block, shared_bytes: 0, cluster: None, cooperative: false }
    }

    /// `blocks` blocks of `threads` threads, all in x.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self::new([blocks, 1, 1], [threads, 1, 1])
    }

    /// One thread an element, in blocks of 256; at least one block.
    pub fn for_elements(elements: impl TryInto<u64>) -> Self {
        let elements = elements.try_into().unwrap_or(u64::MAX);
        let blocks = elements.div_ceil(u64::from(Self::BLOCK)).clamp(1, i32::MAX as u64);
        Self::linear(blocks as u32, Self::BLOCK)
    }

    /// The same with `shared_bytes` of dynamic shared memory a block.
    pub const fn with_shared_bytes(self, shared_bytes: u32) -> Self {
        LaunchConfig { shared_bytes, ..self }
    }

    /// The same with clusters of `blocks`, which divide the grid.
    pub const fn with_cluster(self, blocks: [u32; 3]) -> Self {
        LaunchConfig { cluster: Some(blocks), ..self }
    }

    /// The same with all blocks running at once.
    pub const fn cooperatively(self) -> Self {
        LaunchConfig { cooperative: true, ..self }
    }

    /// Threads in all blocks together, as far as 64 bits count them.
    pub fn threads(&self) -> u64 {
        self.grid.iter().chain(&self.block).fold(1, |product: u64, &n| product.saturating_mul(n.into()))
    }

    /// Whether a GPU would take it: every dimension at least 1 and within CUDA's limits. The CPU device asks the same, so
    /// that what runs there is not refused elsewhere.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument), in the name of `kernel`.
    #[inline]
    pub fn check(&self, kernel: &str) -> Result<()> {
        let within = |dims: [u32; 3], limits: [u32; 3]| (0..3).all(|i| dims[i].wrapping_sub(1) < limits[i]);
        let block_threads: u64 = self.block.iter().map(|&n| u64::from(n)).product();
        if within(self.grid, Self::MAX_GRID)
            && within(self.block, Self::MAX_BLOCK)
            && block_threads <= Self::MAX_BLOCK_THREADS
            && self.cluster.is_none_or(|cluster| self.fits(cluster))
        {
            return Ok(());
        }
        Err(self.refusal(kernel))
    }

    /// Whether clusters of these blocks make up the grid. CUDA C++ Programming Guide, "Thread Block Clusters": at most 8 blocks.
    fn fits(&self, cluster: [u32; 3]) -> bool {
        let blocks: u64 = cluster.iter().map(|&n| u64::from(n)).product();
        (1..=Self::MAX_CLUSTER_BLOCKS).contains(&blocks)
            && (0..3).all(|i| self.grid[i].is_multiple_of(cluster[i]))
    }

    #[cold]
    fn refusal(&self, kernel: &str) -> Error {
        for (what, dims, limits) in
            [("grid", self.grid, Self::MAX_GRID), ("block", self.block, Self::MAX_BLOCK)]
        {
            for (i, axis) in ["x", "y", "z"].into_iter().enumerate() {
                let (size, limit) = (dims[i], limits[i]);
                if size == 0 || size > limit {
                    return Error::new(
                        ErrorKind::InvalidArgument,
                        format!(
                            "{kernel}: {what} {dims:?} has {size} in {axis}, which takes 1 to {limit}; \
                             change the launch configuration"
                        ),
                    );
                }
            }
        }
        let (block, most) = (self.block, Self::MAX_BLOCK_THREADS);
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        if let Some(cluster) = self.cluster.filter(|_| threads <= most) {
            return Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{kernel}: clusters of {cluster:?} blocks do not make up a grid of {:?}; use 1 to {} blocks that divide it in \
                     each direction",
                    self.grid,
                    Self::MAX_CLUSTER_BLOCKS
                ),
            );
        }
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{kernel}: block {block:?} has {threads} threads, at most {most} fit; use smaller blocks and more of them"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(config: LaunchConfig) -> String {
        let error = config.check("saxpy").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.to_string()
    }

    #[test]
    fn for_elements_rounds_up_and_has_at_least_one_block() {
        for (elements, blocks) in [(0u64, 1), (1, 1), (256, 1), (257, 2), (u64::MAX, i32::MAX as u32)] {
            let config = LaunchConfig::for_elements(elements);
            assert_eq!(config, LaunchConfig::linear(blocks, 256));
            config.check("saxpy").unwrap();
        }
    }

    #[test]
    fn an_empty_dimension_is_refused() {
        assert_eq!(
            refusal(LaunchConfig::new([4, 0, 1], [256, 1, 1])),
            "saxpy: grid [4, 0, 1] has 0 in y, which takes 1 to 65535; change the launch configuration"
        );
        assert!(refusal(LaunchConfig::linear(1, 0)).contains("block [0, 1, 1] has 0 in x"));
    }

    #[test]
    fn a_block_of_too_many_threads_is_refused() {
        assert_eq!(
            refusal(LaunchConfig::new([1, 1, 1], [64, 32, 1])),
            "saxpy: block [64, 32, 1] has 2048 threads, at most 1024 fit; use smaller blocks and more of them"
        );
        assert!(
            refusal(LaunchConfig::new([1, 1, 1], [1, 1, 65])).contains("has 65 in z, which takes 1 to 64")
        );
        LaunchConfig::new([1, 1, 1], [32, 32, 1]).with_shared_bytes(48 << 10).check("saxpy").unwrap();
    }
}
