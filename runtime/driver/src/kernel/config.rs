//! The launch configuration of a kernel: its grid, its blocks and its shared memory.

use crate::error::{Error, ErrorKind, Result};

/// The grid, the blocks and the dynamic shared memory of a launch. The CPU form of a kernel runs
/// once for each launch, whatever the configuration.
///
/// # Examples
/// ```
/// use warpline::kernel::LaunchConfig;
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
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory per block, in bytes. More than 48 KiB is possible if the device
    /// supports it (`DeviceProperties::shared_bytes_per_block`).
    pub shared_bytes: u32,
    /// Blocks per cluster in x, y, z. The blocks of a cluster can access each other's shared memory
    /// (compute capability 9.0 and later).
    pub cluster: Option<[u32; 3]>,
    /// True if all blocks have to run at the same time, so that they can wait for each other. The
    /// launch is refused if they do not fit on the device together.
    pub cooperative: bool,
}

impl LaunchConfig {
    /// Threads per block of [`for_elements`](Self::for_elements).
    pub const BLOCK: u32 = 256;

    /// The most bytes of dynamic shared memory per block that any GPU has: those of compute
    /// capability 9.0 and 10.0. CUDA C++ Programming Guide, "Technical Specifications per Compute
    /// Capability".
    pub const MAX_SHARED_BYTES: u32 = 227 << 10;

    // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the same for
    // 5.0 and later.
    const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
    const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
    const MAX_BLOCK_THREADS: u64 = 1024;
    const MAX_CLUSTER_BLOCKS: u64 = 8;

    /// Creates a configuration of `grid` blocks of `block` threads, in x, y, z, without dynamic
    /// shared memory.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        LaunchConfig { grid, block, shared_bytes: 0, cluster: None, cooperative: false }
    }

    /// Creates a configuration of `blocks` blocks of `threads` threads, all in x.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self::new([blocks, 1, 1], [threads, 1, 1])
    }

    /// Creates a configuration with one thread per element, in blocks of 256, and at least one
    /// block.
    pub fn for_elements(elements: impl TryInto<u64>) -> Self {
        let elements = elements.try_into().unwrap_or(u64::MAX);
        let blocks = elements.div_ceil(u64::from(Self::BLOCK)).clamp(1, i32::MAX as u64);
        Self::linear(blocks as u32, Self::BLOCK)
    }

    /// Returns the configuration with `shared_bytes` of dynamic shared memory per block.
    pub const fn with_shared_bytes(self, shared_bytes: u32) -> Self {
        LaunchConfig { shared_bytes, ..self }
    }

    /// Returns the configuration with clusters of `blocks`, which must divide the grid.
    pub const fn with_cluster(self, blocks: [u32; 3]) -> Self {
        LaunchConfig { cluster: Some(blocks), ..self }
    }

    /// Returns the configuration as a cooperative launch: all blocks run at the same time.
    pub const fn cooperatively(self) -> Self {
        LaunchConfig { cooperative: true, ..self }
    }

    /// Returns the number of threads in all blocks together, saturating at `u64::MAX`.
    pub fn threads(&self) -> u64 {
        self.grid.iter().chain(&self.block).fold(1, |product: u64, &n| product.saturating_mul(n.into()))
    }

    /// Checks that a GPU would accept the configuration: every dimension is at least 1 and within
    /// CUDA's limits. The CPU device checks this too, so that a launch that works there is not
    /// refused by a GPU.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument), which names `kernel`.
    #[inline]
    pub fn check(&self, kernel: &str) -> Result<()> {
        let within = |dims: [u32; 3], limits: [u32; 3]| (0..3).all(|i| dims[i].wrapping_sub(1) < limits[i]);
        let block_threads: u64 = self.block.iter().map(|&n| u64::from(n)).product();
        if within(self.grid, Self::MAX_GRID)
            && within(self.block, Self::MAX_BLOCK)
            && block_threads <= Self::MAX_BLOCK_THREADS
            && self.shared_bytes <= Self::MAX_SHARED_BYTES
            && self.cluster.is_none_or(|cluster| self.fits(cluster))
        {
            return Ok(());
        }
        Err(self.refusal(kernel))
    }

    /// Returns true if clusters of these blocks make up the grid. CUDA C++ Programming Guide,
    /// "Thread Block Clusters": at most 8 blocks.
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
                            "{kernel}: {what} {dims:?} has {size} in {axis}, expected 1 to \
                             {limit}; change the launch configuration"
                        ),
                    );
                }
            }
        }
        let (block, most) = (self.block, Self::MAX_BLOCK_THREADS);
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        let (bytes, most_bytes) = (self.shared_bytes, Self::MAX_SHARED_BYTES);
        if bytes > most_bytes {
            return Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{kernel}: {bytes} bytes of dynamic shared memory a block were requested, and no GPU has \
                     more than {most_bytes}; request less"
                ),
            );
        }
        if let Some(cluster) = self.cluster.filter(|_| threads <= most) {
            return Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{kernel}: clusters of {cluster:?} blocks do not divide a grid of {:?}; use \
                     clusters of 1 to {} blocks that divide it in each direction",
                    self.grid,
                    Self::MAX_CLUSTER_BLOCKS
                ),
            );
        }
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{kernel}: block {block:?} has {threads} threads, and at most {most} are allowed; \
                 use more and smaller blocks"
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
            "saxpy: grid [4, 0, 1] has 0 in y, expected 1 to 65535; change the launch \
            configuration"
        );
        assert!(refusal(LaunchConfig::linear(1, 0)).contains("block [0, 1, 1] has 0 in x"));
    }

    #[test]
    fn a_block_of_too_many_threads_is_refused() {
        assert_eq!(
            refusal(LaunchConfig::new([1, 1, 1], [64, 32, 1])),
            "saxpy: block [64, 32, 1] has 2048 threads, and at most 1024 are allowed; use more \
            and smaller blocks"
        );
        assert!(refusal(LaunchConfig::new([1, 1, 1], [1, 1, 65])).contains("has 65 in z, expected 1 to 64"));
        LaunchConfig::new([1, 1, 1], [32, 32, 1]).with_shared_bytes(48 << 10).check("saxpy").unwrap();
    }

    #[test]
    fn more_shared_memory_than_any_gpu_has_is_refused() {
        let config = |bytes| LaunchConfig::linear(1, 32).with_shared_bytes(bytes);
        config(227 << 10).check("saxpy").unwrap();
        assert_eq!(
            refusal(config((227 << 10) + 1)),
            "saxpy: 232449 bytes of dynamic shared memory a block were requested, and no GPU has more than \
             232448; request less"
        );
    }
}
