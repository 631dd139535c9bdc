//! Runtimes: what owns devices and decides how they behave.

mod environment;
mod shared;

pub(crate) use shared::RuntimeShared;

use crate::device::{Device, DeviceShared};
use crate::memory::MemoryOptions;
use crate::order::OrderMode;
#[cfg(feature = "cuda")]
use parking_lot::Mutex;
#[cfg(feature = "cuda")]
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use warpline_cpu::{BackendOptions, CpuBackend, DeviceOptions, FaultPlan, Schedule};
#[cfg(feature = "cuda")]
use warpline_cuda::{CudaDevice, CudaOptions};
#[cfg(feature = "cuda")]
use warpline_driver::WakeUp;
use warpline_driver::{DeviceId, Driver, Error, ErrorKind, Health, Result, reentry};

/// Owns devices. Its [`Device`] handles can be kept anywhere; they take work for as long as this value lives.
///
/// Several can live in one process, and a fault stays in its own. The process has a default one, made at first use.
///
/// # Cancel safety
/// Dropping it never blocks. No more work is taken; what is enqueued and can run still runs; what waits for something that
/// will not come (a closed gate) resolves to a `ShutDown` error that says what it was.
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<RuntimeShared>,
    /// The CPU devices, by ordinal, and those of other drivers.
    devices: Vec<Arc<DeviceShared>>,
    #[cfg(feature = "cuda")]
    cuda: CudaDevices,
    #[cfg(feature = "test-util")]
    cpu: Option<Arc<CpuBackend>>,
}

impl Runtime {
    /// Returns the default settings, to be changed before [`build`](RuntimeBuilder::build).
    ///
    /// Reads no environment variable, so a runtime that is built from them is the same everywhere.
    /// [`RuntimeBuilder::from_env`] starts from the settings that [`Runtime::new`] has.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Makes a runtime with the settings that environment variables ask for, and the defaults
    /// otherwise: [`RuntimeBuilder::from_env`] lists them.
    ///
    /// # Errors
    /// As [`RuntimeBuilder::from_env`].
    pub fn new() -> Result<Runtime> {
        RuntimeBuilder::from_env()?.build()
    }

