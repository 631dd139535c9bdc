//! The failures of a running kernel.

mod text;

use super::checks::report::{NamedByte, Race};
use super::memory::{Access, Region};
use super::source::{SourceLine, write_line};
use std::fmt;
use text::elements_from;

/// A failed launch: what failed, in which thread and at which line.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The failure, with its numbers.
    pub kind: FaultKind,
    /// The name of the kernel in the PTX.
    pub kernel: String,
    /// The line in the PTX text, from 1. It is 0 if the failure has no line: then block and thread
    /// have no meaning.
    pub ptx_line: u32,
    /// The line of the source, if the PTX has line information.
    pub source: Option<SourceLine>,
    /// The block, in x, y and z.
    pub block: [u32; 3],
    /// The thread in its block, in x, y and z.
    pub thread: [u32; 3],
    /// The text that the kernel had printed.
    pub printed: String,
}

/// The bytes behind address 0 that no memory has. An access there is one through a null pointer,
/// perhaps with an index or the offset of a field. Linux maps nothing below 64 KiB.
const NULL_BYTES: u64 = 1 << 16;

/// The most elements by which an index misses memory: that of an index of 32 bits which wraps. A
/// pointer that is farther away is none to this memory.
const FAR: u64 = 1 << 32;

/// The most bytes by which a wrong index misses the shared memory of a block: about the most that
/// a block can have. CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability".
pub(crate) const NEAR: u64 = 256 << 10;

/// The most bytes from one element to the next of which an index that wrapped is recognised.
const LONGEST_STRIDE: u64 = 4096;

/// A variable in shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedVariable {
    /// The name in the PTX.
    pub name: String,
    /// Its offset in shared memory.
    pub start: u64,
    /// The number of its bytes.
    pub len_bytes: u64,
}

/// Returns an offset in shared memory with its sign. That of a negative index has wrapped in 32 or
/// 64 bits, or the index wrapped in 32 bits before it was multiplied by the bytes from one element
/// to the next.
pub(crate) fn signed(offset: u64) -> i64 {
    match u32::try_from(offset) {
        Ok(offset) => offset.cast_signed().into(),
        Err(_) => wrapped(offset).filter(|offset| *offset < 0).unwrap_or(offset.cast_signed()),
    }
}

/// Returns the offset of the element that an index is meant for which wrapped in 32 bits.
pub(crate) fn wrapped(offset: u64) -> Option<i64> {
    let (upper, lower) = (offset >> 32, i64::from((offset as u32).cast_signed()));
    ((1..LONGEST_STRIDE).contains(&upper) && lower.unsigned_abs() <= NEAR).then_some(lower)
}

/// The threads that wait at a barrier of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtBarrier {
    /// The number of the barrier.
    pub barrier: u32,
    /// The number of threads that wait.
    pub waiting: u32,
    /// The number of threads that have arrived and do not wait (`bar.arrive`).
    pub arrived: u32,
    /// The number of threads that the barrier needs, if it is not all of the block.
    pub needed: Option<u32>,
}

