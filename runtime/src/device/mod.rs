//! Devices: where memory and streams belong.

mod generator;
mod pinned;

pub use generator::{Draw, Generator};
use warpline_driver::{
    Completion, DeviceId, DeviceProperties, Driver, DriverError, Error, ErrorKind, Health, Result, reentry,
};

use crate::kernel::{Kernel, LaunchConfig};
use crate::memory::{Buffer, DeviceMemory, MemoryOptions, MemoryStats, PinnedBytes, PinnedPool, PinnedStats};
use crate::order::Use;
use crate::pending::Pending;
use crate::runtime::Runtime;
use crate::runtime::RuntimeShared;
use crate::stream::{ForeignTurns, Settings, Stream, StreamBuilder, StreamCore, StreamPool};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device of a runtime. A cheap handle; all clones are the same device.
#[derive(Clone)]
pub struct Device(Arc<DeviceShared>);

/// What a device's streams, buffers and handles have in common.
pub(crate) struct DeviceShared {
    pub(crate) id: DeviceId,
    pub(crate) runtime: Arc<RuntimeShared>,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) health: Arc<Health>,
    pub(crate) memory: DeviceMemory,
    pub(crate) pinned: Arc<PinnedPool>,
    /// Whether markers have to be written for tickets to complete.
    pub(crate) signalled: bool,
    pub(crate) runs_in_turns: bool,
    pub(crate) foreign_turns: ForeignTurns,
    /// Set if every allocation is zeroed before it is handed out.
    pub(crate) zero_on_free: bool,
    default_stream: Mutex<Option<Stream>>,
    /// Streams that were made without a label.
    unlabelled: AtomicU64,
    generator: Generator,
}

impl DeviceShared {
    pub(crate) fn new(
        runtime: Arc<RuntimeShared>,
        driver: Arc<dyn Driver>,
        health: Arc<Health>,
        options: MemoryOptions,
    ) -> Arc<Self> {
        Arc::new(DeviceShared {
            id: driver.id(),
            runtime,
            memory: DeviceMemory::new(driver.clone(), options.limit_bytes),
            pinned: PinnedPool::new(driver.clone(), options.pinned_cap_bytes),
            signalled: driver.completion() == Completion::Signalled,
            runs_in_turns: driver.runs_in_turns(),
            driver,
            health,
            foreign_turns: ForeignTurns::default(),
            zero_on_free: options.zero_on_free,
            default_stream: Mutex::new(None),
            unlabelled: AtomicU64::new(0),
            generator: Generator::default(),
        })
    }

    /// Returns a label for a stream that was given none: `stream 1` for the first.
    pub(crate) fn next_label(&self) -> Arc<str> {
        let before = self.unlabelled.fetch_add(1, Ordering::Relaxed);
        format!("stream {}", before + 1).into()
    }

    /// Whether the device takes work.
    #[inline]
    pub(crate) fn ensure_open(&self) -> Result<()> {
        if warpline_driver::process::is_forked() {
            return Err(warpline_driver::process::forked());
        }
        if let Some(fault) = self.health.fault() {
            return Err(fault.clone());
        }
        if self.runtime.is_shut_down() {
            return Err(self.shut_down_error());
        }
        Ok(())
    }

    #[cold]
    fn shut_down_error(&self) -> Error {
        Error::new(
            ErrorKind::ShutDown,
            format!(
                "{} takes no more work: its runtime was shut down; keep the Runtime alive for as long as it is used",
                self.id
            ),
        )
    }

    /// A driver's refusal of one call: for what has become of the device meanwhile, if something has.
    #[cold]
    pub(crate) fn refused(&self, what: &dyn fmt::Display, error: &DriverError) -> Error {
        if let Err(cause) = self.ensure_open() {
            return cause;
        }
        let kind = match error {
            DriverError::OutOfMemory(_) => ErrorKind::OutOfMemory,
            DriverError::Refused(_) | DriverError::Halfway(_) => ErrorKind::Driver,
            DriverError::Captured(why) => {
                return Error::new(ErrorKind::Captured, format!("{what} is refused: {why}"));
            }
        };
        Error::new(kind, format!("{what} failed on {}: {error}; the device goes on", self.id))
    }

    /// Asks the driver. If it has no memory, gives cached memory back and asks once more.
    pub(crate) fn with_room<T>(
        &self,
        ask: impl Fn(&dyn Driver) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        match ask(&*self.driver) {
            Err(DriverError::OutOfMemory(_)) => {
                self.memory.make_room(|used| self.runtime.is_finished(used));
                ask(&*self.driver)
            }
            answer => answer,
        }
    }

    /// Page-locked memory from the pool.
    pub(crate) fn pinned_bytes(&self, len_bytes: usize) -> Result<PinnedBytes> {
        self.with_pinned(|pool| pool.take(len_bytes))
    }

    /// What `f` gets from the pool, which may find out what has become of the device.
    pub(crate) fn with_pinned<T>(&self, f: impl FnOnce(&Arc<PinnedPool>) -> Result<T>) -> Result<T> {
        if warpline_driver::process::is_forked() {
            return Err(warpline_driver::process::forked());
        }
        f(&self.pinned).map_err(|error| match error.kind() {
            ErrorKind::Driver => self.ensure_open().err().unwrap_or(error),
            _ => error,
        })
    }

