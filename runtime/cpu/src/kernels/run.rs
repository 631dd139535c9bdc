//! Launches of PTX.
//!
//! # Rules
//! 1. A kernel touches its operands alone, and writes only those that its declaration says it
//!    writes. That is the promise on which the order check rests, so each access is checked,
//!    unless the program has switched the bounds off (`KernelOptions::without_bounds`).
//! 2. Blocks run on the threads that twins use ([`TwinThreads`]), if there are enough threads of
//!    the kernel to be worth it. With a seeded schedule they run on the polling thread, in an order
//!    that is drawn from the seed.
//! 3. What a kernel prints goes to standard output, at the end of its launch.
//! 4. A device that fails stops the kernels that it runs.

use super::Launching;
use crate::kernel_options::KernelChecks;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use warpline_driver::kernel::{AccessMode, Arg, Kernel, Param, ParamKind, TwinThreads};
use warpline_driver::{Launch, ReachedMemory};
use warpline_ptx as ptx;

/// The number of a kernel's threads from which on several threads of the host share the work.
/// Waking one takes some 20 µs, in which this many threads run a few dozen instructions each.
const LARGE: u64 = 4096;

/// The flags that stop the kernels which a device runs.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Vec<Arc<AtomicBool>>>);

impl Running {
    fn flags(&self) -> std::sync::MutexGuard<'_, Vec<Arc<AtomicBool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stop(&self) {
        self.flags().iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }

    fn begin(&self) -> Arc<AtomicBool> {
        let flag = Arc::new(AtomicBool::new(false));
        self.flags().push(flag.clone());
        flag
    }

    fn end(&self, flag: &Arc<AtomicBool>) {
        self.flags().retain(|other| !Arc::ptr_eq(other, flag));
    }
}

impl Launching<'_> {
    /// Runs the PTX of a kernel.
    ///
    /// # Errors
    /// The report of its fault.
    ///
    /// # Safety
    /// The slices are valid for their length and their access until this returns. Meanwhile nothing
    /// else writes memory that the kernel reads, or touches memory that it writes.
    pub(super) unsafe fn run_ptx(&self, code: &ptx::Kernel, launch: &Launch) -> Result<(), String> {
        let Launch { kernel, args, config, .. } = launch;
        let kernels = self.kernels;
        let operands = kernel.params.iter().zip(args);
        let mut regions: Vec<_> = operands.clone().filter_map(|(param, arg)| region(param, arg)).collect();
        regions.extend(launch.reached().iter().enumerate().map(|(at, memory)| reached_region(at, memory)));
        let KernelChecks { races, init, sync } = kernels.options.checks;
        let threads = TwinThreads::current().filter(|_| self.seed.is_none() && config.threads() >= LARGE);
        let config = ptx::Config {
            grid: config.grid,
            block: config.block,
            cluster: config.cluster,
            shared_bytes: config.shared_bytes,
            is_cooperative: config.cooperative,
            threads: threads.as_ref().map_or(1, TwinThreads::most).min(blocks(config.grid)),
            seed: self.seed,
            checks: ptx::Checks { races, init, sync },
        };
        let run = |parts, work: &(dyn Fn() + Sync)| match &threads {
            Some(threads) => threads.for_each(0..parts, |_| work()),
            None => work(),
        };
        let stop = kernels.running.begin();
        if self.health.fault().is_some() {
            stop.store(true, Ordering::Relaxed);
        }
        let memory = match kernels.options.without_bounds {
            false => ptx::Memory::Regions(regions),
            true => ptx::Memory::Unchecked(regions),
        };
        let host = ptx::Host { run: &run, stop: &stop };
        // SAFETY: launch_on needs regions that are valid for their access until it returns, and
        // that other code accesses by atomic operations alone. The caller promises more. Without
        // bounds, the code that switched them off promises that the kernel touches these regions
        // alone (`KernelOptions::without_bounds`).
        let outcome = unsafe { code.launch_on(host, &config, &packed(operands), memory) };
        kernels.running.end(&stop);
        match outcome {
            Ok(printed) => {
                print(&printed);
                Ok(())
            }
            Err(fault) => {
                print(&fault.printed);
                Err(format!("{fault}{}", remedy(&fault.kind, launch)))
            }
        }
    }
}

