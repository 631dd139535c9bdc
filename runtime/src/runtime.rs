//! Runtimes, which own devices and their settings.

mod builder;
mod environment;
mod kernels;

pub use builder::RuntimeBuilder;

use crate::health::{HealthState, HealthWatch};
use crate::memory::MemoryOptions;
use crate::order::OrderMode;
use crate::shared::{Device, DeviceShared, RuntimeShared};
use crate::sync_mode::SyncMode;
#[cfg(feature = "cuda")]
use parking_lot::Mutex;
#[cfg(feature = "cuda")]
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
#[cfg(feature = "test-util")]
use warpline_cpu::CpuBackend;
#[cfg(feature = "cuda")]
use warpline_cuda::{CudaDevice, CudaOptions};
use warpline_driver::{DeviceId, Driver, Error, ErrorKind, Health, Result, reentry};

/// The owner of a set of devices. Its [`Device`] handles can be kept anywhere; they accept work for
/// as long as this value lives.
///
/// Several runtimes can exist in one process. A fault affects the devices of one runtime, unless it
/// destroys the context of a CUDA device, which all runtimes share. The process has a default
/// runtime, made on first use.
///
/// # Cancel safety
/// Dropping it never blocks, and no more work is accepted. Enqueued work that can run still runs.
/// Work that can never run, because it waits for a closed gate, resolves to a `ShutDown` error that
/// names the wait.
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<RuntimeShared>,
    /// True once the devices were told to shut down.
    stopped: AtomicBool,
    /// The CPU devices, by ordinal, and those of other drivers.
    devices: Vec<Arc<DeviceShared>>,
    #[cfg(feature = "cuda")]
    cuda: CudaDevices,
    #[cfg(feature = "test-util")]
    cpu: Option<Arc<CpuBackend>>,
}

impl Runtime {
    /// Returns a builder with the default settings.
    ///
    /// It reads no environment variable, so the runtime has the same settings everywhere.
    /// [`RuntimeBuilder::from_env`] starts from the environment variables that [`Runtime::new`]
    /// reads.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Makes a runtime with the settings from environment variables, and the defaults otherwise.
    /// [`RuntimeBuilder::from_env`] lists the variables.
    ///
    /// # Errors
    /// The errors of [`RuntimeBuilder::from_env`].
    pub fn new() -> Result<Runtime> {
        RuntimeBuilder::from_env()?.build()
    }

