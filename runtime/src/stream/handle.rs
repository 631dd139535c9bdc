//! The handle users hold, and what can be put on a stream besides copies and waits.

use crate::buffer::Buffer;
use crate::kernel::{AccessMode, KernelCall, LaunchConfig};
use crate::order::{Site, StreamId};
use crate::pending::Pending;
use crate::shared::stream::Settings;
use crate::shared::{Device, Op, Stream, StreamCore};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use tokio::sync::Semaphore;
use warpline_driver::internal::check_device_code;
use warpline_driver::timeline::Ticket;
use warpline_driver::{
    Command, DeviceId, Element, Error, ErrorKind, Fill, Launch, Priority, RawHandle, Result,
};

impl Stream {
    /// The device it belongs to.
    pub fn device(&self) -> Device {
        Device::of(self.core().device.clone())
    }

    /// Its identity: never used for another stream of the same runtime. Errors add it, as its
    /// `Debug` has it, where two streams have the same label.
    pub fn id(&self) -> StreamId {
        self.core().id
    }

    /// The name in errors and traces.
    pub fn label(&self) -> &str {
        &self.core().label
    }

    /// How urgently its work is picked.
    pub fn priority(&self) -> Priority {
        self.core().priority
    }

    /// The last ticket taken.
    pub fn issued(&self) -> Ticket {
        self.core().issued()
    }

    /// The newest ticket that is done. Looking at it is not observing: use [`query`](Self::query) for that.
    pub fn completed(&self) -> Ticket {
        self.core().completed()
    }

    /// Returns how many ops were enqueued here and are not done yet. Waits and events that took a
    /// ticket count as ops.
    ///
    /// Looking at it is not observing: use [`query`](Self::query) for that. It may be too high by
    /// what is done meanwhile, and it falls if it is asked again and again: the call has the device
    /// report its progress, or run an op where it [runs in turns](Device::runs_in_turns). What is
    /// in flight on a device that fails stays in flight.
    pub fn in_flight(&self) -> u64 {
        let core = self.core();
        let device = &core.device;
        let count = || {
            // In this order: a ticket is taken before it completes.
            let completed = core.completed();
            core.issued().saturating_sub(completed)
        };
        if count() == 0 {
            return 0;
        }
        if device.signalled {
            core.want_marker(core.issued());
            core.timeline.ask();
        }
        if device.runs_in_turns {
            device.driver.turn();
        }
        count()
    }

    /// Launches a kernel.
    ///
    /// # Errors
    /// In the `Pending`: the kernel's device code differs from its declaration, what its `where`
    /// demands does not hold, an operand is on another device or strided, operands overlap, an
    /// earlier use is not ordered before this one, the device has failed.
    ///
    /// # On the CPU device
    /// The kernel's twin runs once, whatever the configuration says.
    #[track_caller]
    #[inline]
    pub fn launch(&self, mut call: KernelCall<'_>, config: LaunchConfig) -> Pending<()> {
        self.launch_call(Site::here(&call.kernel.name), &mut call, config)
    }

    #[inline]
    pub(super) fn launch_at(
        &self,
        site: Site,
        mut call: KernelCall<'_>,
        config: LaunchConfig,
    ) -> Pending<()> {
        self.launch_call(site, &mut call, config)
    }

    /// Operands and arguments stay where they are until the driver takes them: they are large.
    #[inline]
    fn launch_call(&self, site: Site, call: &mut KernelCall<'_>, config: LaunchConfig) -> Pending<()> {
        let kernel = call.kernel;
        let refused = match &call.failed {
            None => check_device_code(kernel).and_then(|()| config.check(kernel.name)).err(),
            Some(error) => Some(error.clone()),
        }
        .map(|error| self.core().refused_call(site, kernel.name, &error));
        if kernel.library.is_some() {
            return self.launch_with_library(site, call, config, refused);
        }
        let mut op = Op::new("kernel", site, &call.operands[..]);
        (op.in_place, op.refused) = (kernel.in_place, refused);
        let place = self.core().enqueue(&mut op, |_| {
            let args = std::mem::take(&mut call.args);
            Command::Launch(Launch { kernel, config, args, workspace: None })
        });
        Pending::value(self.core(), place, ())
    }

    /// Sets every element to `value`.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    #[track_caller]
    pub fn fill<T: Element>(&self, buffer: &Buffer<T>, value: T) -> Pending<()> {
        self.fill_at(Site::here(&"fill"), buffer, value)
    }

