//! The state that all threads of a block share, and the launch that it belongs to.

use super::checks::Checker;
use super::clusters::{Cluster, ClusterMemory, Clusters, GAP};
use super::code::Code;
use super::memory::Regions;
use super::registers::LANES;
use super::warp::Lanes;
use crate::checks::Checks;
use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// A launch, shared by all of its blocks.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) code: &'a Code,
    /// The text of the module.
    pub(crate) text: &'a str,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) clusters: Clusters,
    /// The arguments, as the kernel's parameters lie in memory.
    pub(crate) params: &'a [u64],
    pub(crate) regions: Regions,
    pub(crate) checks: Checks,
    /// The bytes of shared memory of a block: of its variables and the launch.
    pub(crate) shared_bytes: u32,
    pub(crate) dynamic_shared_bytes: u32,
    /// The text that the kernel has printed.
    pub(crate) printed: Mutex<String>,
    /// A finished cluster, whose memory the next launch of the kernel uses. Its registers and its
    /// shared memory keep their contents, so launches that are to be reproducible have none.
    pub(crate) kept: Option<&'a Mutex<Option<Cluster>>>,
    /// Asks all threads to stop.
    pub(crate) stop: &'a AtomicBool,
}

impl Launch<'_> {
    /// Returns the number of threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Returns the number of warps of a block.
    pub(crate) fn warps(&self) -> usize {
        (self.threads() as usize).div_ceil(LANES)
    }

    /// Returns the bytes from the shared memory of a block to that of the next one of its cluster.
    pub(crate) fn shared_stride(&self) -> u64 {
        (u64::from(self.shared_bytes) + GAP).next_multiple_of(self.code.shared_align.max(16))
    }

    /// Returns the place of a block in the grid, in x, y and z.
    pub(crate) fn position_of(&self, block: u64) -> [u32; 3] {
        self.clusters.position_of(block, self.grid)
    }

    /// Returns the address and the size of the arguments.
    pub(crate) fn params(&self) -> (u64, u64) {
        (self.params.as_ptr().expose_provenance() as u64, size_of_val(self.params) as u64)
    }
}

/// The state that the threads of a block share.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) launch: &'a Launch<'a>,
    /// The block, in x, y and z.
    pub(crate) block: [u32; 3],
    /// The number of the block. The blocks of a cluster have numbers that follow each other.
    pub(crate) number: u64,
    /// The address of shared memory.
    pub(crate) shared: u64,
    pub(crate) cluster: ClusterMemory,
    /// The checks of the launch, if it has any.
    pub(crate) checker: Option<&'a RefCell<Checker>>,
}

impl Context<'_> {
    /// Returns the number of a warp of the block among those of the cluster.
    pub(crate) fn warp_in_cluster(&self, lanes: &Lanes) -> usize {
        self.cluster.rank as usize * self.launch.warps() + lanes.first_thread as usize / LANES
    }
}

/// Returns the place in x, y and z of the block or thread with a number.
pub(crate) fn position(number: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x), u64::from(y));
    [number % x, number / x % y, number / (x * y)].map(|at| at as u32)
}
