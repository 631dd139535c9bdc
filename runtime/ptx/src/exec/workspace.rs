//! The memory of a cooperative launch in which its blocks wait for each other.
//!
//! A driver passes the address of this memory in the special registers `%envreg1` and `%envreg2`:
//! the upper and the lower word. The header of cooperative groups declares the contents
//! (cooperative_groups/details/driver_abi.h, `grid_workspace`): a word with the size in bytes, and
//! a word in which `this_grid().sync()` counts the blocks that have arrived, which starts at 0. In
//! a launch that is not cooperative the address is null. `grid_group::is_valid` then returns
//! false, and `sync` executes `trap`.

use super::aligned::Aligned;
use super::memory::Element;

/// The bytes of the two words.
const LEN_BYTES: u64 = 8;

/// The workspace of a launch.
#[derive(Debug)]
pub(crate) struct Workspace(Aligned);

impl Workspace {
    pub(crate) fn new() -> Self {
        let memory = Aligned::new(LEN_BYTES, LEN_BYTES);
        // SAFETY: store needs an aligned address in memory that is valid for writes: it is the
        // first word of `memory`, which nothing else has yet.
        unsafe { (LEN_BYTES as u32).store(memory.start()) };
        Workspace(memory)
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.start()
    }

    /// Returns whether all bytes of `from..to` are in the workspace.
    pub(crate) fn has(&self, from: u64, to: u64) -> bool {
        self.address() <= from && to - self.address() <= LEN_BYTES
    }
}
