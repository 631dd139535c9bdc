//! The properties and builder of a stream, and its kernel launches and fills.

use super::At;
use crate::buffer::Buffer;
use crate::kernel::{AccessMode, KernelCall, LaunchConfig};
use crate::order::{Site, StreamId};
use crate::pending::Pending;
use crate::shared::stream::Settings;
use crate::shared::{Device, Effect, Request, Stream, StreamCore};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use tokio::sync::Semaphore;
use warpline_driver::internal::check_device_code;
use warpline_driver::timeline::Ticket;
use warpline_driver::{
    Command, DeviceId, DevicePtr, Element, Error, ErrorKind, Fill, Launch, Priority, RawHandle, Result,
};

impl Stream {
    /// Returns the device it belongs to.
    pub fn device(&self) -> Device {
        Device::of(self.core().device.clone())
    }

    /// Returns the id of this stream, which no other stream of the same runtime ever has. If two
    /// streams have the same label, errors add the device and the id.
    pub fn id(&self) -> StreamId {
        self.core().id
    }

    /// Warns if this stream is being captured, because the op `site` then draws the same random
    /// numbers at each launch. Once for each line.
    #[doc(hidden)]
    pub fn draws_random_numbers(&self, site: Site) {
        let core = self.core();
        if core.is_captured() && core.device.runtime.warns_first(site, site) {
            crate::report::random_numbers_are_captured(site, &core.label);
        }
    }

    /// Returns the name of this stream in errors and traces.
    pub fn label(&self) -> &str {
        &self.core().label
    }

    /// Returns the priority over other streams that have work to run.
    pub fn priority(&self) -> Priority {
        self.core().priority
    }

    /// Returns the newest ticket of this stream, which may not have finished yet.
    pub fn issued(&self) -> Ticket {
        self.core().issued()
    }

    /// Returns the newest ticket that has finished. This does not count as observing it (see
    /// [`Pending`]); [`query`](Self::query) does.
    pub fn completed(&self) -> Ticket {
        self.core().completed()
    }

    /// Returns the number of ops that were enqueued here and have not finished yet. Waits and
    /// events that took a ticket count as ops.
    ///
    /// This does not count as observing; [`query`](Self::query) does. The number may include ops
    /// that finish during the call. Each call makes the device report its progress, or run one op
    /// if it [runs in turns](Device::runs_in_turns), so a loop of calls sees the number fall. After
    /// a fault, ops that did not finish stay in the number.
    pub fn in_flight(&self) -> u64 {
        let core = self.core();
        let device = &core.device;
        let count = || {
            // Read in this order: a ticket is taken before it completes.
            let completed = core.completed();
            core.issued().saturating_sub(completed)
        };
        if count() == 0 {
            return 0;
        }
        if device.signalled {
            core.want_marker(core.issued());
            core.progress.timeline.ask();
        }
        device.runtime.turn();
        count()
    }

    /// Launches a kernel.
    ///
    /// # Errors
    /// In the `Pending`:
    /// - `InvalidArgument` if the kernel's device code differs from its declaration, or a GPU would
    ///   refuse the configuration;
    /// - `Shape` if a condition of the kernel's `where` does not hold, or an operand is strided;
    /// - `DeviceMismatch` if an operand is on another device;
    /// - `Overlap` if a written operand overlaps another one;
    /// - `Unordered` if an earlier use of an operand is not ordered before this op;
    /// - `Full` if the stream has as many ops in flight as it allows;
    /// - `Driver` if the driver refuses the launch, or the device cannot load the kernel;
    /// - `Closed`, `Fault` or `ShutDown` if the stream accepts no more work; `Reentrant` in a host
    ///   function.
    ///
    /// # On the CPU device
    /// If the kernel has a CPU form, that runs once, for any configuration. Otherwise the kernel's
    /// PTX runs, or its CUDA C++ if NVRTC is installed, with each thread of the configuration. This
    /// needs the feature `ptx`. For a kernel that has both, [`KernelForm`](crate::KernelForm)
    /// selects the CPU form (the default), the device code, or a comparison of the two.
    #[track_caller]
    #[inline]
    pub fn launch(&self, call: KernelCall<'_>, config: LaunchConfig) -> Pending<()> {
        self.launch_at(Site::here(&call.kernel.name), call, config)
    }