    /// The process's default runtime, made at first use as by [`Runtime::new`].
    ///
    /// # Errors
    /// As [`Runtime::new`], each time.
    pub fn default_runtime() -> Result<&'static Runtime> {
        static DEFAULT: OnceLock<Result<Runtime>> = OnceLock::new();
        DEFAULT.get_or_init(Runtime::new).as_ref().map_err(Clone::clone)
    }

    /// `cuda:0`, or `cpu:0` with a `tracing` event that says why. Where the machine has no driver,
    /// or the driver shows no device, the event is of level `INFO`. Where `cuda:0` cannot be used
    /// (its driver is too old, cannot be loaded or does not start, or the device cannot be opened)
    /// it is a warning, and without a subscriber a line on standard error, once a process.
    ///
    /// # Errors
    /// `NoSuchDevice` if the runtime has no CPU device either.
    pub fn best_device(&self) -> Result<Device> {
        self.device(DeviceId::Cuda(0)).or_else(|missing| {
            #[cfg(feature = "cuda")]
            let is_expected = warpline_cuda::is_absent();
            #[cfg(not(feature = "cuda"))]
            let is_expected = true;
            crate::report::fell_back(&missing, is_expected);
            self.device(DeviceId::Cpu(0))
        })
    }

    /// A device by its id, or by its name with `"cpu:1".parse()?`. Never falls back to another.
    ///
    /// # Errors
    /// `NoSuchDevice`, with what is missing; `Reentrant` if a host function would open a CUDA
    /// device.
    pub fn device(&self, id: DeviceId) -> Result<Device> {
        if let Some(shared) = self.inner.devices.iter().find(|device| device.id == id) {
            return Ok(Device::of(shared.clone()));
        }
        #[cfg(feature = "cuda")]
        if let DeviceId::Cuda(ordinal) = id {
            return self.inner.cuda.device(&self.inner.shared, ordinal).map(Device::of);
        }
        let cpus = self.inner.devices.iter().filter(|device| matches!(device.id, DeviceId::Cpu(_))).count();
        Err(Error::new(
            ErrorKind::NoSuchDevice,
            match id {
                DeviceId::Cuda(_) => {
                    format!(
                        "there is no {id}: this build of warpline is without the feature \"cuda\"; use \"cpu\""
                    )
                }
                DeviceId::Cpu(n) => format!(
                    "there is no {id}: this runtime has {cpus} CPU device{}; build it with cpu_devices({more}), or set \
                     WARPLINE_CPU_DEVICES={more} where it is built from the environment",
                    if cpus == 1 { "" } else { "s" },
                    more = u64::from(n) + 1,
                ),
                _ => format!("there is no {id} in this runtime; build it with the driver of {id}"),
            },
        ))
    }

    /// The CPU devices, those of [other drivers](RuntimeBuilder::driver), and the CUDA devices that
    /// were opened, in order.
    pub fn devices(&self) -> Vec<Device> {
        self.inner.all().into_iter().map(Device::of).collect()
    }

    /// All CUDA devices that the driver shows, opened. None where the machine has no
    /// `libcuda.so.1`, or the driver shows no device.
    ///
    /// # Errors
    /// `NoSuchDevice` if there is a driver that cannot be used (too old, cannot be loaded, does not
    /// start), or if one of the devices cannot be opened; `Reentrant` in a host function.
    pub fn cuda_devices(&self) -> Result<Vec<Device>> {
        reentry::may_ask(&"cuda_devices")?;
        #[cfg(feature = "cuda")]
        let count = match warpline_cuda::device_count() {
            Err(_) if warpline_cuda::is_absent() => 0,
            count => count?,
        };
        #[cfg(not(feature = "cuda"))]
        let count = 0;
        (0..count).map(|ordinal| self.device(DeviceId::Cuda(ordinal))).collect()
    }

    /// What the order check does here.
    pub fn order(&self) -> OrderMode {
        self.inner.shared.mode
    }

    /// Takes no more work, and resolves when what was enqueued is over.
    ///
    /// # Errors
    /// `ShutDown` if some of it could never run, `Fault` if a device failed.
    pub async fn shut_down(self) -> Result<()> {
        let parts: Vec<_> = self.devices().iter().map(Device::synchronize).collect();
        self.inner.stop();
        let mut result = Ok(());
        for part in parts {
            result = result.and(part.await);
        }
        result
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn cpu(&self) -> Option<&Arc<CpuBackend>> {
        self.inner.cpu.as_ref()
    }

    /// A runtime over other drivers, for tests of what is above the seam.
    #[doc(hidden)]
    pub fn over(drivers: Vec<(Arc<dyn Driver>, Arc<Health>)>, order: OrderMode) -> Runtime {
        let shared = RuntimeShared::new(order);
        let devices = drivers
            .into_iter()
            .map(|(driver, health)| {
                DeviceShared::new(shared.clone(), driver, health, MemoryOptions::default())
            })
            .collect();
        Runtime {
            inner: Arc::new(Inner {
                #[cfg(feature = "cuda")]
                cuda: CudaDevices::default(),
                shared,
                devices,
                #[cfg(feature = "test-util")]
                cpu: None,
            }),
        }
    }
}

/// The CUDA devices of a runtime, opened when they are asked for: opening one costs a context, and ends what a fork may do.
#[cfg(feature = "cuda")]
#[derive(Default)]
struct CudaDevices {
    opened: Mutex<BTreeMap<u32, Arc<DeviceShared>>>,
    options: CudaOptions,
    memory: MemoryOptions,
    refuse_allocation: Option<u64>,
}

#[cfg(feature = "cuda")]
impl CudaDevices {
    fn device(&self, shared: &Arc<RuntimeShared>, ordinal: u32) -> Result<Arc<DeviceShared>> {
        // First: in a forked child the lock may be held by a thread that is not there.
        if warpline_driver::process::is_forked() {
            return Err(warpline_driver::process::forked());
        }
        let mut opened = self.opened.lock();
        if let Some(device) = opened.get(&ordinal) {
            return Ok(device.clone());
        }
        reentry::may_ask(&format_args!("opening {}", DeviceId::Cuda(ordinal)))?;
        let health = Arc::new(Health::default());
        let driver = Arc::new(CudaDevice::open(ordinal, health.clone(), self.options)?);
        let device = DeviceShared::new(shared.clone(), driver, health, self.memory);
        if let Some(nth) = self.refuse_allocation {
            device.memory.refuse_allocation(nth);
        }
        opened.insert(ordinal, device.clone());
        Ok(device)
    }
}

impl Inner {
    /// The devices of every backend.
    fn all(&self) -> Vec<Arc<DeviceShared>> {
        let cpus = self.devices.iter().cloned();
        #[cfg(feature = "cuda")]
        let all = cpus.chain(self.cuda.opened.lock().values().cloned()).collect();
        #[cfg(not(feature = "cuda"))]
        let all = cpus.collect();
        all
    }