fn blocks(grid: [u32; 3]) -> usize {
    grid.iter().fold(1, |blocks: usize, axis| blocks.saturating_mul(*axis as usize))
}

/// Returns an operand as memory that the kernel may touch. A scalar is none.
fn region(param: &Param, arg: &Arg) -> Option<ptx::Region> {
    let ParamKind::Slice { element_bytes, access, .. } = param.kind else { return None };
    Some(ptx::Region {
        name: param.name.to_owned(),
        start: arg.bits,
        len_bytes: arg.len * element_bytes as u64,
        is_writable: access.writes(),
        is_undefined: access == AccessMode::Write,
        element_bytes: element_bytes as u32,
    })
}

/// The distance in bytes from which on an access is perhaps not meant for an operand. Behind an
/// operand lie that many unused bytes at most.
const ELSEWHERE: u64 = 64 << 10;

/// Returns what the remedy in the text of a fault lacks: the words of a call.
fn remedy(fault: &ptx::FaultKind, launch: &Launch) -> &'static str {
    let is_reached =
        |name: &str| launch.reached().iter().enumerate().any(|(at, memory)| reached_name(at, memory) == name);
    match fault {
        ptx::FaultKind::ReadOnly { region, .. } if is_reached(&region.name) => {
            ": pass it to .writes(..) of the call instead of .reads(..)"
        }
        fault if fault.is_undeclared() => " by .reads(..) or .writes(..) of the call",
        ptx::FaultKind::OutOfBounds { address, nearest: Some(region), .. } => {
            let behind = address.saturating_sub(region.start.saturating_add(region.len_bytes));
            let is_null = *address < ELSEWHERE;
            match region.start.saturating_sub(*address).max(behind) {
                ELSEWHERE.. if !is_null => {
                    ", or declare memory behind a pointer by .reads(..) or .writes(..) of the call"
                }
                _ => "",
            }
        }
        _ => "",
    }
}

/// Returns the name of memory that a kernel reaches through pointers, for reports. `at` is its
/// number among all such memory.
pub(super) fn reached_name(at: usize, memory: &ReachedMemory) -> String {
    let call = if memory.access.writes() { "writes" } else { "reads" };
    format!("buffer {at} of {call}")
}

/// Returns memory that the kernel reaches through pointers, the one with number `at`.
fn reached_region(at: usize, memory: &ReachedMemory) -> ptx::Region {
    ptx::Region {
        name: reached_name(at, memory),
        start: memory.address.0,
        len_bytes: memory.len_bytes,
        is_writable: memory.access.writes(),
        is_undefined: false,
        element_bytes: memory.element_bytes as u32,
    }
}

/// Returns the arguments as the kernel's parameters lie in memory: each at a multiple of its size.
fn packed<'a>(operands: impl Iterator<Item = (&'a Param, &'a Arg)>) -> Vec<u8> {
    let mut packed = Vec::new();
    for (param, arg) in operands {
        let bytes = param.kind.bytes_on_device();
        packed.resize(packed.len().next_multiple_of(bytes), 0);
        packed.extend(&arg.bits.to_ne_bytes()[..bytes]);
    }
    packed
}

/// Returns the number of bytes of packed arguments of a kernel.
pub(super) fn param_bytes(kernel: &Kernel) -> usize {
    packed(kernel.params.iter().zip(std::iter::repeat(&Arg::default()))).len()
}

/// Writes what a kernel printed to standard output. If that is closed, the text is lost, as that of
/// a GPU is.
fn print(printed: &str) {
    if !printed.is_empty() {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(printed.as_bytes()).and_then(|()| out.flush());
    }
}