    /// Not a method of [`At`] alone: calling that would move the call once more.
    #[inline]
    fn launch_at(&self, site: Site, mut call: KernelCall<'_>, config: LaunchConfig) -> Pending<()> {
        if call.kernel.library.is_some() {
            return self.launch_with_library(site, call, config);
        }
        self.launch_call(site, &mut call, config, 0)
    }

    /// Operands and arguments are not moved until the driver takes them: they are large. `bytes`
    /// are those that the kernel touches, for traces; 0 means those of its operands.
    pub(super) fn launch_call(
        &self,
        site: Site,
        call: &mut KernelCall<'_>,
        config: LaunchConfig,
        bytes: u64,
    ) -> Pending<()> {
        let (core, kernel) = (self.core(), call.kernel);
        let effect = if kernel.in_place { Effect::InPlace } else { Effect::Apart };
        let mut request = Request::with_effect("kernel", site, &call.operands[..], effect);
        request.payload.bytes = bytes;
        let place = match refusal(call, config) {
            None => core.enqueue_inline(&mut request, |_| {
                let args = std::mem::take(&mut call.args);
                Command::Launch(Launch { kernel, config, args, extras: call.extras.take() })
            }),
            Some(error) => Err(core.refuse(&request, refused_call(core, site, kernel.name, &error))),
        };
        Pending::value(core, place, ())
    }

    /// Sets every element of `buffer` to `value`.
    ///
    /// # Errors
    /// The errors of [`launch`](Self::launch).
    #[track_caller]
    pub fn fill<T: Element>(&self, buffer: &Buffer<T>, value: T) -> Pending<()> {
        self.at(Site::here(&"fill")).fill(buffer, value)
    }
}

impl At<'_> {
    /// Does the same as [`Stream::launch`].
    #[inline]
    pub fn launch(self, call: KernelCall<'_>, config: LaunchConfig) -> Pending<()> {
        self.stream.launch_at(self.site, call, config)
    }

    /// Does the same as [`Stream::fill`].
    pub fn fill<T: Element>(self, buffer: &Buffer<T>, value: T) -> Pending<()> {
        let mut pattern = [0; 8];
        pattern[..size_of::<T>()].copy_from_slice(value.as_bytes());
        let (height, width_bytes, pitch) = buffer.runs();
        let (dst, pattern) = (DevicePtr(buffer.address()), u64::from_le_bytes(pattern));
        let fill = Fill { dst, pitch, width_bytes, height, pattern, pattern_bytes: size_of::<T>() as u8 };
        let operands = [buffer.operand(AccessMode::Write)];
        let core = self.stream.core();
        let place = core.enqueue(&mut Request::new("fill", self.site, &operands), |_| Command::Fill(fill));
        Pending::value(core, place, ())
    }
}

/// Returns the reason why a kernel call cannot be launched on any stream, if there is one.
#[inline(always)]
pub(super) fn refusal(call: &KernelCall<'_>, config: LaunchConfig) -> Option<Error> {
    match &call.failed {
        None => check_device_code(call.kernel).and_then(|()| config.check(call.kernel.name)).err(),
        Some(error) => Some(error.clone()),
    }
}

/// Returns the error of a call that is refused because of `why`.
#[cold]
pub(super) fn error(core: &StreamCore, site: Site, kind: ErrorKind, why: fmt::Arguments<'_>) -> Error {
    Error::new(kind, format!("{}: {why}", site.on(&core.label)))
}

/// Returns the error of a kernel call that was refused by itself, with the place of the launch.
#[cold]
fn refused_call(core: &StreamCore, site: Site, kernel: &str, refusal: &Error) -> Error {
    let text = refusal.to_string();
    let why = text.strip_prefix(kernel).unwrap_or(&text).trim_start_matches(": ");
    error(core, site, refusal.kind(), format_args!("{why}"))
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.core(), other.core())
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.core(), f)
    }
}

/// A builder for a [`Stream`] with a label, a priority or a limit.
#[must_use = "`build` makes the stream"]
pub struct StreamBuilder {
    pub(crate) device: Device,
    pub(crate) settings: Settings,
}