    fn stop(&self) {
        // The child of a fork has none of the threads that would let go of their locks.
        if self.shared.is_shut_down() || warpline_driver::process::is_forked() {
            return;
        }
        self.shared.shut_down();
        // The default streams are held by their devices, which they hold themselves.
        let devices = self.all();
        let defaults: Vec<_> = devices.iter().map(|device| device.take_default_stream()).collect();
        drop(defaults);
        for device in &devices {
            device.driver.shut_down();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("devices", &self.inner.devices).finish_non_exhaustive()
    }
}

/// Settings of a [`Runtime`].
#[derive(Clone, Debug)]
#[must_use = "`build` makes the runtime"]
pub struct RuntimeBuilder {
    cpu_devices: u32,
    workers: Option<usize>,
    schedule: Schedule,
    order: OrderMode,
    memory: MemoryOptions,
    fault_plan: FaultPlan,
    refuse_allocation: Option<u64>,
    drivers: Vec<OpenDriver>,
    #[cfg(feature = "cuda")]
    cuda: CudaOptions,
}

/// Opens a device of a driver that is not ours, which tells its failures to the `Health`.
#[derive(Clone)]
struct OpenDriver(Arc<OpenFn>);

type OpenFn = dyn Fn(Arc<Health>) -> Result<Arc<dyn Driver>> + Send + Sync;

impl fmt::Debug for OpenDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenDriver")
    }
}

impl Default for RuntimeBuilder {
    fn default() -> Self {
        RuntimeBuilder {
            cpu_devices: 1,
            workers: None,
            schedule: Schedule::Threads,
            order: OrderMode::Deny,
            memory: MemoryOptions::default(),
            fault_plan: FaultPlan::default(),
            refuse_allocation: None,
            drivers: Vec::new(),
            #[cfg(feature = "cuda")]
            cuda: CudaOptions::default(),
        }
    }
}

impl RuntimeBuilder {
    /// How many CPU devices: `cpu:0` is the host's own, the others stand in for GPUs. 1 by default.
    pub fn cpu_devices(mut self, devices: u32) -> Self {
        self.cpu_devices = devices;
        self
    }

    /// Adds a device of a driver of your own: an implementation of [`Driver`](crate::driver::Driver),
    /// whose id is a [`DeviceId::Other`].
    ///
    /// [`build`](Self::build) calls `open`, once for each runtime, with the [`Health`] through which
    /// the driver says that its device has failed.
    pub fn driver<D: Driver>(
        mut self,
        open: impl Fn(Arc<Health>) -> Result<D> + Send + Sync + 'static,
    ) -> Self {
        self.drivers.push(OpenDriver(Arc::new(move |health| Ok(Arc::new(open(health)?)))));
        self
    }

