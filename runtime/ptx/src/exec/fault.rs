//! The failures of a running kernel.

use super::checks::report::{Place, Race, short};
use super::control::BARRIERS;
use super::memory::{Access, Region};
use super::registers::LANES;
use std::fmt;

/// A failed launch: what failed, in which thread and at which line.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The kind of a failure.
    pub kind: FaultKind,
    /// The kernel.
    pub kernel: String,
    /// The line in the PTX text, from 1. It is 0 if the failure has no line: then block and thread
    /// have no meaning.
    pub ptx_line: u32,
    /// The file and the line in the source, if the PTX has line information.
    pub source: Option<(String, u32)>,
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

impl SharedVariable {
    /// Writes the place of an offset outside of shared memory, as seen from the variable.
    fn locate(&self, f: &mut fmt::Formatter<'_>, offset: u64, block: &str) -> fmt::Result {
        let (name, len) = (short(&self.name), self.len_bytes);
        let byte = signed(offset) - self.start as i64;
        write!(f, "byte {byte} of the shared variable {name}{block}, which has {len} bytes; mend the index")
    }
}

/// Returns an offset in shared memory with its sign: that of a negative index has wrapped, in 32
/// or 64 bits.
pub(crate) fn signed(offset: u64) -> i64 {
    u32::try_from(offset).map_or(offset.cast_signed(), |offset| offset.cast_signed().into())
}

/// The kind of a failure.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside of the memory that the launch may touch.
    OutOfBounds {
        /// The address of the first byte.
        address: u64,
        /// The number of bytes.
        bytes: u64,
        /// The kind of access.
        access: Access,
        /// The memory that is nearest to it.
        nearest: Option<Region>,
        /// True if the kernel may call `malloc`, which returns null if it has no memory.
        calls_malloc: bool,
    },
    /// A write to memory that the launch may only read.
    ReadOnly {
        /// The memory.
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
        /// The kind of access.
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
        /// The kind of access.
        access: Access,
        /// The number of bytes that the thread has.
        len_bytes: u64,
    },
    /// An address that is not a multiple of the size of the access.
    Misaligned {
        /// The address.
        address: u64,
        /// The size.
        bytes: u64,
    },
    /// `trap`
    Trap,
    /// `trap`, in a kernel that synchronises its grid, by a launch that is not cooperative.
    TrapWithoutGrid,
    /// A failed assertion of the program.
    Assert {
        /// The expression.
        message: String,
        /// The function, if it is known.
        function: String,
        /// The source file.
        file: String,
        /// The source line.
        line: u32,
    },
    /// An instruction with a mask of lanes, run by a lane that the mask does not name.
    NotAMember {
        /// The mask.
        mask: u32,
        /// The lane.
        lane: u32,
    },
    /// A barrier with a number of threads that whole warps do not add up to.
    NotWholeWarps {
        /// The number of threads.
        threads: u32,
    },
    /// A barrier with a number that no barrier has.
    NoSuchBarrier {
        /// The number.
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
    },
    /// All threads of a block wait, and none of them can go on.
    Deadlock {
        /// The number of threads that wait at a barrier.
        at_barrier: u32,
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
        /// The number.
        address: u64,
    },
    /// A branch by an index beyond the end of its list of targets.
    NoSuchTarget {
        /// The index.
        index: u32,
        /// The number of targets.
        len: u32,
    },
    /// Two accesses to the same bytes that nothing orders. [`Checks::races`](crate::Checks::races)
    Race(Box<Race>),
    /// A read of bytes that nothing has written. [`Checks::init`](crate::Checks::init)
    Uninitialised {
        /// The first byte.
        place: Place,
        /// The number of bytes.
        bytes: u64,
    },
    /// An operand of which the launch has not written all bytes.
    /// [`Checks::init`](crate::Checks::init)
    NotWritten {
        /// The operand.
        region: Region,
        /// Its first element with a byte that is not written.
        element: u64,
        /// The number of its bytes that are not written.
        bytes: u64,
    },
    /// A barrier of all threads that opened without threads that had exited.
    /// [`Checks::sync`](crate::Checks::sync)
    ExitedBeforeBarrier {
        /// The number of threads that waited.
        waited: u32,
        /// The number of threads that had exited.
        exited: u32,
        /// A thread that had exited.
        thread: [u32; 3],
    },
    /// A barrier of all threads at which they waited at two instructions.
    /// [`Checks::sync`](crate::Checks::sync)
    DivergentBarrier {
        /// A thread that waited at the other instruction.
        thread: [u32; 3],
        /// The line of the other instruction in the PTX text.
        ptx_line: u32,
        /// The file and the line of the other instruction in the source, if they are known.
        source: Option<(String, u32)>,
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
        match source {
            Some((file, line)) => write!(f, "{file}:{line}, PTX line {ptx_line}")?,
            None => write!(f, "PTX line {ptx_line}")?,
        }
        write!(f, "): {kind}")
    }
}

