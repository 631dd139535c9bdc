//! The CPU device: a real asynchronous device that needs nothing installed.
//!
//! Submitting returns before the work has run. Each stream is a serial queue, called a strand.
//! Under [`Schedule::Threads`] a small pool of worker threads runs the strands, and one thread for
//! each device calls their host functions. Under [`Schedule::Seeded`] the polling threads run them,
//! in an order drawn from a seed. The device checks nothing: its callers have already checked
//! shapes, ranges and order.
//!
//! All devices made from one [`CpuBackend`] share its workers, its address space and therefore its
//! claim table. A fault stays on its device, with one exception: a stream that waits for work
//! abandoned by that fault fails its own device too (see `timelines`).
//!
//! | file | contents |
//! |---|---|
//! | `strand` | a serial queue with at most one owner, and the rules for passing it on |
//! | `stream`, `failing` | how an owner runs, parks and purges a strand; a stream's errors |
//! | `workers`, `idle` | the worker threads, and how they wait |
//! | `host_thread`, `line` | the thread that calls host functions, and how strands wait for it |
//! | `seeded`, `choose` | the schedule without threads, and its choice of the next stream |
//! | `backend` | the state shared by devices, and by the streams of a device |
//! | `claims` | the claims that keep unordered ops apart |
//! | `timelines` | the owner and the fate of each timeline |
//! | `execute`, `replay`, `bytes`, `memory` | how commands and graphs run, and on what memory |
//! | `kernels`, `kernel_options` | how kernels run: their CPU forms, or their PTX |
//! | `fault_plan` | faults on request |
//!
//! # Lock order
//! turn (only ever tried) → strand's inbox → timelines. Every other lock here is a leaf. Ops,
//! wakers and drops of user values run under no lock but the turn.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(unix)]
mod addresses;
mod awake;
mod backend;
mod bytes;
mod choose;
mod claims;
mod execute;
mod failing;
mod fault_plan;
mod host_thread;
mod idle;
mod kernel_options;
mod kernels;
mod line;
mod memory;
mod replay;
mod report;
mod seeded;
mod strand;
mod stream;
mod timelines;
mod workers;

#[cfg(test)]
mod tests;

use warpline_driver::kernel::{Kernel, LaunchConfig};
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{
    Completion, DeviceId, DeviceProperties, DevicePtr, Driver, DriverError, DriverGraph, DriverStream, Error,
    ErrorKind, Plan, Site, StreamOptions, sync,
};

pub use backend::CpuBackend;
pub use fault_plan::FaultPlan;
pub use kernel_options::{CompileCuda, KernelChecks, KernelForm, KernelOptions};

use crate::sync::Arc;
use backend::{Device, Runner};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use stream::CpuStream;

/// The schedule of the CPU devices, which decides where ops run and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// Runs work on worker threads, as fast as the machine allows.
    #[default]
    Threads,
    /// Runs work without threads. Each poll or query of a pending result runs at most one op, on a
    /// stream that is chosen by this seed. The same seed and the same program give the same
    /// interleaving.
    Seeded(u64),
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let seed = |text: &str| text.parse().ok().map(Schedule::Seeded);
        match text.split_once(':') {
            None if text == "threads" => Some(Schedule::Threads),
            Some(("seeded", n)) => seed(n),
            _ => None,
        }
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("\"{text}\" is not a schedule; expected threads or seeded:N"),
            )
        })
    }
}

/// The options that the devices of a backend share.
#[derive(Clone, Debug)]
pub struct BackendOptions {
    /// The schedule of the work.
    pub schedule: Schedule,
    /// The maximum number of worker threads. `None`, or a larger number than the machine has cores,
    /// means as many as it has cores.
    pub threads: Option<usize>,
    /// The number of threads among which a kernel's CPU form may divide large work, that of its
    /// worker included. `None` means as many as the machine has cores.
    pub kernel_threads: Option<usize>,
    /// The code of kernels that runs, and its checks.
    pub kernels: KernelOptions,
    /// The time for which one idle worker spins before it parks.
    pub awake_for: Duration,
}

impl Default for BackendOptions {
    fn default() -> Self {
        BackendOptions {
            schedule: Schedule::default(),
            threads: None,
            kernel_threads: None,
            kernels: KernelOptions::default(),
            awake_for: Duration::from_micros(50),
        }
    }
}

/// The options of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// The size of the device memory in bytes. `None` means as much as the system provides.
    pub total_bytes: Option<usize>,
    /// The plan of the faults to cause.
    pub fault_plan: Option<FaultPlan>,
}

/// One step of a seeded schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The device.
    pub device: DeviceId,
    /// The stream's label.
    pub stream: Arc<str>,
    /// The op's ticket.
    pub ticket: Ticket,
    /// The op.
    pub site: Site,
}

/// A CPU device. Dropping it shuts it down.
pub struct CpuDriver(Arc<Device>);

