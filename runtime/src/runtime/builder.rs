//! The settings that a runtime is built from.

#[cfg(feature = "cuda")]
use super::CudaDevices;
use super::{Inner, Runtime};
use crate::memory::MemoryOptions;
use crate::order::OrderMode;
use crate::shared::{Device, DeviceShared, Observer, RuntimeShared};
use crate::sync_mode::SyncMode;
#[cfg(feature = "cuda")]
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use warpline_cpu::{BackendOptions, CpuBackend, DeviceOptions, FaultPlan, Schedule};
#[cfg(feature = "cuda")]
use warpline_cuda::CudaOptions;
#[cfg(feature = "cuda")]
use warpline_driver::WakeUp;
use warpline_driver::{DeviceId, Driver, Error, ErrorKind, Health, OutOfMemory, Result, process};

/// A builder for a [`Runtime`], which holds its settings.
#[derive(Clone, Debug)]
#[must_use = "`build` makes the runtime"]
pub struct RuntimeBuilder {
    pub(super) cpu_devices: u32,
    pub(super) cpu: BackendOptions,
    pub(super) order: OrderMode,
    pub(super) sync: SyncMode,
    memory: MemoryOptions,
    out_of_memory: Option<OnOutOfMemory>,
    fault_plan: FaultPlan,
    to_copies: bool,
    refuse_allocation: Option<u64>,
    drivers: Vec<OpenDriver>,
    #[cfg(feature = "cuda")]
    pub(super) cuda: CudaOptions,
}

/// Opens a device of an external driver, which reports its failures to the `Health`.
#[derive(Clone)]
struct OpenDriver(Arc<OpenFn>);

type OpenFn = dyn Fn(Arc<Health>) -> Result<Arc<dyn Driver>> + Send + Sync;

impl fmt::Debug for OpenDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenDriver")
    }
}

/// The program's function that is called when a device has no memory.
#[derive(Clone)]
struct OnOutOfMemory(Arc<Observer>);

impl fmt::Debug for OnOutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnOutOfMemory")
    }
}

impl Default for RuntimeBuilder {
    fn default() -> Self {
        RuntimeBuilder {
            cpu_devices: 1,
            cpu: BackendOptions { kernels: super::kernels::defaults(), ..BackendOptions::default() },
            order: OrderMode::Deny,
            sync: SyncMode::Off,
            memory: MemoryOptions::default(),
            out_of_memory: None,
            fault_plan: FaultPlan::default(),
            to_copies: false,
            refuse_allocation: None,
            drivers: Vec::new(),
            #[cfg(feature = "cuda")]
            cuda: CudaOptions::default(),
        }
    }
}

impl RuntimeBuilder {
    /// Sets the number of CPU devices; 1 by default. `cpu:0` is the host itself, and the others
    /// stand in for GPUs.
    pub fn cpu_devices(mut self, devices: u32) -> Self {
        self.cpu_devices = devices;
        self
    }

    /// Adds a device with a driver that you implement. The driver is an implementation of
    /// [`Driver`], a trait of the module `warpline::backend`. Its [`id`](Driver::id) must be a
    /// [`DeviceId::Other`]; [`Runtime::device`] with that id returns the device.
    ///
    /// [`build`](Self::build) calls `open`, once for each runtime, with the [`Health`] through
    /// which the driver reports that its device has failed. The crate `warpline-driver` documents
    /// the contract of a driver, and is the only crate that a driver needs.
    pub fn driver<D: Driver>(
        mut self,
        open: impl Fn(Arc<Health>) -> Result<D> + Send + Sync + 'static,
    ) -> Self {
        self.drivers.push(OpenDriver(Arc::new(move |health| Ok(Arc::new(open(health)?)))));
        self
    }

    /// Sets the number of worker threads that the CPU devices share. The default, and the most, is
    /// the number of cores on which the main thread may run. Threads of the library run on those
    /// cores, whichever thread builds the runtime. So a program that pins its main thread to one
    /// core gets one worker.
    pub fn workers(mut self, threads: usize) -> Self {
        self.cpu.threads = Some(threads);
        self
    }

