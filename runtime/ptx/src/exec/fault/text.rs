//! The texts of the failures of a running kernel.

use super::super::checks::report::{NamedByte, short};
use super::super::control::BARRIERS;
use super::super::memory::{Access, Region};
use super::super::registers::LANES;
use super::super::source::write_line;
use super::{AtBarrier, FaultKind, NULL_BYTES, SharedVariable, signed};
use std::fmt;

fn verb(access: Access) -> &'static str {
    match access {
        Access::Read => "reads",
        Access::Write => "writes",
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
                    Some(variable) => write!(
                        f,
                        "{}{block}, which has {} bytes; mend the index",
                        variable.locate(*offset),
                        variable.len_bytes
                    ),
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
            FaultKind::BlockExited { rank, offset, bytes, access, variable } => {
                let place = match variable {
                    Some(variable) => variable.locate(*offset),
                    None => format!("offset {} of shared memory", signed(*offset)),
                };
                write!(
                    f,
                    "it {} {bytes} bytes at {place} of block {rank} of its cluster, whose threads have exited; let \
                     all threads of the cluster meet at its barrier before they exit",
                    verb(*access)
                )
            }
            FaultKind::Deadlock { at_barriers, at_cluster_barrier, for_lanes, exited } => {
                let rest = [
                    (*at_cluster_barrier, "wait at the barrier of the cluster"),
                    (*for_lanes, "wait for lanes of their warp"),
                    (*exited, "have exited"),
                ];
                let rest = rest.into_iter().filter(|(threads, _)| *threads > 0);
                let rest = rest.map(|(threads, what)| format!("{threads} {what}"));
                let threads: Vec<_> = at_barriers.iter().map(AtBarrier::to_string).chain(rest).collect();
                let remedy = match at_barriers[..] {
                    [AtBarrier { needed: Some(_), .. }] if *at_cluster_barrier == 0 => {
                        "let as many threads reach the barrier as it needs"
                    }
                    _ => "let all threads reach the same barrier",
                };
                write!(f, "no thread of the block can go on: {}; {remedy}", threads.join(", "))
            }
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
                    NamedByte::Shared { block: Some(_), .. } => "the barrier of the cluster (cluster.sync())",
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
            FaultKind::ExitedBeforeBarrier { waited, exited, thread, block } => {
                let group = if block.is_some() { "cluster" } else { "block" };
                write!(
                    f,
                    "the barrier opened for {waited} threads of the {group}, and {exited} had exited without \
                     reaching it, among them thread {thread:?}"
                )?;
                if let Some(block) = block {
                    write!(f, " of block {block:?}")?;
                }
                write!(f, "; let all threads of the {group} reach the barrier before they return")
            }
            FaultKind::DivergentBarrier { thread, ptx_line, source } => {
                write!(
                    f,
                    "it waits at this barrier while thread {thread:?} of the block waits at another one ("
                )?;
                write_line(f, *ptx_line, source.as_ref())?;
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

impl SharedVariable {
    /// Describes an offset in shared memory, as seen from the variable.
    fn locate(&self, offset: u64) -> String {
        let byte = signed(offset) - self.start as i64;
        format!("byte {byte} of the shared variable {}", short(&self.name))
    }
}

impl fmt::Display for AtBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AtBarrier { barrier, waiting, arrived, needed } = self;
        write!(f, "{waiting} wait ")?;
        if *arrived > 0 {
            write!(f, "and {arrived} have arrived ")?;
        }
        match (barrier, needed) {
            (0, None) => write!(f, "at barrier 0 (__syncthreads())"),
            (_, None) => write!(f, "at barrier {barrier}"),
            (_, Some(needed)) => write!(f, "at barrier {barrier}, which needs {needed}"),
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
pub(super) fn elements_from(region: &Region, address: u64, bytes: u64) -> (u64, u64) {
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