impl CpuDriver {
    /// Returns the backend that this device shares with the other devices of its runtime.
    pub fn backend(&self) -> &Arc<CpuBackend> {
        &self.0.backend
    }
}

// SAFETY: memory comes from the system, which hands out each block and each page once. Streams
// keep order (`strand.rs`).
unsafe impl Driver for CpuDriver {
    fn id(&self) -> DeviceId {
        self.0.id
    }

    fn completion(&self) -> Completion {
        Completion::EveryOp
    }

    fn new_stream(
        &self,
        options: &StreamOptions,
        timeline: Arc<Timeline>,
    ) -> Result<Arc<dyn DriverStream>, DriverError> {
        self.0.accepts_work()?;
        let number = self.0.backend.next_stream_number();
        Ok(CpuStream::new(self.0.clone(), options, timeline, number))
    }

    fn properties(&self) -> DeviceProperties {
        let mut properties = DeviceProperties::unknown(format!("{}, on the host's processor", self.0.id));
        properties.multiprocessors = self.0.backend.cores as u32;
        properties.total_bytes = self.0.memory.total_bytes();
        if cfg!(feature = "ptx") {
            properties.shared_bytes_per_block = LaunchConfig::MAX_SHARED_BYTES;
            properties.cooperative_launch = true;
        }
        properties
    }

    fn alloc(&self, len_bytes: usize) -> Result<DevicePtr, DriverError> {
        self.0.memory.alloc(len_bytes).map(|ptr| DevicePtr(ptr.expose_provenance() as u64))
    }

    unsafe fn free(&self, ptr: DevicePtr, len_bytes: usize) {
        let ptr = std::ptr::with_exposed_provenance_mut(ptr.0 as usize);
        // SAFETY: `Memory::free` needs a block that `alloc` returned for this length and that is
        // not in use. Our caller promises both.
        unsafe { self.0.memory.free(ptr, len_bytes) }
    }

    #[cfg(unix)]
    fn granule_bytes(&self) -> Option<usize> {
        addresses::page_bytes()
    }

    #[cfg(unix)]
    fn reserve(&self, len_bytes: usize) -> Result<DevicePtr, DriverError> {
        let refused =
            || DriverError::Refused(format!("the host has no {len_bytes} bytes of addresses").into());
        let start = self.0.memory.reserve(len_bytes).ok_or_else(refused)?;
        Ok(DevicePtr(start.expose_provenance() as u64))
    }

    #[cfg(unix)]
    unsafe fn map(&self, at: DevicePtr, len_bytes: usize, _: usize) -> Result<(), DriverError> {
        let start = std::ptr::with_exposed_provenance_mut(at.0 as usize);
        // SAFETY: `Memory::map` has the rules of this function.
        unsafe { self.0.memory.map(start, len_bytes) }
    }

    #[cfg(unix)]
    unsafe fn unmap(&self, pieces: &[(DevicePtr, usize)], _: bool) -> usize {
        let unmap = |&&(at, len_bytes): &&(DevicePtr, usize)| {
            let start = std::ptr::with_exposed_provenance_mut(at.0 as usize);
            // SAFETY: `Memory::unmap` has the rules of this function.
            unsafe { self.0.memory.unmap(start, len_bytes) }
        };
        pieces.iter().take_while(unmap).count()
    }

    fn alloc_host(&self, len_bytes: usize) -> Result<*mut u8, DriverError> {
        let refused =
            || DriverError::Refused(format!("the host has no {len_bytes} bytes to allocate").into());
        memory::zeroed(len_bytes, memory::HOST).ok_or_else(refused)
    }

    unsafe fn free_host(&self, ptr: *mut u8, len_bytes: usize) {
        // SAFETY: `release` needs a block that `zeroed` returned for these arguments and that is
        // not in use. Our caller promises both.
        unsafe { memory::release(ptr, len_bytes, memory::HOST) }
    }

    fn load(&self, kernel: &'static Kernel) -> Result<(), DriverError> {
        self.0.kernels.prepare(kernel, None)
    }

    fn global(&self, kernel: &'static Kernel, name: &str) -> Result<(DevicePtr, usize), DriverError> {
        self.0.kernels.variable(kernel, name)
    }

    fn instantiate(&self, plan: &Arc<Plan>) -> Result<DriverGraph, DriverError> {
        self.0.kernels.prepare_all(plan)?;
        Ok(plan.clone())
    }

    fn turn(&self) -> bool {
        match &self.0.backend.runner {
            Runner::Threads(_) => false,
            Runner::Seeded(seeded) => seeded.turn(),
        }
    }

    fn runs_in_turns(&self) -> bool {
        matches!(self.0.backend.runner, Runner::Seeded(_))
    }

    fn after_submit(&self) {
        self.0.backend.something_changed();
    }

    fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.0.backend.on_change(wake);
    }

    fn shut_down(&self) {
        self.0.close();
    }
}

impl Drop for CpuDriver {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl fmt::Debug for CpuDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuDriver").field("id", &self.0.id).finish_non_exhaustive()
    }
}