    /// Returns the default runtime of the process, which the first call makes as [`Runtime::new`]
    /// does.
    ///
    /// # Errors
    /// The errors of [`Runtime::new`]. If the first call fails, every later call returns the same
    /// error.
    pub fn default_runtime() -> Result<&'static Runtime> {
        static DEFAULT: OnceLock<Result<Runtime>> = OnceLock::new();
        DEFAULT.get_or_init(Runtime::new).as_ref().map_err(Clone::clone)
    }

    /// Returns `cuda:0`, or if there is none, `cpu:0` with a `tracing` event that gives the reason.
    ///
    /// If the machine has no driver, or the driver shows no device, the event is of level `INFO`.
    /// If there is a driver that is too old, cannot be loaded or does not start, or if the device
    /// cannot be opened, the event is a warning. Without a subscriber it is a line on standard
    /// error, once per process.
    ///
    /// # Errors
    /// `Fault` if `cuda:0` has failed, in this runtime or for the whole process; the error says
    /// which. `Forked` in the child of a process that has used Warpline or CUDA, and `Reentrant` if
    /// a host function would open the device. The CPU does not replace a GPU in these cases.
    /// `NoSuchDevice` if the runtime has no CPU device either.
    pub fn best_device(&self) -> Result<Device> {
        let missing = match self.device(DeviceId::Cuda(0)) {
            Ok(device) => return device.fault().map_or(Ok(device), Err),
            Err(error) if error.kind() != ErrorKind::NoSuchDevice => return Err(error),
            Err(error) => error,
        };
        #[cfg(feature = "cuda")]
        let is_expected = warpline_cuda::is_absent();
        #[cfg(not(feature = "cuda"))]
        let is_expected = true;
        crate::report::fell_back(&missing, is_expected);
        self.device(DeviceId::Cpu(0))
    }

    /// Returns the device with this id. A CUDA device is opened on first use. Never falls back to
    /// another device. To look a device up by name, pass `"cpu:1".parse()?`.
    ///
    /// # Errors
    /// `NoSuchDevice`, whose message says what is missing, for instance the CUDA driver; `Fault` if
    /// a CUDA device has failed in this process before this runtime opened it; `Forked` in the
    /// child of a process that has used Warpline or CUDA; `Reentrant` if a host function would open
    /// a CUDA device.
    pub fn device(&self, id: DeviceId) -> Result<Device> {
        self.inner.device(id)
    }

    /// Returns the device with this name; `cuda` is the current CUDA device.
    pub(crate) fn open(&self, name: &str) -> Result<Device> {
        match crate::scope::cuda_device(&self.inner.shared) {
            Some(current) if name == "cuda" => Ok(current),
            _ => self.device(name.parse()?),
        }
    }

    /// Returns the CPU devices, the devices of [other drivers](RuntimeBuilder::driver), and the
    /// CUDA devices that have been opened, in this order.
    pub fn devices(&self) -> Vec<Device> {
        self.inner.all().into_iter().map(Device::of).collect()
    }

    /// Opens and returns all CUDA devices that the driver shows and that work. There are none if
    /// the machine has no `libcuda.so.1`, or the driver shows no device.
    ///
    /// A device that has failed is left out, with a warning.
    ///
    /// # Errors
    /// `NoSuchDevice` if there is a driver that cannot be used (too old, cannot be loaded, does not
    /// start), or if one of the devices cannot be opened; `Fault` if all of them have failed;
    /// `Forked` in the child of a process that has used Warpline or CUDA; `Reentrant` in a host
    /// function.
    pub fn cuda_devices(&self) -> Result<Vec<Device>> {
        reentry::may_ask(&"cuda_devices")?;
        #[cfg(feature = "cuda")]
        let count = match warpline_cuda::device_count() {
            Err(_) if warpline_cuda::is_absent() => 0,
            count => count?,
        };
        #[cfg(not(feature = "cuda"))]
        let count = 0;
        let (mut working, mut lost) = (Vec::new(), None);
        for ordinal in 0..count {
            let device = self.device(DeviceId::Cuda(ordinal));
            match device.and_then(|device| device.fault().map_or(Ok(device), Err)) {
                Ok(device) => working.push(device),
                Err(fault) if fault.kind() == ErrorKind::Fault => {
                    crate::report::left_out(&fault);
                    lost = Some(fault);
                }
                Err(error) => return Err(error),
            }
        }
        match lost {
            Some(fault) if working.is_empty() => Err(fault),
            _ => Ok(working),
        }
    }

    /// Returns the mode of the order check.
    pub fn order(&self) -> OrderMode {
        self.inner.shared.mode
    }

    /// Returns the reaction to blocking calls in tasks.
    pub fn sync(&self) -> SyncMode {
        self.inner.shared.sync.mode
    }

    /// Stops accepting work; resolves once all enqueued work has finished.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the shutdown: it then happens as if the `Runtime` was
    /// dropped.
    ///
    /// # Errors
    /// `ShutDown` if some of the work could never run; `Fault` if a device failed; the errors of
    /// refused calls that the program has not seen, as in [`Device::synchronize`].
    pub async fn shut_down(self) -> Result<()> {
        self.inner.accept_no_more();
        self.inner.shared.let_calls_end().await;
        let parts: Vec<_> = self.devices().iter().map(Device::synchronize).collect();
        self.inner.stop();
        let mut result = Ok(());
        for part in parts {
            result = result.and(part.await);
        }
        result
    }

    /// Returns the state of this runtime: failing if one of its devices has failed.
    ///
    /// See [`Device::health`].
    pub fn health(&self) -> HealthState {
        self.inner.shared.health.state()
    }

    /// Returns a watch on [`health`](Self::health), for a task that waits for a change.
    ///
    /// See [`Device::watch_health`].
    pub fn watch_health(&self) -> HealthWatch {
        self.inner.shared.health.watch()
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn other_threads_have_work(&self) -> bool {
        self.inner.shared.other_threads_have_work()
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn cpu(&self) -> Option<&Arc<CpuBackend>> {
        self.inner.cpu.as_ref()
    }

    /// Makes a runtime over other drivers, for tests of the layers above the driver interface.
    #[doc(hidden)]
    pub fn over(drivers: Vec<(Arc<dyn Driver>, Arc<Health>)>, order: OrderMode) -> Runtime {
        let shared = RuntimeShared::new(order, SyncMode::Off, false);
        let devices = drivers
            .into_iter()
            .map(|(driver, health)| {
                let device = DeviceShared::new(shared.clone(), driver, health, MemoryOptions::default());
                device.expect("only a fraction of unknown memory is refused")
            })
            .collect();
        let inner = Arc::new(Inner {
            stopped: AtomicBool::new(false),
            #[cfg(feature = "cuda")]
            cuda: CudaDevices::default(),
            shared,
            devices,
            #[cfg(feature = "test-util")]
            cpu: None,
        });
        inner.let_devices_open_others();
        Runtime { inner }
    }
}

impl Device {
    /// Returns `cuda:0` of the default runtime, or `cpu:0` if there is no usable GPU:
    /// [`Runtime::best_device`]. A GPU that has failed is an error.
    ///
    /// # Errors
    /// The errors of [`Runtime::default_runtime`] and of [`Runtime::best_device`].
    pub fn best() -> Result<Device> {
        Runtime::default_runtime()?.best_device()
    }

    /// Opens a device of the default runtime by name: `cpu`, `cpu:1`, `cuda`, `cuda:0`. Never falls
    /// back to another device.
    ///
    /// `cpu` is `cpu:0`. `cuda` is the [current CUDA device](Device::current_cuda).
    ///
    /// # Errors
    /// `InvalidName` if the text is not a device name; the errors of [`Runtime::device`] and of
    /// [`Runtime::default_runtime`].
    pub fn open(name: &str) -> Result<Device> {
        Runtime::default_runtime()?.open(name)
    }

    /// Opens and returns all CUDA devices, in the default runtime: [`Runtime::cuda_devices`].
    ///
    /// # Errors
    /// The errors of [`Runtime::default_runtime`] and of [`Runtime::cuda_devices`].
    pub fn all_cuda() -> Result<Vec<Device>> {
        Runtime::default_runtime()?.cuda_devices()
    }
}

/// The CUDA devices of a runtime. Each is opened on first use, because opening one costs a context
/// and limits what a forked child may do.
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
        // Checked first: in a forked child the lock may be held by a thread that does not exist
        // there.
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
        let device = DeviceShared::new(shared.clone(), driver, health, self.memory)?;
        if let Some(nth) = self.refuse_allocation {
            device.memory.refuse_allocation(nth);
        }
        opened.insert(ordinal, device.clone());
        Ok(device)
    }
}