    /// Before somebody is told that everything went well: whether the device still works.
    pub(crate) fn confirm(&self) -> Result<()> {
        match self.driver.confirm() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.refused(&"synchronize", &error)),
        }
    }

    /// Memory was freed that streams besides the allocating one (the first) have used last: when those uses are over has to
    /// become known without anybody awaiting them.
    #[inline]
    pub(crate) fn want_progress(&self, uses: &[Use]) {
        if self.signalled
            && let [_, others @ ..] = uses
        {
            self.want_markers(others);
        }
    }

    fn want_markers(&self, uses: &[Use]) {
        for used in uses {
            if let Some(core) = self.runtime.stream(used.stream) {
                core.want_marker(used.ticket);
            }
        }
    }

    pub(crate) fn take_default_stream(&self) -> Option<Stream> {
        self.default_stream.lock().take()
    }
}

impl Drop for DeviceShared {
    fn drop(&mut self) {
        // Buffers and streams hold the device, a closed stream until it is drained or given up, and
        // a copy by another device's stream holds it too. So nothing can touch its memory any more.
        self.memory.empty_cache(|_| true);
    }
}

impl fmt::Debug for DeviceShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.id)
    }
}

impl Device {
    pub(crate) fn of(shared: Arc<DeviceShared>) -> Self {
        Device(shared)
    }

    pub(crate) fn shared(&self) -> &Arc<DeviceShared> {
        &self.0
    }

    /// [`Runtime::best_device`] of the default runtime: `cuda:0`, or `cpu:0` and a warning where
    /// there is a driver that cannot be used.
    ///
    /// # Errors
    /// The errors of [`Runtime::default_runtime`] and of [`Runtime::best_device`].
    pub fn best() -> Result<Device> {
        Runtime::default_runtime()?.best_device()
    }

    /// A device of the default runtime by name: `cpu`, `cpu:1`, `cuda:0`. Never falls back to another.
    ///
    /// # Errors
    /// `InvalidName` if the text is no device name, `NoSuchDevice` if there is no such device, with what is missing.
    pub fn open(name: &str) -> Result<Device> {
        Runtime::default_runtime()?.device(name.parse()?)
    }

    /// [`Runtime::cuda_devices`] of the default runtime: none where there is no driver.
    ///
    /// # Errors
    /// The errors of [`Runtime::default_runtime`] and of [`Runtime::cuda_devices`].
    pub fn all_cuda() -> Result<Vec<Device>> {
        Runtime::default_runtime()?.cuda_devices()
    }

    /// Its name.
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// The number behind the colon.
    pub fn ordinal(&self) -> u32 {
        self.0.id.ordinal()
    }

    /// The stream that is current outside every scope.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` when the device takes no more work.
    pub fn default_stream(&self) -> Result<Stream> {
        let mut slot = self.0.default_stream.lock();
        if let Some(stream) = &*slot {
            return Ok(stream.clone());
        }
        let settings = Settings { label: Some("default".into()), ..Settings::default() };
        let stream = Stream::new(StreamCore::new(self.0.clone(), settings)?);
        Ok(slot.insert(stream).clone())
    }

    /// The random numbers that ops on this device draw unless they are given a generator. Seeded with 0.
    pub fn generator(&self) -> &Generator {
        &self.0.generator
    }

    /// A new stream.
    ///
    /// # Errors
    /// As [`StreamBuilder::build`].
    pub fn new_stream(&self) -> Result<Stream> {
        self.stream().build()
    }

    /// A new stream with a label, a priority or a limit.
    pub fn stream(&self) -> StreamBuilder {
        StreamBuilder { device: self.clone(), settings: Settings::default() }
    }

    /// A pool that leases at most `size` streams at a time.
    ///
    /// # Errors
    /// `InvalidArgument` if `size` is 0.
    pub fn stream_pool(&self, size: usize) -> Result<StreamPool> {
        StreamPool::new(self.clone(), size)
    }

    /// Allocates `len` elements on the current stream. Their contents are unspecified.
    ///
    /// # Errors
    /// As [`Stream::alloc`].
    #[track_caller]
    pub fn alloc<T: crate::Element>(&self, len: usize) -> Result<Buffer<T>> {
        Stream::current(self)?.alloc(len)
    }

    /// Allocates `len` elements on the current stream and zeroes them.
    ///
    /// # Errors
    /// As [`Stream::alloc_zeroed`].
    #[track_caller]
    pub fn alloc_zeroed<T: crate::Element>(&self, len: usize) -> Result<Buffer<T>> {
        Stream::current(self)?.alloc_zeroed(len)
    }

    /// Resolves when everything enqueued so far on every stream of this device is done.
    ///
    /// # Errors
    /// As [`Stream::synchronize`]; of several errors, the first.
    pub fn synchronize(&self) -> Pending<()> {
        if let Err(error) = reentry::may_ask(&"synchronize") {
            return Pending::refused(error);
        }
        let streams = self.0.runtime.streams();
        let parts = streams
            .iter()
            .filter(|core| Arc::ptr_eq(&core.device, &self.0))
            .map(StreamCore::synchronize)
            .collect();
        Pending::many(parts, ())
    }

