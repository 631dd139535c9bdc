//! Devices, which own memory and streams.

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
    /// Returns its name.
    pub fn id(&self) -> DeviceId {
        self.shared().id
    }

    /// Returns the number after the colon.
    pub fn ordinal(&self) -> u32 {
        self.shared().id.ordinal()
    }

    /// Returns the stream that is current outside every scope.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` when the device accepts no more work.
    pub fn default_stream(&self) -> Result<Stream> {
        let mut slot = self.shared().default_stream.lock();
        if let Some(stream) = &*slot {
            return Ok(stream.clone());
        }
        let settings = Settings { label: Some("default".into()), ..Settings::default() };
        let stream = Stream::new(StreamCore::new(self.shared().clone(), settings)?);
        Ok(slot.insert(stream).clone())
    }

    /// Returns the generator for ops on this device that are not given another one. Seeded with 0.
    pub fn generator(&self) -> &Generator {
        &self.shared().generator
    }

    /// Makes a new stream.
    ///
    /// # Errors
    /// As [`StreamBuilder::build`].
    pub fn new_stream(&self) -> Result<Stream> {
        self.stream().build()
    }

    /// Returns a builder for a stream with a label, a priority or a limit.
    pub fn stream(&self) -> StreamBuilder {
        StreamBuilder { device: self.clone(), settings: Settings::default() }
    }

    /// Returns a pool that leases at most `size` streams at a time.
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

    /// Returns the device memory in use and held, and the peaks of both.
    pub fn memory_stats(&self) -> MemoryStats {
        self.shared().memory.stats()
    }

    /// Returns the pinned host memory in use and held, and the peaks of both.
    pub fn pinned_stats(&self) -> PinnedStats {
        self.shared().pinned.stats()
    }

    /// Resets the peaks to the memory in use and held now.
    pub fn reset_peak_memory_stats(&self) {
        self.shared().memory.reset_peak();
    }

    /// Returns unused cached memory to the system, and the number of bytes that was. Live buffers
    /// are not affected, so the program itself does not gain usable memory. May wait for work on a
    /// CUDA device.
    ///
    /// On a CUDA device it also destroys unused handles of libraries, whose memory does not count
    /// in that number.
    pub fn empty_cache(&self) -> usize {
        let device = self.shared().memory.empty_cache(|used| self.shared().runtime.is_finished(used));
        device + self.shared().pinned.empty()
    }

    /// Returns true if its ops run one at a time, when a `Pending` is polled, as with
    /// `Schedule::Seeded`.
    ///
    /// Libraries built on top should then use no threads of their own either, so that the seed
    /// determines everything.
    pub fn runs_in_turns(&self) -> bool {
        self.shared().runs_in_turns
    }

    /// Returns its name, its memory and its capabilities.
    pub fn properties(&self) -> DeviceProperties {
        self.shared().driver.properties()
    }

    /// Returns the bytes of device memory that no process uses. `None` if the driver does not know
    /// them, as for the CPU device, or cannot be called, as in a host function.
    ///
    /// Memory cached by the device's allocator is not included: see
    /// [`memory_stats`](Self::memory_stats).
    pub fn free_bytes(&self) -> Option<usize> {
        self.shared().driver.free_bytes()
    }

    /// Returns a launch configuration that keeps the device busy with `elements` independent
    /// elements of `kernel`. Its blocks have the size that fills the multiprocessors best, by the
    /// driver's occupancy calculator, and there are no more of them than can run at the same time.
    ///
    /// The kernel has to be a grid-stride loop, as those of `warpline::kernels` are. `shared_bytes`
    /// is the dynamic shared memory of each block. The first call for a kernel loads it.
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

    /// Loads kernels now. Otherwise the first launch of a kernel loads it, which takes milliseconds
    /// and on a GPU may wait until everything on the device is done. It also prepares the libraries
    /// that do a kernel's work: for the matrix products of `warpline-kernels` it loads cuBLAS and
    /// makes a handle, if the device has no free one.
    ///
    /// # On the CPU device
    /// There is nothing to load; device code is compared with its declaration.
    ///
    /// # Errors
    /// The error of the first kernel that cannot be loaded; the kernels before it are loaded.
    /// `InvalidArgument` if its device code differs from its declaration, `Driver` if the driver
    /// refuses it.
    pub fn load(&self, kernels: impl IntoIterator<Item = &'static Kernel>) -> Result<()> {
        reentry::may_ask(&"load")?;
        kernels.into_iter().try_for_each(|kernel| {
            check_device_code(kernel)?;
            self.shared().driver.load(kernel).map_err(|error| self.shared().refused(&"load", &error))
        })
    }

    /// Returns the error of the device, if it has failed.
    pub fn fault(&self) -> Option<Error> {
        self.shared().health.fault().cloned()
    }

    /// Returns the sizes of the runtime's own bookkeeping, for tests and figures.
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

/// The sizes of the runtime's own bookkeeping.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Bookkeeping {
    pub live_streams: usize,
    pub stream_slots: usize,
    /// The entries in both clocks of all live streams.
    pub clock_entries: usize,
    pub longest_clock: usize,
    /// The number of live and free blocks.
    pub memory_blocks: usize,
    pub watched_timelines: usize,
    pub driver_streams: usize,
}
