//! The state that the devices of one runtime share, and the state that the streams of one device
//! share.

use super::awake::Yields;
use super::claims::Claims;
use super::fault_plan::Planned;
use super::kernels::Kernels;
use super::line::Line;
use super::memory::Memory;
use super::seeded::Seeded;
use super::stream::CpuStream;
use super::timelines::Timelines;
use super::workers::Pool;
use super::{BackendOptions, CpuDriver, DeviceOptions, KernelOptions, Schedule, Step};
use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::fmt;
use std::sync::{OnceLock, Weak};
use warpline_driver::kernel::TwinThreads;
use warpline_driver::{DeviceId, DriverError, Error, ErrorKind, Health};

/// The state that the CPU devices of one runtime share.
pub struct CpuBackend {
    pub(super) runner: Runner,
    pub(super) timelines: Timelines,
    pub(super) claims: Claims<Arc<CpuStream>>,
    /// The threads that the twins of all devices share.
    pub(super) twin_threads: TwinThreads,
    /// The number of cores that the threads may use.
    pub(super) cores: usize,
    kernels: KernelOptions,
    streams_made: AtomicU64,
    open_devices: AtomicUsize,
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The runner of the work: worker threads, or a seeded schedule.
pub(super) enum Runner {
    Threads(Pool),
    Seeded(Seeded),
}

impl CpuBackend {
    /// Returns a new backend. It starts nothing before there is work.
    pub fn new(options: BackendOptions) -> Arc<Self> {
        let cores = warpline_driver::affinity::cores();
        let threads = options.threads.unwrap_or(cores).clamp(1, cores);
        Arc::new_cyclic(|me: &Weak<Self>| CpuBackend {
            runner: match options.schedule {
                Schedule::Threads => Runner::Threads(Pool::new(threads, options.awake_for)),
                Schedule::Seeded(seed) => Runner::Seeded(Seeded::new(me.clone(), seed)),
            },
            timelines: Timelines::default(),
            claims: Claims::new(),
            twin_threads: TwinThreads::new(options.kernel_threads.unwrap_or(cores)),
            cores,
            kernels: options.kernels,
            streams_made: AtomicU64::new(0),
            open_devices: AtomicUsize::new(0),
            on_change: OnceLock::new(),
        })
    }

    /// Sets the function of [`Driver::on_change`](warpline_driver::Driver::on_change). The devices
    /// share their turns, so only the first call has an effect.
    pub(super) fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let _ = self.on_change.set(wake);
    }

    pub(super) fn wake_other_backends(&self) {
        if let Some(wake) = self.on_change.get() {
            wake();
        }
    }

    /// Opens the virtual device `cpu:ordinal`. Each ordinal may be opened only once.
    pub fn device(
        self: &Arc<Self>,
        ordinal: u32,
        health: Arc<Health>,
        options: DeviceOptions,
    ) -> Arc<CpuDriver> {
        self.open_devices.fetch_add(1, Ordering::AcqRel);
        Arc::new(CpuDriver(Arc::new(Device {
            id: DeviceId::Cpu(ordinal),
            health,
            backend: self.clone(),
            fault_plan: options.fault_plan.map(Planned::new),
            kernels: Kernels::new(self.kernels),
            memory: Memory::new(options.total_bytes),
            yields: Yields::default(),
            host_line: Line::new(),
            closing: AtomicBool::new(false),
        })))
    }

    /// Returns the last steps of a seeded schedule, oldest first. Empty under
    /// [`Schedule::Threads`].
    pub fn interleaving(&self) -> Vec<Step> {
        match &self.runner {
            Runner::Threads(_) => Vec::new(),
            Runner::Seeded(seeded) => seeded.interleaving(),
        }
    }

    /// Lets the seed of a seeded schedule decide how far the device runs ahead of the tasks that
    /// wait for it.
    pub fn draw_for_tasks(&self) {
        if let Runner::Seeded(seeded) = &self.runner {
            seeded.draw_for_tasks();
        }
    }

