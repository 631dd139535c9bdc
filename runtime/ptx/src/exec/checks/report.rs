//! The contents and the texts of the reports of the checks.

use super::super::memory::{Access, Region};
use super::super::source::{SourceLine, write_line};
use std::fmt;

/// Two accesses to the same bytes that nothing orders. The [`Fault`](crate::Fault) names the thread
/// and the line of the later one.
#[derive(Clone, Debug, PartialEq)]
pub struct Race {
    /// The first byte that both access.
    pub place: NamedByte,
    /// The later access, by the thread that the fault names: a read or a write.
    pub access: Access,
    /// True if the later access is atomic or volatile.
    pub is_strong: bool,
    /// The access that came first in this run. In another run it may come second.
    pub earlier: Earlier,
    /// The smallest group that has both threads. The advice in the text depends on it.
    pub relation: Relation,
}

/// The access of a race that came first in this run.
#[derive(Clone, Debug, PartialEq)]
pub struct Earlier {
    /// A read or a write.
    pub access: Access,
    /// True if it is atomic or volatile.
    pub is_strong: bool,
    /// The block, in x, y and z.
    pub block: [u32; 3],
    /// The thread in its block, in x, y and z.
    pub thread: [u32; 3],
    /// The line in the PTX text, from 1. It is 0 if the program is too long to keep it.
    pub ptx_line: u32,
    /// The line of the source, if the PTX has line information.
    pub source: Option<SourceLine>,
}

/// The smallest group that has the threads of both accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Lanes that run one instruction together.
    SameInstruction,
    /// Lanes of one warp.
    SameWarp,
    /// Threads of one block.
    SameBlock,
    /// Threads of two blocks of one cluster.
    SameCluster,
    /// Threads of two blocks of two clusters. Without clusters, each block is one.
    TwoBlocks,
}

/// A byte of memory, by the operand or variable that has it.
#[derive(Clone, Debug, PartialEq)]
pub enum NamedByte {
    /// Memory of an operand or a variable.
    Region {
        /// The operand or variable.
        region: Region,
        /// The address of the byte, `region.start` or above.
        address: u64,
    },
    /// Shared memory of a block.
    Shared {
        /// Bytes from the start of the block's shared memory.
        offset: u64,
        /// The variable that has it, and its offset. Dynamic shared memory has no variable.
        variable: Option<(String, u64)>,
        /// The number in the cluster of the block that has it, if it is not that of the thread.
        block: Option<u32>,
    },
    /// Local memory of a thread.
    Local {
        /// Bytes from the start of the thread's local memory.
        offset: u64,
    },
    /// Memory without a name.
    Address(u64),
}

impl fmt::Display for NamedByte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedByte::Region { region, address } => {
                let (offset, name) = (address - region.start, &region.name);
                match u64::from(region.element_bytes) {
                    0 => write!(f, "byte {offset} of {name}"),
                    size => write!(f, "element {} of {name}", offset / size),
                }
            }
            NamedByte::Shared { offset, variable, block } => {
                match variable {
                    Some((name, start)) => {
                        write!(f, "byte {} of the shared variable {}", offset - start, short(name))?;
                    }
                    None => write!(f, "byte {offset} of shared memory")?,
                }
                block.map_or(Ok(()), |rank| write!(f, " of block {rank} of its cluster"))
            }
            NamedByte::Local { offset } => write!(f, "byte {offset} of local memory"),
            NamedByte::Address(address) => write!(f, "address {address:#x}"),
        }
    }
}

/// Returns the name in the source of a variable of a function. Itanium C++ ABI 5.1, "Mangling":
/// `_ZZ1fE4tile` is `tile` of `f`.
pub(crate) fn short(name: &str) -> &str {
    let is_local = name.starts_with("_ZZ");
    let own = is_local.then(|| {
        name.match_indices('E').find_map(|(at, _)| {
            let rest = &name[at + 1..];
            let own = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
            let len: usize = rest[..rest.len() - own.len()].parse().ok()?;
            own.get(..len)
        })
    });
    own.flatten().unwrap_or(name)
}

fn verb(access: Access, is_strong: bool) -> &'static str {
    match (access, is_strong) {
        (Access::Read, false) => "reads",
        (Access::Write, false) => "writes",
        (Access::Read, true) => "reads (volatile or atomic)",
        (Access::Write, true) => "writes (volatile or atomic)",
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Race { place, access, is_strong, earlier, relation } = self;
        let Earlier { block, thread, ptx_line, source, .. } = earlier;
        write!(f, "it {} {place}, which thread {thread:?}", verb(*access, *is_strong))?;
        match relation {
            Relation::SameInstruction => write!(f, " of the same warp ")?,
            Relation::SameWarp => write!(f, " of the same warp ")?,
            Relation::SameBlock => write!(f, " of the same block ")?,
            Relation::SameCluster => write!(f, " of block {block:?} of the same cluster ")?,
            Relation::TwoBlocks => write!(f, " of block {block:?} ")?,
        }
        write!(f, "{} (", verb(earlier.access, earlier.is_strong))?;
        match ptx_line {
            0 => write!(f, "at a line that is not known")?,
            line => write_line(f, *line, source.as_ref())?,
        }
        write!(f, ")")?;
        if *relation == Relation::SameInstruction {
            return write!(
                f,
                " by the same instruction, with another value; let one thread write it, or use an atomic \
                 operation"
            );
        }
        write!(f, ", and nothing orders the two accesses; ")?;
        if *is_strong && earlier.is_strong {
            return write!(
                f,
                "one of them is atomic for the threads of its own block alone; give it the scope of the device, \
                 as atomicAdd() has in place of atomicAdd_block()"
            );
        }
        let weak = if *is_strong { earlier.access } else { *access };
        let is_one_strong = *is_strong != earlier.is_strong;
        match (is_one_strong, weak) {
            (false, _) => {}
            // Perhaps the first read of a loop that ends with a compare and swap.
            (true, Access::Read) => {
                write!(f, "let the read be atomic or volatile, or ")?;
                if *relation != Relation::TwoBlocks {
                    return write!(f, "let a barrier separate the two");
                }
            }
            (true, Access::Write) => write!(f, "make both of them atomic or volatile, or ")?,
        }
        match relation {
            Relation::SameInstruction => Ok(()),
            Relation::SameWarp if *access == Access::Write && earlier.access == Access::Write => write!(
                f,
                "separate them by __syncthreads(), or by __syncwarp() if this warp alone uses the memory, or \
                 let one thread write it"
            ),
            Relation::SameWarp => write!(
                f,
                "separate them by __syncthreads(), or by __syncwarp() if this warp alone uses the memory; use \
                 atomic operations if both threads update it"
            ),
            Relation::SameBlock => {
                write!(f, "separate them by __syncthreads(); use atomic operations if both threads update it")
            }
            Relation::SameCluster => {
                write!(
                    f,
                    "separate them by the barrier of the cluster (cluster.sync()); use atomic operations if both \
                     threads update it"
                )?;
                match is_one_strong {
                    true => Ok(()),
                    false => write!(
                        f,
                        ", or let the first one call __threadfence() and then set a flag that the second one reads \
                         by an atomic operation or as volatile"
                    ),
                }
            }
            Relation::TwoBlocks => write!(
                f,
                "use atomic operations, or let the first block call __threadfence() and then set a flag that \
                 the second one reads by an atomic operation or as volatile"
            ),
        }
    }
}