impl StreamBuilder {
    /// Sets the name in errors and traces. Streams without one are called `stream 1`, `stream 2`
    /// and so on, counted for each device.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.settings.label = Some(label.into());
        self
    }

    /// Sets the priority over other streams that have work to run.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.settings.priority = priority;
        self
    }

    /// Limits the stream to `ops` ops in flight. An op beyond the limit is refused as `Full`;
    /// [`Stream::room`] waits for room and reserves it.
    pub fn max_in_flight(mut self, ops: usize) -> Self {
        self.settings.max_in_flight = Some(ops.min(Semaphore::MAX_PERMITS));
        self
    }

    /// Uses another library's stream, a `CUstream`, instead of a new one.
    ///
    /// The runtime does not see the work that the other library enqueues there. That work has to be
    /// declared with [`Stream::external`], or must not touch memory of this runtime. With each op
    /// the runtime adds a marker to the stream: an 8-byte write to its own memory, or an event. It
    /// never destroys the stream and does not change its [`priority`](Self::priority). Two
    /// `Stream`s over one raw stream are two streams to the order check: add edges between them,
    /// which cost little.
    ///
    /// Default streams cannot be borrowed: neither the null stream, which is the default stream of
    /// cudarc and of PyTorch, nor the per-thread one. Use a stream that the other library has
    /// created.
    ///
    /// # While the owner captures it
    /// Ops, foreign work, gates and the stream's own waits are refused as `Captured`, since they
    /// would not run. The memory that they would have written counts as not written, as after any
    /// refusal. Work enqueued before the capture can be awaited, and other streams can wait for it.
    /// The owner's capture is not affected.
    ///
    /// # Blocking
    /// Work enqueued here is on the raw stream when the call returns. So a copy that finds no
    /// page-locked memory in the pool allocates some on the calling thread. That takes milliseconds
    /// and may wait for all work of the device. To fill the pool beforehand, take as many buffers
    /// as the copies need from [`Device::blocking_pinned`](crate::Device::blocking_pinned) and drop
    /// them.
    ///
    /// # Safety
    /// `stream` must be a live stream of this device's primary context. It must stay live until
    /// everything enqueued through the returned `Stream` and its clones has finished. No capture of
    /// it may begin while another thread enqueues through the returned `Stream`; polling and
    /// awaiting may continue.
    ///
    /// # On the CPU device
    /// There are no raw streams: [`build`](Self::build) is refused as `Unsupported`.
    ///
    /// # Errors
    /// From [`build`](Self::build): `InvalidArgument` for a default stream; `Driver` for a stream
    /// of another context.
    pub unsafe fn borrow_raw(mut self, stream: *mut c_void) -> Self {
        self.settings.borrowed = Some(RawHandle::new(stream));
        self
    }

    /// Builds the stream.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` when the device accepts no more work; `Driver` if the driver refuses;
    /// `InvalidArgument` if [`max_in_flight`](Self::max_in_flight) is 0; `Unsupported` or
    /// `InvalidArgument` as in [`borrow_raw`](Self::borrow_raw).
    pub fn build(self) -> Result<Stream> {
        let StreamBuilder { device, settings } = self;
        if settings.max_in_flight == Some(0) {
            let why = format!(
                "a stream of {device} cannot be built: max_in_flight is 0, and at least 1 is needed; omit \
                 the call to max_in_flight for a stream without a limit"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        if settings.borrowed.is_some() && matches!(device.id(), DeviceId::Cpu(_)) {
            let why = format!("borrow_raw: {device} has no raw streams; create a stream with new_stream");
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        // CU_STREAM_LEGACY and CU_STREAM_PER_THREAD of cuda.h.
        if let Some(number @ 0..=2) = settings.borrowed.map(|raw| raw.as_ptr() as usize) {
            let why = match number {
                2 => "the per-thread default stream is a different stream on each thread",
                _ => "the null stream synchronizes with every blocking stream",
            };
            let why = format!("borrow_raw: {why}; pass one made with cuStreamCreate");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(Stream::new(StreamCore::new(device.shared().clone(), settings)?))
    }
}
