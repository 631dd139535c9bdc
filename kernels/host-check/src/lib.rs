//! The device code of `warpline-kernels`, run on the host and compared with the twins.
//!
//! A check runs both forms of a kernel's device code: its source, compiled for the host, and its
//! committed PTX.
//!
//! # The source
//! `build.rs` compiles `kernels/cuda/*.cu` as C++ behind `host/device.h`, which declares the parts
//! that CUDA adds to the language. A launch runs the blocks one after the other, and the threads of
//! a block as fibers that switch at barriers and shuffles. So indices, bounds, alignment, barriers
//! and the order of additions are those of the device. The instructions and `exp`, `log`, `sin` and
//! `cos` are those of the host. A missing barrier shows only if a thread runs ahead of it in one of
//! the orders in which the fibers run.
//!
//! Without a C++ compiler nothing is compiled, and the tests run the PTX alone.
//!
//! # The PTX
//! `warpline-ptx` runs the text as it is. The launch may touch the elements of the operands and no
//! other byte, and may write written operands alone. It has all checks, and operands that a kernel
//! overwrites are undefined at its start. A launch with fibers in another order becomes one with
//! warps in another order.
//!
//! # Systems
//! The crate is empty except on Linux. Fibers need `ucontext`, and operands end before a page that
//! `mprotect` makes inaccessible.
#![cfg(target_os = "linux")]

mod check;
mod code;
mod memory;
mod values;

pub use check::{Agree, Check, Problem};
pub use code::{load, ptx_text};
pub use values::{awkward, plain};

use std::ffi::c_void;
use warpline_runtime::kernel::LaunchConfig;

/// The configuration of a launch. `host/launch.h` has the same struct.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    /// 0: fibers run in the order of the threads, and warps in the order of their numbers. Any
    /// other value selects another order.
    seed: u64,
}

impl Launch {
    /// Returns a launch with this grid and these blocks, and fibers and warps in order.
    pub const fn new(config: LaunchConfig) -> Self {
        Launch { grid: config.grid, block: config.block, seed: 0 }
    }

    /// Returns the launch with fibers and warps in another order.
    pub fn shuffled(self, seed: u64) -> Self {
        Launch { seed, ..self }
    }
}

/// The entry of a kernel, which takes the launch and a pointer to each argument.
type HostKernel = unsafe extern "C" fn(*const Launch, *const *const c_void);

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

fn host_kernel(name: &str) -> Option<HostKernel> {
    KERNELS.iter().find(|(listed, _)| *listed == name).map(|(_, kernel)| *kernel)
}

/// One block of one thread.
pub const ONE_THREAD: Launch = Launch::new(LaunchConfig::linear(1, 1));
/// Blocks of one full warp and one more thread.
pub const PARTIAL_WARPS: Launch = Launch::new(LaunchConfig::linear(2, 33));
/// Blocks of two warps.
pub const WARPS: Launch = Launch::new(LaunchConfig::linear(3, 64));
/// A grid and blocks of three dimensions.
pub const CUBES: Launch = Launch::new(LaunchConfig::new([2, 1, 2], [4, 4, 4]));

/// Returns launches under which every kernel has to be right: full and partial warps, one thread,
/// all dimensions, more threads than elements, and fewer.
pub fn launches() -> [Launch; 6] {
    let one_warp = Launch::new(LaunchConfig::linear(1, 32));
    let flat = Launch::new(LaunchConfig::new([1, 2, 1], [3, 5, 1]));
    [ONE_THREAD, one_warp, PARTIAL_WARPS, WARPS, CUBES, flat]
}

/// Returns the launches of [`launches`], one with `config`, and some in another order. They are
/// for kernels whose threads wait for each other.
pub fn launches_and(config: LaunchConfig) -> Vec<Launch> {
    let own = Launch::new(config);
    let shuffled = [PARTIAL_WARPS, WARPS, own].map(|launch| launch.shuffled(0x9e37_79b9));
    launches().into_iter().chain([own]).chain(shuffled).collect()
}

#[cfg(test)]
mod tests {
    use super::KERNELS;
    use std::collections::BTreeSet;

    #[test]
    #[cfg_attr(without_cpp, ignore = "needs a C++ compiler, and none of c++, g++ and clang++ runs here")]
    fn every_kernel_is_compiled_and_nothing_else() {
        let compiled: BTreeSet<_> = KERNELS.iter().map(|(name, _)| *name).collect();
        let listed: BTreeSet<_> = warpline_kernels::ALL.iter().map(|kernel| kernel.name).collect();
        assert_eq!(compiled, listed);
    }
}
