//! Devices: where memory and streams belong.

mod pinned;

use crate::generator::Generator;
use crate::shared::{Device, Stream, StreamCore};
use warpline_driver::internal::check_device_code;
use warpline_driver::{DeviceId, DeviceProperties, Error, Result, reentry};

use crate::buffer::Buffer;
use crate::kernel::{Kernel, LaunchConfig};
use crate::memory::{MemoryStats, PinnedStats};
use crate::pending::Pending;
use crate::shared::stream::Settings;
use crate::stream::{StreamBuilder, StreamPool};
use std::sync::Arc;

impl Device {
    /// Its name.
    pub fn id(&self) -> DeviceId {
        self.shared().id
    }

    /// The number behind the colon.
    pub fn ordinal(&self) -> u32 {
        self.shared().id.ordinal()
    }

    /// The stream that is current outside every scope.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` when the device takes no more work.
    pub fn default_stream(&self) -> Result<Stream> {
        let mut slot = self.shared().default_stream.lock();
        if let Some(stream) = &*slot {
            return Ok(stream.clone());
        }
        let settings = Settings { label: Some("default".into()), ..Settings::default() };
        let stream = Stream::new(StreamCore::new(self.shared().clone(), settings)?);
        Ok(slot.insert(stream).clone())
    }

    /// The random numbers that ops on this device draw unless they are given a generator. Seeded with 0.
    pub fn generator(&self) -> &Generator {
        &self.shared().generator
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
        let streams = self.shared().runtime.streams();
        let parts = streams
            .iter()
            .filter(|core| Arc::ptr_eq(&core.device, self.shared()))
            .map(StreamCore::synchronize)
            .collect();
        Pending::many(parts, ())
    }

    /// Device memory in use and held, and the peaks of both.
    pub fn memory_stats(&self) -> MemoryStats {
        self.shared().memory.stats()
    }

    /// Pinned host memory in use and held, and the peaks of both.
    pub fn pinned_stats(&self) -> PinnedStats {
        self.shared().pinned.stats()
    }

    /// Sets the peaks to what is in use and held now.
    pub fn reset_peak_memory_stats(&self) {
        self.shared().memory.reset_peak();
    }

    /// Gives cached memory that nothing uses back to the system: how many bytes. Live buffers are not touched, so this does not
    /// raise what the program itself can use. May wait for what is on a CUDA device.
    ///
    /// There it also destroys the handles of libraries that no call uses, whose memory is not in
    /// that figure.
    pub fn empty_cache(&self) -> usize {
        let device = self.shared().memory.empty_cache(|used| self.shared().runtime.is_finished(used));
        device + self.shared().pinned.empty()
    }

    /// Whether its ops run one at a time, when something pending is polled, as with `Schedule::Seeded`.
    ///
    /// What is built on top then uses no threads of its own either, so that a seed decides everything.
    pub fn runs_in_turns(&self) -> bool {
        self.shared().runs_in_turns
    }

    /// Returns its name, its memory and its abilities.
    pub fn properties(&self) -> DeviceProperties {
        self.shared().driver.properties()
    }

    /// Bytes of device memory that nobody has, this process or another; `None` if the driver does
    /// not know, as of the CPU device, or cannot be asked, as in a host function.
    ///
    /// What the device's allocator has cached is not among them: see [`memory_stats`](Self::memory_stats).
    pub fn free_bytes(&self) -> Option<usize> {
        self.shared().driver.free_bytes()
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
        self.shared()
            .driver
            .suggest(kernel, elements, shared_bytes)
            .map_err(|error| self.shared().refused(&"suggest_config", &error))
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
            check_device_code(kernel)?;
            self.shared().driver.load(kernel).map_err(|error| self.shared().refused(&"load", &error))
        })
    }

    /// Why the device takes no more work, if it has failed.
    pub fn fault(&self) -> Option<Error> {
        self.shared().health.fault().cloned()
    }

    /// Sizes of the runtime's own books, for tests and figures.
    #[doc(hidden)]
    pub fn bookkeeping(&self) -> Bookkeeping {
        let clocks = self.shared().runtime.streams().iter().map(|core| core.clock_len()).collect::<Vec<_>>();
        Bookkeeping {
            live_streams: self.shared().runtime.live_streams(),
            stream_slots: self.shared().runtime.observed.slots_used(),
            clock_entries: clocks.iter().sum(),
            longest_clock: clocks.iter().copied().max().unwrap_or(0),
            memory_blocks: self.shared().memory.blocks(),
            watched_timelines: self.shared().health.watched(),
            driver_streams: self.shared().driver.streams_kept(),
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