impl std::error::Error for Fault {}

fn verb(access: Access) -> &'static str {
    match access {
        Access::Read => "reads",
        Access::Write => "writes",
    }
}

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

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::OutOfBounds { address, bytes, access, nearest, calls_malloc } => {
                write!(f, "it {} {bytes} bytes at {address:#x}, ", verb(*access))?;
                match nearest {
                    _ if *address < NULL_BYTES => {
                        write!(f, "through a null pointer; pass the address of memory")?;
                        match calls_malloc {
                            true => write!(
                                f,
                                ", and do not use what malloc or new return without a test: it is null where \
                                 kernels have no heap, as on a CPU device, or a full one"
                            ),
                            false => Ok(()),
                        }
                    }
                    None => write!(f, "and the launch declares no memory; declare the memory"),
                    Some(_) if self.is_undeclared() => write!(
                        f,
                        "which is far from all memory that the launch declares; mend the pointer, or declare the memory"
                    ),
                    Some(region) => outside(f, region, *address, *bytes),
                }
            }
            FaultKind::ReadOnly { region, address, bytes } => {
                let index = (address - region.start) / element_bytes(region, *bytes);
                let name = &region.name;
                write!(
                    f,
                    "it writes {bytes} bytes at element {index} of {name}, which is declared as read only; \
                     declare {name} as written"
                )
            }
            FaultKind::OutOfShared { offset, bytes, access, len_bytes, variable, block } => {
                write!(f, "it {} {bytes} bytes at ", verb(*access))?;
                let block = block.map_or(String::new(), |rank| format!(" of block {rank} of its cluster"));
                match variable {
                    Some(variable) => variable.locate(f, *offset, &block),
                    None => write!(
                        f,
                        "offset {} of shared memory{block}, and the block has {len_bytes} bytes; mend the index, \
                         or launch with more shared memory",
                        signed(*offset)
                    ),
                }
            }
            FaultKind::OutOfLocal { offset, bytes, access, len_bytes } => write!(
                f,
                "it {} {bytes} bytes at offset {offset} of local memory, and the thread has {len_bytes}; \
                 mend the index",
                verb(*access)
            ),
            FaultKind::Misaligned { address, bytes } => write!(
                f,
                "the address {address:#x} is not a multiple of {bytes}, the size of the access; align the data"
            ),
            FaultKind::Trap => write!(f, "it executed trap"),
            FaultKind::TrapWithoutGrid => write!(
                f,
                "it executed trap, as the grid synchronisation of cooperative groups does if the launch is not \
                 cooperative, which this one is not; launch the kernel cooperatively"
            ),
            FaultKind::Assert { message, function, file, line } => {
                write!(f, "assertion failed: {message} in {function} ({file}:{line})")
            }
            FaultKind::NotAMember { mask, lane } => write!(
                f,
                "lane {lane} is not in the mask {mask:#010x} of the instruction that it runs; name all lanes \
                 that run it"
            ),
            FaultKind::NotWholeWarps { threads } => write!(
                f,
                "it names {threads} threads at a barrier, which counts whole warps of {LANES}; name a multiple \
                 of {LANES}, from {LANES} on"
            ),
            FaultKind::NoSuchBarrier { id } => write!(
                f,
                "it names barrier {id}, and a block has barriers 0 to {}; name one of these",
                BARRIERS - 1
            ),
            FaultKind::ArrivedTwice => write!(
                f,
                "it arrives at the barrier of the cluster, where it has arrived already; wait there before each \
                 further arrival"
            ),
            FaultKind::NotArrived => write!(
                f,
                "it waits at the barrier of the cluster, where it has not arrived; arrive there before each wait"
            ),
            FaultKind::NoSuchRank { rank, blocks: 1 } => write!(
                f,
                "it uses an address in block {rank} of its cluster, which has no other block than block 0; launch \
                 the kernel with larger clusters"
            ),
            FaultKind::NoSuchRank { rank, blocks } => write!(
                f,
                "it uses an address in block {rank} of its cluster, which has blocks 0 to {}; use one of these, or \
                 launch the kernel with larger clusters",
                blocks - 1
            ),
            FaultKind::BlockExited { rank } => write!(
                f,
                "it accesses the shared memory of block {rank} of its cluster, whose threads have exited; let all \
                 threads of the cluster meet at its barrier before they exit"
            ),
            FaultKind::Deadlock { at_barrier, for_lanes, exited } => write!(
                f,
                "no thread of the block can go on: {at_barrier} wait at a barrier, {for_lanes} for lanes of \
                 their warp, and {exited} have exited; let all threads reach the same barrier"
            ),
            FaultKind::StackOverflow { len_bytes } => {
                write!(f, "its calls need more than {len_bytes} bytes of local memory; nest them less deeply")
            }
            FaultKind::NoSuchFunction { address } => {
                write!(f, "it calls {address:#x}, which is not the address of a function")
            }
            FaultKind::NoSuchTarget { index, len } => {
                write!(f, "it branches to target {index} of a list of {len}")
            }
            FaultKind::Race(race) => race.fmt(f),
            FaultKind::Uninitialised { place, bytes } => {
                let barrier = match place {
                    Place::Shared { block: Some(_), .. } => "the barrier of the cluster (cluster.sync())",
                    _ => "a barrier",
                };
                write!(
                    f,
                    "it reads {bytes} bytes at {place}, which nothing has written yet; write them first, put \
                     {barrier} between the write and this read, or mend the index"
                )
            }
            FaultKind::NotWritten { region, element, bytes } => {
                let (name, len) = (&region.name, region.len_bytes);
                write!(
                    f,
                    "no thread has written element {element} of {name}, which is declared as overwritten: \
                     {bytes} of its {len} bytes are missing; write all of it, or declare {name} as read and \
                     written"
                )
            }
            FaultKind::ExitedBeforeBarrier { waited, exited, thread } => write!(
                f,
                "the barrier opened for {waited} threads of the block, and {exited} had exited without reaching \
                 it, among them thread {thread:?}; let all threads reach the barrier before they return"
            ),
            FaultKind::DivergentBarrier { thread, ptx_line, source } => {
                write!(
                    f,
                    "it waits at this barrier while thread {thread:?} of the block waits at another one ("
                )?;
                match source {
                    Some((file, line)) => write!(f, "{file}:{line}, PTX line {ptx_line}")?,
                    None => write!(f, "PTX line {ptx_line}")?,
                }
                write!(f, "); let all threads of the block reach the same barrier")
            }
            FaultKind::ShuffleFromExited { lane } => write!(
                f,
                "its shuffle asks for the value of lane {lane}, which has exited, so the value is undefined; \
                 keep the lane running, or shuffle among fewer lanes"
            ),
            FaultKind::Stopped => write!(f, "the launch was stopped"),
        }
    }
}

/// Returns the size of the elements of a region, as an access of `bytes` bytes sees them.
fn element_bytes(region: &Region, bytes: u64) -> u64 {
    match region.element_bytes {
        0 => bytes.max(1),
        known => known.into(),
    }
}

/// Returns by how many elements an address is before the start of a region, or behind it.
fn elements_from(region: &Region, address: u64, bytes: u64) -> (u64, u64) {
    let size = element_bytes(region, bytes);
    let before = region.start.saturating_sub(address).div_ceil(size);
    (before, address.saturating_sub(region.start) / size)
}

/// Says where an address lies outside of the region that is nearest to it.
fn outside(f: &mut fmt::Formatter<'_>, region: &Region, address: u64, bytes: u64) -> fmt::Result {
    let (name, len) = (&region.name, elements(region.len_bytes / element_bytes(region, bytes)));
    let (before, index) = elements_from(region, address, bytes);
    if before > 0 {
        write!(f, "{} before {name}, which has {len}; mend the index", elements(before))
    } else {
        write!(f, "which is element {index} of {name}, and it has {len}; mend the index")
    }
}

fn elements(number: u64) -> String {
    if number == 1 { "1 element".to_owned() } else { format!("{number} elements") }
}