    /// Device memory in use and held, and the peaks of both.
    pub fn memory_stats(&self) -> MemoryStats {
        self.0.memory.stats()
    }

    /// Pinned host memory in use and held, and the peaks of both.
    pub fn pinned_stats(&self) -> PinnedStats {
        self.0.pinned.stats()
    }

    /// Sets the peaks to what is in use and held now.
    pub fn reset_peak_memory_stats(&self) {
        self.0.memory.reset_peak();
    }

    /// Gives cached memory that nothing uses back to the system: how many bytes. Live buffers are not touched, so this does not
    /// raise what the program itself can use. May wait for what is on a CUDA device.
    ///
    /// There it also destroys the handles of libraries that no call uses, whose memory is not in
    /// that figure.
    pub fn empty_cache(&self) -> usize {
        let device = self.0.memory.empty_cache(|used| self.0.runtime.is_finished(used));
        device + self.0.pinned.empty()
    }

    /// Whether its ops run one at a time, when something pending is polled, as with `Schedule::Seeded`.
    ///
    /// What is built on top then uses no threads of its own either, so that a seed decides everything.
    pub fn runs_in_turns(&self) -> bool {
        self.0.runs_in_turns
    }

    /// Returns its name, its memory and its abilities.
    pub fn properties(&self) -> DeviceProperties {
        self.0.driver.properties()
    }

    /// Bytes of device memory that nobody has, this process or another; `None` if the driver does
    /// not know, as of the CPU device, or cannot be asked, as in a host function.
    ///
    /// What the device's allocator has cached is not among them: see [`memory_stats`](Self::memory_stats).
    pub fn free_bytes(&self) -> Option<usize> {
        self.0.driver.free_bytes()
    }

    /// A launch configuration that keeps the device busy with `elements` independent elements of `kernel`: blocks of the size
    /// that fills the multiprocessors best, as the driver's occupancy calculator has it, and no more of them than run at once.
    ///
    /// The kernel has to go on in steps of the whole grid, as those of `warpline::kernels` do. `shared_bytes` is the dynamic shared
    /// memory of each block. The first call for a kernel loads it.
    ///
    /// # On the CPU device
    /// As [`LaunchConfig::for_elements`], since a twin runs once.
    ///
    /// # Errors
    /// `Driver` if the kernel cannot be loaded.
    pub fn suggest_config(
        &self,
        kernel: &'static Kernel,
        elements: u64,
        shared_bytes: u32,
    ) -> Result<LaunchConfig> {
        reentry::may_ask(&"suggest_config")?;
        self.0
            .driver
            .suggest(kernel, elements, shared_bytes)
            .map_err(|error| self.0.refused(&"suggest_config", &error))
    }

    /// Loads kernels now. A kernel is loaded with its first launch otherwise, which takes milliseconds then, and on a GPU may
    /// wait until everything on the device is done. So do what libraries need that work for a kernel: with the products of
    /// `warpline-kernels` it finds cuBLAS and makes a handle, if the device has none that is free.
    ///
    /// # On the CPU device
    /// There is nothing to load; device code is compared with its declaration.
    ///
    /// # Errors
    /// The first that cannot be loaded; those before it are. `InvalidArgument` if its device code
    /// differs from its declaration, `Driver` if the driver refuses it.
    pub fn load(&self, kernels: impl IntoIterator<Item = &'static Kernel>) -> Result<()> {
        reentry::may_ask(&"load")?;
        kernels.into_iter().try_for_each(|kernel| {
            kernel.check_device_code()?;
            self.0.driver.load(kernel).map_err(|error| self.0.refused(&"load", &error))
        })
    }

    /// Why the device takes no more work, if it has failed.
    pub fn fault(&self) -> Option<Error> {
        self.0.health.fault().cloned()
    }

    /// Sizes of the runtime's own books, for tests and figures.
    #[doc(hidden)]
    pub fn bookkeeping(&self) -> Bookkeeping {
        let clocks = self.0.runtime.streams().iter().map(|core| core.clock_len()).collect::<Vec<_>>();
        Bookkeeping {
            live_streams: self.0.runtime.live_streams(),
            stream_slots: self.0.runtime.observed.slots_used(),
            clock_entries: clocks.iter().sum(),
            longest_clock: clocks.iter().copied().max().unwrap_or(0),
            memory_blocks: self.0.memory.blocks(),
            watched_timelines: self.0.health.watched(),
            driver_streams: self.0.driver.streams_kept(),
        }
    }
}

/// Sizes of the runtime's own books.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Bookkeeping {
    pub live_streams: usize,
    pub stream_slots: usize,
    /// Of both clocks of all live streams.
    pub clock_entries: usize,
    pub longest_clock: usize,
    /// Live and free ones.
    pub memory_blocks: usize,
    pub watched_timelines: usize,
    pub driver_streams: usize,
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.0.id)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.id.fmt(f)
    }
}
