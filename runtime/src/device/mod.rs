//! Devices, which own memory and streams.

mod budget;
mod pinned;
mod pinned_room;

pub use pinned_room::PinnedRoom;

use crate::generator::Generator;
use crate::shared::{Device, OpStats, Stream, StreamCore};
use warpline_driver::internal::check_device_code;
use warpline_driver::{DeviceId, DeviceProperties, Error, ErrorKind, Result, reentry};

use crate::buffer::Buffer;
use crate::health::{HealthState, HealthWatch};
use crate::kernel::{Kernel, LaunchConfig};
use crate::memory::{MemorySnapshot, MemoryStats, PinnedStats};
use crate::pending::Pending;
use crate::shared::stream::Settings;
use crate::stream::{StreamBuilder, StreamPool, synchronize};
use std::sync::Arc;

impl Device {
    /// Returns the id of this device, such as `cpu:0`.
    pub fn id(&self) -> DeviceId {
        self.shared().id
    }

    /// Returns the number of this device in its backend: 1 for `cpu:1`.
    pub fn ordinal(&self) -> u32 {
        self.shared().id.ordinal()
    }

    /// Returns another device of the same runtime, like
    /// [`Runtime::device`](crate::Runtime::device).
    ///
    /// # Errors
    /// The errors of `Runtime::device`; `ShutDown` if the runtime was dropped.
    pub fn sibling(&self, id: DeviceId) -> Result<Device> {
        self.shared().runtime.device(id).unwrap_or_else(|| {
            let text = format!(
                "{id} cannot be opened: the runtime of {self} was dropped; keep the Runtime alive while \
                 its devices are used"
            );
            Err(Error::new(ErrorKind::ShutDown, text))
        })
    }

    /// Returns true if this device reaches the memory of `other` directly, as GPUs that are
    /// connected can. Between CPU devices it is true, between backends false.
    ///
    /// Copies give the same bytes in any case. The runtime enables the access with the first copy
    /// between the two; without it, the driver copies through host memory.
    ///
    /// # Errors
    /// `Driver` if the driver cannot tell; `Reentrant` in a host function; `Fault` or `ShutDown`
    /// when the device accepts no more work.
    pub fn can_access_peer(&self, other: &Device) -> Result<bool> {
        let (here, there) = (self.shared(), other.shared());
        reentry::may_ask(&"can_access_peer")?;
        here.ensure_open()?;
        if here.id == there.id || here.id.backend() != there.id.backend() {
            return Ok(here.id == there.id);
        }
        let answer = here.driver.can_access_peer(there.id);
        answer.map_err(|error| here.refused(&"can_access_peer", &error))
    }

    /// Returns the current CUDA device of this device's runtime: the device of the innermost scope
    /// on a CUDA device of that runtime, or `cuda:0` outside of such scopes.
    ///
    /// # Errors
    /// The errors of [`sibling`](Self::sibling).
    pub fn current_cuda(&self) -> Result<Device> {
        let current = crate::scope::cuda_device(&self.shared().runtime);
        current.map_or_else(|| self.sibling(DeviceId::Cuda(0)), Ok)
    }

    /// Returns the default stream, which is current outside every `enter` and `scope`. It is
    /// created on first use.
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

    /// Returns the generator that random ops on this device use if they are not given another one.
    /// Its seed is 0 at first.
    pub fn generator(&self) -> &Generator {
        &self.shared().generator
    }

    /// Makes a new stream.
    ///
    /// # Errors
    /// Returns the errors of [`StreamBuilder::build`].
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
    /// Returns the errors of [`Stream::alloc`].
    #[track_caller]
    pub fn alloc<T: crate::Element>(&self, len: usize) -> Result<Buffer<T>> {
        Stream::current(self)?.alloc(len)
    }

    /// Allocates `len` elements on the current stream and zeroes them.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::alloc_zeroed`].
    #[track_caller]
    pub fn alloc_zeroed<T: crate::Element>(&self, len: usize) -> Result<Buffer<T>> {
        Stream::current(self)?.alloc_zeroed(len)
    }

