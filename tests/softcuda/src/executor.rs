//! Runs the PTX of kernels, for launches of kernels that have no twin.
//!
//! A kernel may touch all live memory that its context reaches: device memory, managed memory and
//! mapped page-locked memory. It uses device addresses, which the host cannot; [`Reachable`]
//! translates each access. Memory that a graph or a free has to know about is recognised by the
//! arguments: each aligned word of them that is an address of live memory counts as a pointer.

use crate::context::Context;
use crate::errors::{Code, say};
use crate::kernel::LaunchShape;
use crate::launch::LaunchKind;
use crate::memory::{self, Asker};
use crate::plan;
use crate::ptx::Slot;
use crate::work::Fault;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use warpline_ptx::{AddressSpace, Config, FaultKind, Kernel, Memory, Region};

/// The least number of threads of a launch that runs on several threads of the host.
const LARGE: u64 = 1 << 12;

/// A launch of a kernel's PTX.
pub(crate) struct PtxLaunch {
    pub(crate) kernel: Kernel,
    /// The arguments, as the kernel's parameters lie in memory.
    pub(crate) params: Vec<u8>,
    pub(crate) places: Vec<Slot>,
    pub(crate) kind: LaunchKind,
    /// The arguments that are addresses of live memory at the time of the call.
    pub(crate) pointers: Vec<u64>,
}

impl PtxLaunch {
    pub(crate) fn new(kernel: Kernel, params: Vec<u8>, places: Vec<Slot>, kind: LaunchKind) -> Self {
        let words = words(&params).map(|(_, word)| word);
        let pointers = words.filter(|word| memory::identity(*word as usize).is_some()).collect();
        PtxLaunch { kernel, params, places, kind, pointers }
    }

    /// Runs the kernel.
    pub(crate) fn execute(&self, context: &'static Context, shape: &LaunchShape) -> Result<(), Fault> {
        let blocks: u64 = shape.grid.iter().map(|axis| u64::from(*axis)).product();
        let threads: u64 = shape.block.iter().map(|axis| u64::from(*axis)).product();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let config = Config {
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.shared_bytes,
            cluster: self.kind.cluster,
            is_cooperative: self.kind.is_cooperative,
            threads: if blocks * threads < LARGE { 1 } else { cores.min(blocks) as usize },
            ..Config::linear(1, 1)
        };
        let operands = words(&self.params).filter_map(|(offset, word)| {
            let is_in = |place: &Slot| (place.offset..place.offset + place.bytes).contains(&offset);
            Some((word, self.places.iter().position(is_in)?))
        });
        let memory = Memory::Space(Arc::new(Reachable { context, operands: operands.collect() }));
        // SAFETY: launch needs memory that is valid for reads and writes until it returns.
        // `Reachable` resolves live memory alone. Freeing memory waits for the context's work, and
        // this launch is a part of it. Excluding conflicting accesses is the program's duty: it
        // orders its work.
        let outcome = unsafe { self.kernel.launch(&config, &self.params, memory) };
        match outcome {
            Ok(printed) => {
                print(&printed);
                Ok(())
            }
            Err(fault) => {
                print(&fault.printed);
                // Nothing by default. The launch counts as running meanwhile, and no lock is held.
                std::thread::sleep(plan::get().fault_delay);
                Err(Fault { code: code_of(&fault.kind), why: fault.to_string() })
            }
        }
    }
}

/// Returns the aligned words in arguments, with their offsets.
fn words(params: &[u8]) -> impl Iterator<Item = (usize, u64)> + '_ {
    let (words, _) = params.as_chunks::<8>();
    words.iter().enumerate().map(|(at, word)| (8 * at, u64::from_ne_bytes(*word)))
}

/// Writes what a kernel printed to standard output.
fn print(printed: &str) {
    if printed.is_empty() {
        return;
    }
    let mut out = std::io::stdout().lock();
    if out.write_all(printed.as_bytes()).and_then(|()| out.flush()).is_err() {
        say("standard output is closed, so the output of a kernel is lost");
    }
}

/// Returns the code that the driver reports for a fault of a kernel. The crate's documentation
/// lists them.
fn code_of(kind: &FaultKind) -> Code {
    match kind {
        FaultKind::Misaligned { .. } => Code::MISALIGNED_ADDRESS,
        FaultKind::Assert { .. } => Code::ASSERT,
        FaultKind::Deadlock { .. } => Code::LAUNCH_TIMEOUT,
        FaultKind::StackOverflow { .. } => Code::HARDWARE_STACK_ERROR,
        FaultKind::NoSuchFunction { .. } | FaultKind::NoSuchTarget { .. } => Code::INVALID_PC,
        FaultKind::OutOfBounds { .. }
        | FaultKind::ReadOnly { .. }
        | FaultKind::OutOfShared { .. }
        | FaultKind::BlockExited { .. }
        | FaultKind::OutOfLocal { .. } => Code::ILLEGAL_ADDRESS,
        _ => Code::LAUNCH_FAILED,
    }
}

/// The memory that kernels of a context may touch.
struct Reachable {
    context: &'static Context,
    /// The words of the arguments, with the parameters that they are part of.
    operands: Vec<(u64, usize)>,
}

impl fmt::Debug for Reachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the memory of a context on device {}", self.context.device)
    }
}

impl AddressSpace for Reachable {
    fn resolve(&self, address: u64, len_bytes: u64) -> Option<u64> {
        let behind = memory::device_range(self.context, address, len_bytes as usize, Asker::Work);
        behind.ok().map(|behind| behind as u64)
    }

    fn allocate(&self, len_bytes: u64) -> Option<u64> {
        self.context.heap.allocate(self.context, len_bytes)
    }

    fn free(&self, address: u64) -> bool {
        self.context.heap.free(address)
    }

    fn nearest(&self, address: u64, bytes: u64) -> Option<Region> {
        let (start, len_bytes) = memory::nearest(self.context, address)?;
        let of = self.operands.iter().find(|(word, _)| word.wrapping_sub(start) < len_bytes);
        let name = match of {
            Some((_, index)) => format!("the allocation of parameter {index}, at {start:#x}"),
            None => format!("the allocation at {start:#x}"),
        };
        Some(Region { is_writable: true, ..Region::new(name, start, len_bytes, bytes as u32) })
    }
}