impl Inner {
    fn device(&self, id: DeviceId) -> Result<Device> {
        if let Some(shared) = self.devices.iter().find(|device| device.id == id) {
            return Ok(Device::of(shared.clone()));
        }
        #[cfg(feature = "cuda")]
        if let DeviceId::Cuda(ordinal) = id {
            return self.cuda.device(&self.shared, ordinal).map(Device::of);
        }
        let cpus = self.devices.iter().filter(|device| matches!(device.id, DeviceId::Cpu(_))).count();
        let why = match id {
            DeviceId::Cuda(_) => {
                format!("there is no {id}: this build of warpline lacks the feature \"cuda\"; use \"cpu\"")
            }
            DeviceId::Cpu(n) => format!(
                "there is no {id}: this runtime has {cpus} CPU device{}; build it with cpu_devices({more}), \
                 or set WARPLINE_CPU_DEVICES={more} if it is built from the environment",
                if cpus == 1 { "" } else { "s" },
                more = u64::from(n) + 1,
            ),
            _ => format!("there is no {id} in this runtime; build it with the driver of {id}"),
        };
        Err(Error::new(ErrorKind::NoSuchDevice, why))
    }

    /// Lets a handle of one device open the others.
    fn let_devices_open_others(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        self.shared.set_opener(Box::new(move |id| inner.upgrade().map(|inner| inner.device(id))));
    }

    /// Returns the devices of every backend.
    fn all(&self) -> Vec<Arc<DeviceShared>> {
        let cpus = self.devices.iter().cloned();
        #[cfg(feature = "cuda")]
        let all = cpus.chain(self.cuda.opened.lock().values().cloned()).collect();
        #[cfg(not(feature = "cuda"))]
        let all = cpus.collect();
        all
    }

    fn accept_no_more(&self) {
        self.shared.shut_down();
        self.all().iter().for_each(|device| device.reported.shuts_down());
    }

    fn stop(&self) {
        // A forked child has none of the threads that would release their locks.
        if self.stopped.swap(true, Ordering::AcqRel) || warpline_driver::process::is_forked() {
            return;
        }
        self.accept_no_more();
        // A device and its default stream hold each other.
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