    pub(super) fn fill_at<T: Element>(&self, site: Site, buffer: &Buffer<T>, value: T) -> Pending<()> {
        let mut pattern = [0; 8];
        pattern[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        let (height, width_bytes, pitch) = buffer.runs();
        let fill = Fill {
            dst: warpline_driver::DevicePtr(buffer.address()),
            pitch,
            width_bytes,
            height,
            pattern: u64::from_le_bytes(pattern),
            pattern_bytes: size_of::<T>() as u8,
        };
        let operands = [buffer.operand(AccessMode::Write)];
        let place = self.core().enqueue(&mut Op::new("fill", site, &operands), |_| Command::Fill(fill));
        Pending::value(self.core(), place, ())
    }
}

impl StreamCore {
    /// The refusal of a kernel call by itself, with the place it was launched from.
    #[cold]
    fn refused_call(&self, site: Site, kernel: &str, error: &Error) -> Error {
        let text = error.to_string();
        let why = text.strip_prefix(kernel).unwrap_or(&text).trim_start_matches(": ");
        Error::new(error.kind(), format!("{}: {why}", site.on(&self.label)))
    }
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

/// Makes a stream with a label, a priority or a limit.
#[must_use = "`build` makes the stream"]
pub struct StreamBuilder {
    pub(crate) device: Device,
    pub(crate) settings: Settings,
}

impl StreamBuilder {
    /// The name in errors and traces. Streams without one are `stream 1`, `stream 2` and on,
    /// counted for each device.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.settings.label = Some(label.into());
        self
    }

    /// How urgently its work is picked when several streams could run.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.settings.priority = priority;
        self
    }

    /// At most `ops` in flight: [`Stream::room`] hands out permits, and an op beyond them is refused as `Full`.
    pub fn max_in_flight(mut self, ops: usize) -> Self {
        self.settings.max_in_flight = Some(ops.min(Semaphore::MAX_PERMITS));
        self
    }

    /// Works on another library's stream, a `CUstream`, instead of one of ours.
    ///
    /// What that library enqueues there is not known here: it has to be declared as
    /// [`Stream::external`] does, or to touch no memory of ours. The stream gets a marker with each
    /// op, an 8-byte write to a word of ours or an event. It is never destroyed here, and its
    /// [`priority`](Self::priority) stays what it is. Two `Stream`s over one raw stream are two
    /// streams to the order check: state edges between them, which cost little.
    ///
    /// Default streams are not borrowed: neither the null stream, which cudarc's `default_stream`
    /// and PyTorch's are, nor the per-thread one. Have the other library make a stream.
    ///
    /// # While the owner captures it
    /// What is put on the stream is refused as `Captured`, since it would not run: ops, foreign
    /// work, gates, and its own waits. Its memory counts as not written, as after any refusal. What
    /// was enqueued before the capture can be awaited, and other streams can wait for it. The
    /// owner's capture stays as it is.
    ///
    /// # Blocking
    /// What is called on the stream is on the raw stream when the call returns. So a copy that
    /// finds no page-locked memory makes some on the calling thread, which takes milliseconds and
    /// may wait for all work of the device.
    /// [`Device::blocking_pinned`](crate::Device::blocking_pinned) for as many buffers as copies
    /// need, dropped again, fills the pool before.
    ///
    /// # Safety
    /// `stream` is a live stream of this device's primary context, and stays so until everything
    /// that was enqueued through the returned `Stream` and its clones is over. No capture of it
    /// begins while another thread enqueues through the returned `Stream`; polling and awaiting may
    /// go on.
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

    /// The stream.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` when the device takes no more work; `Driver` if the driver refuses;
    /// `InvalidArgument` if [`max_in_flight`](Self::max_in_flight) is 0; `Unsupported` or
    /// `InvalidArgument` of [`borrow_raw`](Self::borrow_raw).
    pub fn build(self) -> Result<Stream> {
        if self.settings.max_in_flight == Some(0) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a stream of {} cannot be built: max_in_flight is 0, and at least 1 is needed; do not call max_in_flight \
                     for a stream without a limit",
                    self.device
                ),
            ));
        }
        if self.settings.borrowed.is_some() && matches!(self.device.id(), DeviceId::Cpu(_)) {
            return Err(Error::new(
                crate::ErrorKind::Unsupported,
                format!(
                    "borrow_raw: {} has no raw streams; make one of its own with new_stream",
                    self.device
                ),
            ));
        }
        // CU_STREAM_LEGACY and CU_STREAM_PER_THREAD of cuda.h.
        if let Some(number @ 0..=2) = self.settings.borrowed.map(|raw| raw.as_ptr() as usize) {
            let why = match number {
                2 => "the per-thread default stream is another one on each thread",
                _ => "the null stream is in order with every stream that blocks",
            };
            return Err(Error::new(
                crate::ErrorKind::InvalidArgument,
                format!("borrow_raw: {why}; pass one made with cuStreamCreate"),
            ));
        }
        Ok(Stream::new(StreamCore::new(self.device.shared().clone(), self.settings)?))
    }
}