    /// Resolves when everything enqueued so far on every stream of this device has finished.
    ///
    /// # Errors
    /// In the `Pending`, as [`Stream::synchronize`]: one unseen error of one stream, of which each
    /// stream keeps the first 64. Synchronize again until that succeeds to get the others. `Fault`
    /// if the device has failed, also if its streams are gone: work may be lost. `Panicked` also if
    /// the stream of the host function is gone. A stream that is closed drops its other errors.
    pub fn synchronize(&self) -> Pending<()> {
        if let Err(error) = reentry::may_ask(&"synchronize") {
            return Pending::refused(error);
        }
        let streams = self.shared().runtime.streams();
        let parts =
            streams.iter().filter(|core| Arc::ptr_eq(&core.device, self.shared())).map(synchronize).collect();
        let device = self.shared().clone();
        Pending::many_checked(parts, (), move || {
            device.confirm_nothing_is_lost()?;
            device.confirm_no_closed_panics()
        })
    }

    /// Returns statistics of the device memory: bytes in use and reserved, the peaks of both, and
    /// more. If the device has failed, they say that its memory is lost. In the child of a fork
    /// they say so too, and are all zero.
    pub fn memory_stats(&self) -> MemoryStats {
        if warpline_driver::process::is_forked() {
            return MemoryStats { is_lost: true, ..MemoryStats::default() };
        }
        let is_lost = self.fault().is_some();
        MemoryStats { is_lost, ..self.shared().memory.stats() }
    }

    /// Returns statistics of the pinned host memory: bytes in use and reserved, and the peaks of
    /// both. In the child of a fork they are all zero.
    pub fn pinned_stats(&self) -> PinnedStats {
        if warpline_driver::process::is_forked() {
            return PinnedStats::default();
        }
        let device = self.shared();
        let reserve_bytes = device.pinned_reserve.stats().reserved_bytes;
        PinnedStats { reserve_bytes, ..device.pinned.stats() }
    }

    /// Returns statistics of the ops on this device: how many were enqueued, are in flight and
    /// were refused. In the child of a fork they are empty.
    ///
    /// The call looks at each stream of the runtime, and takes no stream's lock.
    pub fn op_stats(&self) -> OpStats {
        if warpline_driver::process::is_forked() {
            return OpStats::default();
        }
        let device = self.shared();
        device.tally.stats(|| {
            let (mut accepted, mut in_flight) = (0, 0);
            for core in device.runtime.streams().iter().filter(|core| Arc::ptr_eq(&core.device, device)) {
                let issued = core.issued();
                accepted += issued;
                // Ops of a failed device never end.
                if core.fault().is_none() {
                    in_flight += issued.saturating_sub(core.completed());
                }
            }
            (accepted, in_flight)
        })
    }