    /// How many worker threads the CPU devices share; by default as many as there are cores.
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = Some(threads);
        self
    }

    /// How the CPU devices run what is ready.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// What the order check does about a missing edge.
    pub fn order(mut self, mode: OrderMode) -> Self {
        self.order = mode;
        self
    }

    /// The most device memory, in bytes, that each device holds.
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        self.memory.limit_bytes = Some(bytes);
        self
    }

    /// The most pinned host memory, in bytes, that each device holds. 4 GiB by default.
    pub fn pinned_cap(mut self, bytes: usize) -> Self {
        self.memory.pinned_cap_bytes = bytes;
        self
    }

    /// Zeroes device and pinned memory before an allocation hands it out, so that no owner sees
    /// what an earlier one left there: for services that hold the data of several tenants. Off by
    /// default.
    ///
    /// Every `alloc` then is an [`alloc_zeroed`](crate::Stream::alloc_zeroed), that of tensors and
    /// other ops too, and a buffer from [`Device::pinned`] is all zeros. This holds for memory that
    /// was split, joined or given back to the driver and asked for again, and for what a graph
    /// allocates, at each launch.
    ///
    /// # What it does not promise
    /// Free memory keeps its contents until it is handed out again. With [`OrderMode::Warn`] and
    /// [`OrderMode::Off`] an op that no edge orders after the allocation may run before the
    /// zeroing. Code that goes by raw addresses sees what is next to its buffer. Memory that the
    /// runtime borrows is left as it is.
    ///
    /// # Cost
    /// A fill of the device for each allocation, which is an op: on a CUDA device a driver call of
    /// some microseconds, and the time to write the memory once. Pinned memory is written by the
    /// host, more than 1 MiB of it on a thread of the runtime if the caller awaits it.
    pub fn zero_on_free(mut self, zero: bool) -> Self {
        self.memory.zero_on_free = zero;
        self
    }

    /// How eagerly the host looks for what CUDA devices have done: what a wake-up costs against how late it is.
    /// [`WakeUp::Balanced`] by default.
    #[cfg(feature = "cuda")]
    pub fn wake_up(mut self, wake_up: WakeUp) -> Self {
        self.cuda.wake_up = wake_up;
        self
    }

    /// Has CUDA devices tell their progress by events that are asked, also where they could write it to host memory: for drivers on
    /// which that does not work although they say so, and to compare the two. Each wake-up costs some driver calls more.
    ///
    /// `WARPLINE_COMPLETION=event` does the same for runtimes made [from the
    /// environment](Self::from_env).
    #[cfg(feature = "cuda")]
    pub fn complete_by_events(mut self) -> Self {
        self.cuda.by_events = true;
        self
    }

    /// The `nth` op that runs on each CPU device (the first is 1) fails the device, as an illegal address would.
    #[cfg(feature = "test-util")]
    pub fn fail_op(mut self, nth: u64) -> Self {
        self.fault_plan.fail_op = Some(nth);
        self
    }

    /// The `nth` twin that runs on each CPU device (the first is 1) panics.
    #[cfg(feature = "test-util")]
    pub fn panic_in_twin(mut self, nth: u64) -> Self {
        self.fault_plan.panic_in_twin = Some(nth);
        self
    }

    /// The `nth` allocation on each device (the first is 1) is refused as out of memory.
    #[cfg(feature = "test-util")]
    pub fn refuse_allocation(mut self, nth: u64) -> Self {
        self.refuse_allocation = Some(nth);
        self
    }

    fn refuse_zeros(&self) -> Result<()> {
        let zeros = [
            ("cpu_devices", self.cpu_devices == 0),
            ("workers", self.workers == Some(0)),
            ("memory_limit", self.memory.limit_bytes == Some(0)),
            ("pinned_cap", self.memory.pinned_cap_bytes == 0),
            ("fail_op", self.fault_plan.fail_op == Some(0)),
            ("panic_in_twin", self.fault_plan.panic_in_twin == Some(0)),
            ("refuse_allocation", self.refuse_allocation == Some(0)),
        ];
        let Some((what, _)) = zeros.iter().find(|(_, is_zero)| *is_zero) else { return Ok(()) };
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "a runtime cannot be built: {what} is 0, and at least 1 is needed; do not call {what} to get its default"
            ),
        ))
    }

    /// The runtime. Threads are started when there is work.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is 0, or if a [driver](Self::driver)'s device has the id of
    /// another one, or of one of ours; those of opening drivers.
    pub fn build(self) -> Result<Runtime> {
        warpline_driver::process::watch();
        self.refuse_zeros()?;
        let shared = RuntimeShared::new(self.order);
        let cpu = CpuBackend::new(BackendOptions {
            threads: self.workers,
            schedule: self.schedule,
            ..BackendOptions::default()
        });
        let device = |driver, health| {
            let device = DeviceShared::new(shared.clone(), driver, health, self.memory);
            if let Some(nth) = self.refuse_allocation {
                device.memory.refuse_allocation(nth);
            }
            device
        };
        let cpus = (0..self.cpu_devices).map(|ordinal| {
            let health = Arc::new(Health::default());
            let options = DeviceOptions { fault_plan: Some(self.fault_plan), ..DeviceOptions::default() };
            device(cpu.device(ordinal, health.clone(), options), health)
        });
        let mut devices: Vec<Arc<DeviceShared>> = cpus.collect();
        for OpenDriver(open) in &self.drivers {
            let health = Arc::new(Health::default());
            let driver = open(health.clone())?;
            refuse_taken_id(driver.id(), &devices)?;
            devices.push(device(driver, health));
        }
        Ok(Runtime {
            inner: Arc::new(Inner {
                #[cfg(feature = "cuda")]
                cuda: CudaDevices {
                    opened: Mutex::default(),
                    options: self.cuda,
                    memory: self.memory,
                    refuse_allocation: self.refuse_allocation,
                },
                shared,
                devices,
                #[cfg(feature = "test-util")]
                cpu: Some(cpu),
            }),
        })
    }
}

/// Refuses the id of a driver's device if it is one of ours, or if the runtime has it already.
fn refuse_taken_id(id: DeviceId, devices: &[Arc<DeviceShared>]) -> Result<()> {
    let why = match id {
        DeviceId::Other { backend: "cpu" | "cuda", .. } | DeviceId::Cpu(_) | DeviceId::Cuda(_) => {
            "the backend is one of warpline's own; use another name in DeviceId::Other"
        }
        _ if devices.iter().any(|device| device.id == id) => {
            "the runtime has a device of that id already; use another ordinal"
        }
        _ => return Ok(()),
    };
    let text = format!("a runtime cannot be built: a driver's device is called {id}, and {why}");
    Err(Error::new(ErrorKind::InvalidArgument, text))
}