    /// Sets how the CPU devices run their ops; [`Schedule::Threads`] by default.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.cpu.schedule = schedule;
        self
    }

    /// Sets the reaction of the order check to a missing edge; [`OrderMode::Deny`] by default.
    pub fn order(mut self, mode: OrderMode) -> Self {
        self.order = mode;
        self
    }

    /// Sets the reaction to a `blocking_*` call on a thread that polls a task; [`SyncMode::Off`] by
    /// default.
    ///
    /// # Examples
    /// ```
    /// use warpline::{DeviceId, ErrorKind, Runtime, SyncMode};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> warpline::Result<()> {
    /// let runtime = Runtime::builder().sync(SyncMode::Error).build()?;
    /// let stream = runtime.device(DeviceId::Cpu(0))?.new_stream()?;
    /// let error = stream.call(|| 7).blocking_wait().unwrap_err(); // in a task
    /// assert_eq!(error.kind(), ErrorKind::Reentrant);
    /// assert_eq!(stream.call(|| 7).await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync(mut self, mode: SyncMode) -> Self {
        self.sync = mode;
        self
    }

    /// Limits the device memory, in bytes, that each device's allocator takes from its driver.
    /// There is no limit by default. With a [`memory_fraction`](Self::memory_fraction) too, the
    /// lower limit applies.
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        self.memory.limit_bytes = Some(bytes);
        self
    }

    /// Limits the device memory that each device's allocator takes from its driver to a fraction of
    /// the device's total, more than 0 and at most 1. There is no limit by default.
    ///
    /// The total is [`DeviceProperties::total_bytes`](crate::DeviceProperties::total_bytes): on a
    /// CPU device the memory of the machine, which all CPU devices share. So each of two CPU
    /// devices may take the fraction. The limit counts live and cached memory of this runtime. It
    /// does not count other runtimes and processes, pinned memory, or what a driver needs for
    /// contexts, code and libraries. PyTorch has `set_per_process_memory_fraction`.
    ///
    /// # Errors
    /// `InvalidArgument` from [`build`](Self::build) if the fraction is out of range, or if a
    /// device does not report its total. CUDA devices report the latter when they are opened.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> warpline::Result<()> {
    /// let runtime = warpline::Runtime::builder().memory_fraction(0.5).build()?;
    /// let device = runtime.device("cpu".parse()?)?;
    /// let half = device.properties().total_bytes / 2;
    /// assert_eq!(device.memory_stats().limit_bytes, Some(half));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "set_per_process_memory_fraction")]
    pub fn memory_fraction(mut self, fraction: f64) -> Self {
        self.memory.fraction = Some(fraction);
        self
    }

    /// Sets a function that is called when a device has too little memory for an allocation, and
    /// that may free some. Afterwards the allocation is tried once more.
    ///
    /// The function gets the device and the details of the refusal. It is called on the thread that
    /// allocates, within the call that allocates, and at most once for each allocation. Threads
    /// that allocate at the same time may call it at the same time.
    ///
    /// # What it may do
    /// No lock of the runtime is held, so it may do what the code that allocates may do there: drop
    /// buffers, tensors and graphs, call [`empty_cache`](crate::Device::empty_cache), enqueue work,
    /// and outside of async code block on a `Pending`. It may allocate. If that allocation is
    /// refused too, on any device, its error returns without another call of the function.
    ///
    /// A function that holds a `Device`, a `Buffer` or another handle of the runtime keeps the
    /// runtime's memory alive. Use the device that is passed in, and take buffers out of the place
    /// where the function finds them.
    ///
    /// # What the second attempt finds
    /// It searches the freed memory like any allocation. Memory whose uses are ordered before the
    /// allocating stream, or have finished, is free at once. For memory that one other stream still
    /// uses, the allocating stream waits on the device. Memory that several other streams still use
    /// is not available before their work has finished, and unfinished work also keeps memory from
    /// returning to the driver. To wait for it, block on
    /// [`Device::synchronize`](crate::Device::synchronize).
    ///
    /// The cached memory of the device itself has been returned to the driver before the call, as
    /// far as that helps. `empty_cache` is of use for other devices and runtimes that share the
    /// device's memory.
    ///
    /// # When it is not called
    /// For sizes that no device can address, for requests beyond their
    /// [`Budget`](crate::Budget), for pinned memory, and for memory that a device uses for itself,
    /// such as workspaces of libraries, which work with less.
    ///
    /// # Panics
    /// A panic of the function passes to the caller of the allocation. Nothing is allocated then,
    /// and the device is still usable.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// # fn main() -> warpline::Result<()> {
    /// // Buffers that can be made again.
    /// let cache = Arc::new(Mutex::new(Vec::<warpline::Buffer<u8>>::new()));
    /// let of_function = Arc::downgrade(&cache);
    /// let runtime = warpline::Runtime::builder()
    ///     .memory_limit(64 << 20)
    ///     .on_out_of_memory(move |_device, _details| {
    ///         if let Some(cache) = of_function.upgrade() {
    ///             cache.lock().unwrap().clear();
    ///         }
    ///     })
    ///     .build()?;
    /// let device = runtime.device("cpu".parse()?)?;
    /// cache.lock().unwrap().push(device.alloc::<u8>(48 << 20)?);
    /// let large = device.alloc::<u8>(40 << 20)?;
    /// assert!(cache.lock().unwrap().is_empty());
    /// # drop(large);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_out_of_memory(
        mut self,
        observe: impl Fn(&Device, &OutOfMemory) + Send + Sync + 'static,
    ) -> Self {
        self.out_of_memory = Some(OnOutOfMemory(Arc::new(observe)));
        self
    }

    /// Limits the pinned host memory, in bytes, that each device holds. 4 GiB by default.
    ///
    /// Copies of at most 64 KiB may use 1 MiB more. At the cap, requests wait as
    /// [`Device::pinned`](crate::Device::pinned) says.
    pub fn pinned_cap(mut self, bytes: usize) -> Self {
        self.memory.pinned_cap_bytes = bytes;
        self
    }

    /// Zeroes device and pinned memory before an allocation returns it, so that no owner sees the
    /// contents of an earlier one. This is for services that hold the data of several tenants. Off
    /// by default.
    ///
    /// Every `alloc` is then an [`alloc_zeroed`](crate::Stream::alloc_zeroed), including those of
    /// tensors and other ops, and a buffer from [`Device::pinned`](crate::Device::pinned) is all
    /// zeros. This also holds for memory that was split, joined or returned to the driver and
    /// allocated again, and for allocations of a graph, at each launch.
    ///
    /// # What it does not promise
    /// Free memory keeps its contents until it is allocated again. With [`OrderMode::Warn`] and
    /// [`OrderMode::Off`] an op that no edge orders after the allocation may run before the
    /// zeroing. Code that uses raw addresses can read beyond its buffer. Memory that the runtime
    /// borrows is not zeroed.
    ///
    /// # Cost
    /// Each allocation of device memory costs a fill, which is an op: on a CUDA device a driver
    /// call of some microseconds, and the time to write the memory once. The host zeroes pinned
    /// memory: the calling thread does, or a thread of the runtime if
    /// [`Device::pinned`](crate::Device::pinned) returns more than 1 MiB.
    pub fn zero_on_free(mut self, zero: bool) -> Self {
        self.memory.zero_on_free = zero;
        self
    }

    /// Sets how eagerly the host checks the progress of CUDA devices: the cost of a wake-up against
    /// its latency. [`WakeUp::Balanced`] by default.
    #[cfg(feature = "cuda")]
    pub fn wake_up(mut self, wake_up: WakeUp) -> Self {
        self.cuda.wake_up = wake_up;
        self
    }

    /// Makes CUDA devices report their progress through events that the host queries, even if they
    /// could write it to host memory. Use this for drivers that report such writes as supported
    /// although they do not work, or to compare the two. Each wake-up then costs a few more driver
    /// calls.
    ///
    /// `WARPLINE_COMPLETION=event` does the same for runtimes made [from the
    /// environment](Self::from_env).
    #[cfg(feature = "cuda")]
    pub fn complete_by_events(mut self) -> Self {
        self.cuda.by_events = true;
        self
    }

    /// Makes the `nth` op that runs on each CPU device (the first is 1) fail the device, as an
    /// illegal address would.
    ///
    /// Needs the feature `test-util`.
    #[cfg(feature = "test-util")]
    pub fn fail_op(mut self, nth: u64) -> Self {
        self.fault_plan.fail_op = Some(nth);
        self
    }

    /// Makes the `nth` twin (a kernel's CPU form) that runs on each CPU device panic. The first is
    /// 1.
    ///
    /// Needs the feature `test-util`.
    #[cfg(feature = "test-util")]
    pub fn panic_in_twin(mut self, nth: u64) -> Self {
        self.fault_plan.panic_in_twin = Some(nth);
        self
    }

    /// Refuses the `nth` allocation on each device (the first is 1) as out of memory.
    ///
    /// Needs the feature `test-util`.
    #[cfg(feature = "test-util")]
    pub fn refuse_allocation(mut self, nth: u64) -> Self {
        self.refuse_allocation = Some(nth);
        self
    }

    /// Makes the tensor ops `to`, `cpu` and `cuda` copy a tensor that is on the named device
    /// already.
    ///
    /// Without this setting, they return that tensor itself. So where everything is on one CPU
    /// device, `x.cpu()` shares the memory of `x`, and an op in place changes both. If `x` is on a
    /// GPU, it does not. A test with this setting finds code that relies on shared memory. Code
    /// that then still relies on it passes the same tensor on instead of moving it.
    ///
    /// Needs the feature `test-util`.
    #[cfg(feature = "test-util")]
    pub fn to_copies(mut self) -> Self {
        self.to_copies = true;
        self
    }

    fn refuse_zeros(&self) -> Result<()> {
        let zeros = [
            ("cpu_devices", self.cpu_devices == 0),
            ("workers", self.cpu.threads == Some(0)),
            ("kernel_threads", self.cpu.kernel_threads == Some(0)),
            ("memory_limit", self.memory.limit_bytes == Some(0)),
            ("pinned_cap", self.memory.pinned_cap_bytes == 0),
            ("fail_op", self.fault_plan.fail_op == Some(0)),
            ("panic_in_twin", self.fault_plan.panic_in_twin == Some(0)),
            ("refuse_allocation", self.refuse_allocation == Some(0)),
        ];
        match zeros.iter().find(|(_, is_zero)| *is_zero) {
            None => Ok(()),
            Some((what, _)) => Err(cannot_be_built(format_args!(
                "{what} is 0, and at least 1 is needed; omit the call to {what} for its default"
            ))),
        }
    }

    fn refuse_fraction(&self) -> Result<()> {
        match self.memory.fraction {
            Some(fraction) if !(fraction > 0.0 && fraction <= 1.0) => Err(cannot_be_built(format_args!(
                "memory_fraction is {fraction}, and more than 0 and at most 1 is needed; omit the call to \
                 memory_fraction for no limit"
            ))),
            _ => Ok(()),
        }
    }

    /// Builds the runtime. It starts threads only when there is work.
    ///
    /// # Errors
    /// `InvalidArgument` if a setting is the number 0, if a
    /// [`memory_fraction`](Self::memory_fraction) is out of range or of an unknown total, or if the
    /// id of a [driver](Self::driver) is already taken or not a valid [`DeviceId::Other`]; the
    /// errors of `open`; `Forked` in the child of a process that has made a runtime.
    pub fn build(self) -> Result<Runtime> {
        if process::is_forked() {
            return Err(process::forked());
        }
        process::watch();
        self.refuse_zeros()?;
        self.refuse_fraction()?;
        self.refuse_missing_feature()?;
        let shared = RuntimeShared::new(self.order, self.sync, self.to_copies);
        if let Some(OnOutOfMemory(observer)) = self.out_of_memory {
            shared.set_out_of_memory_observer(observer);
        }
        let cpu = CpuBackend::new(self.cpu);
        let device = |driver, health| {
            let device = DeviceShared::new(shared.clone(), driver, health, self.memory)?;
            if let Some(nth) = self.refuse_allocation {
                device.memory.refuse_allocation(nth);
            }
            Ok::<_, Error>(device)
        };
        let cpus = (0..self.cpu_devices).map(|ordinal| {
            let health = Arc::new(Health::default());
            let options = DeviceOptions { fault_plan: Some(self.fault_plan), ..DeviceOptions::default() };
            device(cpu.device(ordinal, health.clone(), options), health)
        });
        let mut inner = Inner {
            stopped: AtomicBool::new(false),
            devices: cpus.collect::<Result<_>>()?,
            #[cfg(feature = "cuda")]
            cuda: CudaDevices {
                opened: Mutex::default(),
                options: self.cuda,
                memory: self.memory,
                refuse_allocation: self.refuse_allocation,
            },
            shared: shared.clone(),
            #[cfg(feature = "test-util")]
            cpu: Some(cpu),
        };
        for OpenDriver(open) in &self.drivers {
            let health = Arc::new(Health::default());
            // On an error, dropping `inner` shuts down the devices that were opened before.
            let driver = open(health.clone())?;
            if let Err(error) = refuse_taken_id(driver.id(), &inner.devices) {
                driver.shut_down();
                return Err(error);
            }
            let opened = device(driver.clone(), health).inspect_err(|_| driver.shut_down());
            inner.devices.push(opened?);
        }
        let inner = Arc::new(inner);
        inner.let_devices_open_others();
        Ok(Runtime { inner })
    }
}

/// Refuses the id of a driver's device if a built-in device can have it, or if the runtime has it
/// already.
fn refuse_taken_id(id: DeviceId, devices: &[Arc<DeviceShared>]) -> Result<()> {
    let why = match id {
        DeviceId::Other { backend: "cpu" | "cuda", .. } | DeviceId::Cpu(_) | DeviceId::Cuda(_) => {
            "the backend is one of warpline's own; use another name in DeviceId::Other"
        }
        DeviceId::Other { backend, .. } if backend.is_empty() || backend.contains([':', ' ']) => {
            "the name of its backend is empty, or has a colon or a space in it; use a word"
        }
        _ if devices.iter().any(|device| device.id == id) => {
            "the runtime has a device of that id already; use another ordinal"
        }
        _ => return Ok(()),
    };
    Err(cannot_be_built(format_args!("a driver's device is called {id}, and {why}")))
}

/// Returns the error of settings that make no runtime.
pub(super) fn cannot_be_built(why: fmt::Arguments<'_>) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("a runtime cannot be built: {why}"))
}