    /// Returns the streams that wait for something outside this backend, such as a gate, and the
    /// calls that made them wait.
    pub fn held(&self) -> Vec<String> {
        let mut streams = self.timelines.streams(None);
        streams.sort_by_key(|stream| stream.number);
        let held = |stream: &Arc<CpuStream>| {
            let site = stream.held_at()?;
            Some(format!("stream \"{}\" of {} is held by {site}", stream.label, stream.device.id))
        };
        streams.iter().filter_map(held).collect()
    }

    pub(super) fn pool(&self) -> Option<&Pool> {
        match &self.runner {
            Runner::Threads(pool) => Some(pool),
            Runner::Seeded(_) => None,
        }
    }

    /// Accepts a strand that has just become ready.
    pub(super) fn schedule(self: &Arc<Self>, stream: Arc<CpuStream>) {
        match &self.runner {
            Runner::Threads(pool) => pool.schedule(self, stream),
            Runner::Seeded(seeded) => seeded.schedule(stream),
        }
    }

    /// Wakes the sleeping pollers of a seeded schedule, so that they look again.
    pub(super) fn something_changed(&self) {
        if let Runner::Seeded(seeded) = &self.runner {
            seeded.something_changed();
        }
    }

    /// Fails the devices whose streams are held at a wait that nothing in this backend will end.
    /// Returns whether there were any. Called at a shutdown when nothing can run.
    pub(super) fn report_stuck(&self) -> bool {
        let mut any = false;
        for stream in self.timelines.streams(None) {
            if let Some(error) = stream.stuck() {
                any = true;
                stream.device.fail(error);
            }
        }
        any
    }

    /// Fails every device that has a stream, because there is no thread to run anything.
    #[cold]
    pub(super) fn fail_all(&self, why: &std::io::Error) {
        for stream in self.timelines.streams(None) {
            let device = &stream.device;
            if device.health.fault().is_none() {
                let message =
                    format!("{} accepts no more work: no worker thread could be started: {why}", device.id);
                device.fail(Error::new(ErrorKind::Fault, message));
            }
        }
    }

    pub(super) fn next_stream_number(&self) -> u64 {
        self.streams_made.fetch_add(1, Ordering::Relaxed)
    }

    fn device_closed(&self) {
        if self.open_devices.fetch_sub(1, Ordering::AcqRel) == 1 {
            match &self.runner {
                Runner::Threads(pool) => pool.idle.close(),
                Runner::Seeded(seeded) => seeded.close(),
            }
        }
    }
}

impl fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runner = match &self.runner {
            Runner::Threads(_) => "threads",
            Runner::Seeded(_) => "seeded",
        };
        f.debug_struct("CpuBackend").field("runner", &runner).finish_non_exhaustive()
    }
}

/// The state that the streams of one device share.
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) health: Arc<Health>,
    pub(super) backend: Arc<CpuBackend>,
    pub(super) fault_plan: Option<Planned>,
    pub(super) kernels: Kernels,
    pub(super) memory: Memory,
    pub(super) yields: Yields,
    /// The strands whose next op is a host function. Empty under a seeded schedule.
    pub(super) host_line: Line<Arc<CpuStream>>,
    closing: AtomicBool,
}

impl Device {
    pub(super) fn accepts_work(&self) -> Result<(), DriverError> {
        match self.health.fault() {
            Some(fault) => Err(DriverError::Refused(fault.into())),
            None => Ok(()),
        }
    }

    /// Stops accepting work. The backend stops when all its devices are closed.
    pub(super) fn close(&self) {
        if !self.closing.swap(true, Ordering::AcqRel) {
            self.host_line.close();
            self.backend.device_closed();
        }
    }

    /// Fails the device for good. Parked strands are sent to a run queue to be purged; the owners
    /// of the others check the device's health before their next op. Called while no lock is held.
    #[cold]
    pub(super) fn fail(&self, error: Error) {
        self.health.fail(error);
        self.kernels.stop();
        self.empty_host_line();
        for stream in self.backend.timelines.streams(Some(self.id)) {
            std::task::Wake::wake(stream);
        }
        self.backend.something_changed();
    }
}
