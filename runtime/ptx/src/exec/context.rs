//! The state that all threads of a block share, and the launch that it belongs to.

use super::block::Block;
use super::checks::Checker;
use super::code::Code;
use super::memory::Regions;
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
    /// The arguments, as the kernel's parameters lie in memory.
    pub(crate) params: &'a [u64],
    pub(crate) regions: Regions,
    pub(crate) checks: Checks,
    /// The bytes of shared memory of a block: of its variables and the launch.
    pub(crate) shared_bytes: u32,
    pub(crate) dynamic_shared_bytes: u32,
    /// The text that the kernel has printed.
    pub(crate) printed: Mutex<String>,
    /// A finished block, whose memory the next launch of the kernel uses. Its registers and its
    /// shared memory keep their contents, so launches that are to be reproducible have none.
    pub(crate) kept: Option<&'a Mutex<Option<Block>>>,
    /// Asks all threads to stop.
    pub(crate) stop: &'a AtomicBool,
}

impl Launch<'_> {
    /// Returns the number of threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
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
    /// The address of shared memory.
    pub(crate) shared: u64,
    /// The checks of the launch, if it has any.
    pub(crate) checker: Option<&'a RefCell<Checker>>,
}

/// Returns the place in x, y and z of the block or thread with a number.
pub(crate) fn position(number: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x), u64::from(y));
    [number % x, number / x % y, number / (x * y)].map(|at| at as u32)
}