    /// Returns the segments and blocks of the device memory, with the state of each block and the
    /// source line that allocated it, and the statistics of the same moment.
    ///
    /// The call examines every block, and allocations on this device wait meanwhile. It neither
    /// waits for the device nor calls the driver. In the child of a fork the snapshot is empty.
    ///
    /// # Examples
    /// With the feature `serde` the snapshot becomes JSON, for example with the crate `serde_json`:
    ///
    #[cfg_attr(feature = "serde", doc = "```")]
    #[cfg_attr(not(feature = "serde"), doc = "```ignore")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = warpline::Runtime::builder().build()?;
    /// # let device = runtime.device("cpu".parse()?)?;
    /// let weights = device.alloc::<f32>(1000)?;
    /// let snapshot = device.memory_snapshot();
    /// assert_eq!(snapshot.segments[0].blocks[0].len_bytes, 4096);
    /// let json = serde_json::to_string_pretty(&snapshot)?;
    /// assert!(json.contains(r#""state": "live""#));
    /// # drop(weights);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_snapshot(&self) -> MemorySnapshot {
        let device = self.shared();
        let (stats, segments, waiters) = if warpline_driver::process::is_forked() {
            Default::default()
        } else {
            device.memory.snapshot(|used| device.runtime.is_finished(used))
        };
        let stats = MemoryStats { is_lost: self.fault().is_some(), ..stats };
        let is_forked = warpline_driver::process::is_forked();
        let pinned_waiters = if is_forked { None } else { device.pinned.waiters() };
        let pinned = self.pinned_stats();
        let [waiters, budget_waiters] = waiters;
        let outside_bytes = if is_forked { 0 } else { device.memory.bytes_outside() };
        let device = device.id;
        MemorySnapshot {
            device,
            stats,
            pinned,
            pinned_waiters,
            segments,
            waiters,
            budget_waiters,
            outside_bytes,
        }
    }

    /// Returns true if a tensor is copied also to the device that it is on
    /// (`RuntimeBuilder::to_copies`).
    #[doc(hidden)]
    pub fn to_copies(&self) -> bool {
        self.shared().runtime.to_copies
    }

    /// Returns a table of the device memory as text: bytes allocated and reserved with their peaks,
    /// the largest free block, pinned memory, the blocks by state, and the lines that hold the
    /// most.
    ///
    /// It shows a [`memory_snapshot`](Self::memory_snapshot), at the same cost. The text is for
    /// people and may change; programs use the snapshot or
    /// [`memory_stats`](Self::memory_stats).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> warpline::Result<()> {
    /// # let runtime = warpline::Runtime::builder().build()?;
    /// # let device = runtime.device("cpu".parse()?)?;
    /// let weights = device.alloc::<f32>(1 << 20)?;
    /// let summary = device.memory_summary();
    /// let head = "\
    /// memory of cpu:0                 now       peak
    /// allocated                   4.0 MiB    4.0 MiB
    /// reserved                    4.0 MiB    4.0 MiB
    /// ";
    /// assert!(summary.starts_with(head), "{summary}");
    /// # drop(weights);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_summary(&self) -> String {
        self.memory_snapshot().to_string()
    }

    /// Resets the peaks of [`memory_stats`](Self::memory_stats) to the present values. Those of
    /// [`pinned_stats`](Self::pinned_stats) are never reset.
    #[doc(alias("reset_max_memory_allocated", "reset_max_memory_cached"))]
    pub fn reset_peak_memory_stats(&self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        self.shared().memory.reset_peak();
    }

    /// Releases unused cached memory, device and pinned, to the system, and returns its size in
    /// bytes. Memory that the driver has refused to free by then does not count: `memory_stats` and
    /// `pinned_stats` have it as `not_freed_bytes`. While a gate is closed, the driver is asked
    /// later.
    ///
    /// Live buffers are not affected, so the program itself does not gain usable memory. On a CUDA
    /// device the call may wait for work of the device.
    ///
    /// The call also destroys unused library handles of a CUDA device. Their memory is not part of
    /// the returned size.
    pub fn empty_cache(&self) -> usize {
        if warpline_driver::process::is_forked() {
            return 0;
        }
        let device = self.shared().memory.empty_cache(|used| self.shared().runtime.is_finished(used));
        device + self.shared().pinned.empty() + self.shared().pinned_reserve.empty()
    }

    /// Returns true if ops of this device run only when a `Pending` is polled, one at a time, as
    /// with `Schedule::Seeded`.
    ///
    /// A library built on Warpline should then use no threads of its own, so that the seed alone
    /// determines a run.
    pub fn runs_in_turns(&self) -> bool {
        self.shared().runs_in_turns
    }

    /// Returns the name, the memory size and the capabilities of this device.
    pub fn properties(&self) -> DeviceProperties {
        self.shared().driver.properties()
    }

    /// Returns the free device memory in bytes, which no process uses. Returns `None` if the driver
    /// does not know it, as for the CPU device, or cannot be called, as in a host function.
    ///
    /// Memory cached by the device's allocator is not included: see
    /// [`memory_stats`](Self::memory_stats).
    pub fn free_bytes(&self) -> Option<usize> {
        self.shared().driver.free_bytes()
    }

    /// Returns a launch configuration that keeps the device busy with `elements` independent
    /// elements of `kernel`. The block size is the one with the highest occupancy, by the driver's
    /// occupancy calculator. There are no more blocks than can run at the same time.
    ///
    /// The kernel has to be a grid-stride loop, like the kernels of `warpline::kernels`.
    /// `shared_bytes` is the dynamic shared memory of each block. The first call for a kernel loads
    /// it.
    ///
    /// # On the CPU device
    /// Nothing is loaded. Returns [`LaunchConfig::for_elements`] with `shared_bytes`.
    ///
    /// # Errors
    /// `Driver` if the kernel cannot be loaded; `Reentrant` in a host function.
    pub fn suggest_config(
        &self,
        kernel: &'static Kernel,
        elements: u64,
        shared_bytes: u32,
    ) -> Result<LaunchConfig> {
        reentry::may_ask(&"suggest_config")?;
        let config = self.shared().driver.suggest(kernel, elements, shared_bytes);
        config.map_err(|error| self.shared().refused(&"suggest_config", &error))
    }

    /// Loads kernels now. Otherwise the first launch of a kernel loads it, which takes milliseconds
    /// and on a GPU may wait until all work of the device has finished.
    ///
    /// It also prepares libraries that replace a kernel's device code. For the matrix products of
    /// `warpline::kernels` it loads cuBLAS, and creates a handle if the device has no free one.
    ///
    /// # On the CPU device
    /// The device code of kernels that run it there is loaded, and CUDA C++ compiled. That of the
    /// other kernels is only compared with the declaration. So the call makes the first launch fast
    /// here too, and finds device code that cannot be loaded.
    ///
    /// # Errors
    /// The error of the first kernel that cannot be loaded; the kernels before it are loaded.
    /// `InvalidArgument` if its device code differs from its declaration; `Driver` if the driver
    /// refuses it; `Reentrant` in a host function.
    pub fn load(&self, kernels: impl IntoIterator<Item = &'static Kernel>) -> Result<()> {
        reentry::may_ask(&"load")?;
        kernels.into_iter().try_for_each(|kernel| {
            check_device_code(kernel)?;
            self.shared().driver.load(kernel).map_err(|error| self.shared().refused(&"load", &error))
        })
    }

    /// Returns the state of this device: whether it accepts work, and if not, why. In the child of
    /// a fork it is failing.
    ///
    /// The answer costs no call of the driver. A failure of work that nobody awaits is known within
    /// a second: while a GPU has unfinished work, a thread of Warpline asks the driver twice a
    /// second whether the device has failed.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> warpline::Result<()> {
    /// # let runtime = warpline::Runtime::builder().build()?;
    /// # let device = runtime.device("cpu".parse()?)?;
    /// let answer = match device.health() {
    ///     HealthState::Ready => (200, "ready".to_owned()),
    ///     HealthState::Failing(fault) => (500, fault.to_string()),
    ///     _ => (503, "shutting down".to_owned()),
    /// };
    /// assert_eq!(answer, (200, "ready".to_owned()));
    /// # Ok(())
    /// # }
    /// # use warpline::HealthState;
    /// ```
    pub fn health(&self) -> HealthState {
        self.shared().reported.state()
    }

    /// Returns a watch on [`health`](Self::health), for a task that waits for a change. It works on
    /// every executor.
    ///
    /// # Examples
    /// ```
    /// # async fn withdraw() {}
    /// /// Takes the service out of rotation when its device fails.
    /// async fn guard(device: &warpline::Device) {
    ///     let state = device.watch_health().unready().await;
    ///     tracing::error!(?state, "the device takes no more work");
    ///     withdraw().await;
    /// }
    /// ```
    pub fn watch_health(&self) -> HealthWatch {
        self.shared().reported.watch()
    }

    /// Returns the error that the device failed with, if it has failed. In the child of a fork it
    /// is an error of kind `Forked`.
    pub fn fault(&self) -> Option<Error> {
        if warpline_driver::process::is_forked() {
            return Some(warpline_driver::process::forked());
        }
        self.shared().health.fault().cloned()
    }

    /// Returns true if this device has failed for as long as the process lives, so that no other
    /// runtime of it can use the device: only a new process can. A GPU that has run into an illegal
    /// address is such a device. Returns false if it works, and also if it has failed in this
    /// runtime alone, as a CPU device whose kernel has panicked. In the child of a fork it is true.
    pub fn needs_new_process(&self) -> bool {
        warpline_driver::process::is_forked() || self.shared().driver.is_lost_to_process()
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