/// The failures of a kernel.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside of the memory that the launch may touch.
    OutOfBounds {
        /// The address of the first byte.
        address: u64,
        /// The number of bytes.
        bytes: u64,
        /// A read or a write. An atomic operation is a write.
        access: Access,
        /// The memory that is nearest to it.
        nearest: Option<Region>,
        /// True if the kernel may call `malloc`, which returns null if it has no memory.
        calls_malloc: bool,
    },
    /// A write to memory that the launch may only read.
    ReadOnly {
        /// The operand or variable that has these bytes.
        region: Region,
        /// The address of the first byte.
        address: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// An access outside of the shared memory of the block.
    OutOfShared {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// A read or a write.
        access: Access,
        /// The number of bytes that the block has.
        len_bytes: u64,
        /// The variable that is nearest to it, if the block has no dynamic shared memory.
        variable: Option<SharedVariable>,
        /// The number in the cluster of the block, if it is not that of the thread.
        block: Option<u32>,
    },
    /// An access outside of the local memory of the thread.
    OutOfLocal {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// A read or a write.
        access: Access,
        /// The number of bytes that the thread has.
        len_bytes: u64,
    },
    /// An address that is not a multiple of the size of the access.
    Misaligned {
        /// The address of the first byte.
        address: u64,
        /// The number of bytes, of which the address should be a multiple.
        bytes: u64,
    },
    /// `trap`
    Trap,
    /// `trap`, in a kernel that synchronises its grid, by a launch that is not cooperative.
    TrapWithoutGrid,
    /// A failed assertion of the program.
    Assert {
        /// The text of the expression in `assert`.
        message: String,
        /// The function that asserts. It is empty if it is not known.
        function: String,
        /// The source file.
        file: String,
        /// The source line.
        line: u32,
    },
    /// An instruction with a mask of lanes, run by a lane that the mask does not name.
    NotAMember {
        /// A bit for each lane that takes part, as the lane that failed has it.
        mask: u32,
        /// The number of the lane that failed, in its warp.
        lane: u32,
    },
    /// A barrier with a number of threads that whole warps do not add up to.
    NotWholeWarps {
        /// The number of threads.
        threads: u32,
    },
    /// A barrier with a number that no barrier has.
    NoSuchBarrier {
        /// The number, above 15.
        id: u32,
    },
    /// An arrival at the barrier of the cluster by a thread that has arrived and not waited.
    ArrivedTwice,
    /// A wait at the barrier of the cluster by a thread that has not arrived.
    NotArrived,
    /// An address in a block of the cluster that the cluster does not have.
    NoSuchRank {
        /// The number of the block in the cluster.
        rank: u32,
        /// The number of blocks of the cluster.
        blocks: u32,
    },
    /// An access to the shared memory of a block of the cluster whose threads have exited.
    BlockExited {
        /// The number of the block in the cluster.
        rank: u32,
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// A read or a write.
        access: Access,
        /// The variable at the offset, if the block has no dynamic shared memory.
        variable: Option<SharedVariable>,
    },
    /// All threads of a block wait, and none of them can go on.
    Deadlock {
        /// The barriers of the block at which threads wait.
        at_barriers: Vec<AtBarrier>,
        /// The number of threads that wait at the barrier of the cluster.
        at_cluster_barrier: u32,
        /// The number of threads that wait for other lanes of their warp.
        for_lanes: u32,
        /// The number of threads that have exited.
        exited: u32,
    },
    /// Calls that are nested too deeply.
    StackOverflow {
        /// The number of bytes of local memory that a thread has.
        len_bytes: u64,
    },
    /// A call of a function by a number that no function has.
    NoSuchFunction {
        /// The number, which the kernel took for the address of a function.
        address: u64,
    },
    /// A branch by an index beyond the end of its list of targets.
    NoSuchTarget {
        /// The index, `len` or above.
        index: u32,
        /// The number of targets.
        len: u32,
    },
    /// Two accesses to the same bytes that nothing orders. [`Checks::races`](crate::Checks::races)
    Race(Box<Race>),
    /// A read of bytes that nothing has written. [`Checks::init`](crate::Checks::init)
    Uninitialised {
        /// The first byte.
        place: NamedByte,
        /// The number of bytes.
        bytes: u64,
    },
    /// An operand of which the launch has not written all bytes.
    /// [`Checks::init`](crate::Checks::init)
    NotWritten {
        /// The operand, whose region is [undefined](Region::is_undefined) at the start.
        region: Region,
        /// Its first element with a byte that is not written.
        element: u64,
        /// The number of its bytes that are not written.
        bytes: u64,
    },
    /// A barrier of all threads that opened without threads that had exited.
    /// [`Checks::sync`](crate::Checks::sync)
    ExitedBeforeBarrier {
        /// The number of threads that reached it.
        waited: u32,
        /// The number of threads that had exited.
        exited: u32,
        /// A thread that had exited.
        thread: [u32; 3],
        /// The block of that thread, if the barrier is that of the cluster.
        block: Option<[u32; 3]>,
    },
    /// A barrier of all threads at which they waited at two instructions.
    /// [`Checks::sync`](crate::Checks::sync)
    DivergentBarrier {
        /// A thread that waited at the other instruction.
        thread: [u32; 3],
        /// The line of the other instruction in the PTX text.
        ptx_line: u32,
        /// The line of the other instruction in the source, if it is known.
        source: Option<SourceLine>,
    },
    /// A shuffle from a lane that has exited. [`Checks::sync`](crate::Checks::sync)
    ShuffleFromExited {
        /// The lane whose value it asked for.
        lane: u32,
    },
    /// The launch was stopped from outside.
    Stopped,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, kernel, ptx_line, source, block, thread, printed: _ } = self;
        if *ptx_line == 0 {
            return write!(f, "{kernel} failed: {kind}");
        }
        write!(f, "{kernel} failed in thread {thread:?} of block {block:?} (")?;
        write_line(f, *ptx_line, source.as_ref())?;
        write!(f, "): {kind}")
    }
}

impl std::error::Error for Fault {}

impl FaultKind {
    /// Returns whether this is an access to memory that is far from all memory that the launch
    /// declares.
    pub fn is_undeclared(&self) -> bool {
        match self {
            FaultKind::OutOfBounds { address, .. } if *address < NULL_BYTES => false,
            FaultKind::OutOfBounds { nearest: None, .. } => true,
            FaultKind::OutOfBounds { nearest: Some(region), address, bytes, .. } => {
                let (before, index) = elements_from(region, *address, *bytes);
                before.max(index) > FAR
            }
            _ => false,
        }
    }
}
