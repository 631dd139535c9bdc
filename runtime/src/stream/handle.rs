//! The handle users hold, and what can be put on a stream besides copies and waits.

use super::core::{Settings, StreamCore};
use super::enqueue::{Op, Touch};
use crate::device::{Device, DeviceId};
use crate::driver::{Command, Fill, HostFn, Launch, Priority, RawHandle};
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::{AccessMode, KernelCall, LaunchConfig};
use crate::memory::{Allocation, Buffer};
use crate::order::{StreamId, Use};
use crate::pending::Pending;
use crate::site::Site;
use crate::timeline::Ticket;
use parking_lot::Mutex;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// A stream: a linear sequence of work on one device. A cheap handle; all clones are the same stream.
///
/// Calling a method puts work at the stream's end at once. Work of one stream runs in that order; between streams there is
/// no order but what [`wait_stream`](Self::wait_stream), [`wait_event`](Self::wait_event) and
/// [`wait_for`](Self::wait_for) state, or what the host has observed by awaiting.
///
/// When the last handle is gone the stream closes; what was put on it still runs.
#[derive(Clone)]
pub struct Stream {
    /// Also in `_closing`, which would be one more line to fetch for each op.
    core: Arc<StreamCore>,
    _closing: Arc<Closing>,
}

/// Closes the stream when the last handle is dropped.
struct Closing(Arc<StreamCore>);

impl Drop for Closing {
    fn drop(&mut self) {
        let core = self.0.clone();
        crate::offload::run_where_it_may_block(move || core.close());
    }
}

impl Stream {
    pub(crate) fn new(core: Arc<StreamCore>) -> Self {
        Stream { _closing: Arc::new(Closing(core.clone())), core }
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }

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

    /// Allocates `len` elements in the order of this stream. Their contents are unspecified.
    ///
    /// # Ordering
    /// The memory may have been freed by an op that is still ahead on this stream. Another stream that wants to use it first
    /// needs an edge from this one.
    ///
    /// # Errors
    /// `OutOfMemory`, with the numbers and the largest holders; `Fault` or `ShutDown` when the device takes no more work.
    #[track_caller]
    #[inline]
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        self.alloc_at(Site::here(&"alloc"), len)
    }

    /// As [`alloc`](Self::alloc), under the name and line in `site`: for ops that allocate what they return.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[inline]
    pub fn alloc_at<T: Element>(&self, site: Site, len: usize) -> Result<Buffer<T>> {
        let Some(len_bytes) = len.checked_mul(size_of::<T>()) else {
            return Err(self.core().too_long(site, len, size_of::<T>()));
        };
        Ok(Buffer::new(self.core().alloc(site, len_bytes)?, len))
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

    /// As [`launch`](Self::launch), under the name and line in `site`: for ops that are not called as their kernel.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    #[inline]
    pub fn launch_at(&self, site: Site, mut call: KernelCall<'_>, config: LaunchConfig) -> Pending<()> {
        self.launch_call(site, &mut call, config)
    }

    /// Operands and arguments stay where they are until the driver takes them: they are large.
    #[inline]
    fn launch_call(&self, site: Site, call: &mut KernelCall<'_>, config: LaunchConfig) -> Pending<()> {
        let kernel = call.kernel;
        let mut op = Op::new("kernel", site, &call.operands[..]);
        op.in_place = kernel.in_place;
        op.refused = match &call.failed {
            None => kernel.check_device_code().and_then(|()| config.check(kernel.name)).err(),
            Some(error) => Some(error.clone()),
        }
        .map(|error| self.core().refused_call(op.site, kernel.name, &error));
        let place = self.core().enqueue(&mut op, || {
            Command::Launch(Launch { kernel, config, args: std::mem::take(&mut call.args) })
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

    /// As [`fill`](Self::fill), under the name and line in `site`: for ops that fill.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn fill_at<T: Element>(&self, site: Site, buffer: &Buffer<T>, value: T) -> Pending<()> {
        let mut pattern = [0; 8];
        pattern[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        let (height, width_bytes, pitch) = buffer.runs();
        let fill = Fill {
            dst: crate::driver::DevicePtr(buffer.address()),
            pitch,
            width_bytes,
            height,
            pattern: u64::from_le_bytes(pattern),
            pattern_bytes: size_of::<T>() as u8,
        };
        let touches =
            [Touch { allocation: buffer.allocation(), range: buffer.range(), mode: AccessMode::Write }];
        let place = self.core().enqueue(&mut Op::new("fill", site, &touches), || Command::Fill(fill));
        Pending::value(self.core(), place, ())
    }

    /// Calls `f` in stream order: after everything enqueued before, before everything enqueued after.
    ///
    /// It runs on a thread of the driver and holds up what is behind it on this stream, and may hold up host functions of other
    /// streams. It must not wait for work of the same device. It may drop streams, buffers and `Pending`s. A panic in it is a
    /// fault of the device.
    ///
    /// On a CUDA device it cannot enqueue, allocate or page-lock: the driver does not take calls from there, and they are refused
    /// as `Driver`. Send what follows to a task instead, or await this and enqueue it then.
    /// Asking a stream where it stands (`query`, `synchronize`, `record_event`) may wait for who enqueues there: not from here.
    ///
    /// # Cancel safety
    /// Dropping the `Pending` drops the result; `f` is called all the same.
    #[track_caller]
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> Pending<R> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let place = self.core().enqueue_plain("call", Site::here(&"call"), || {
            Command::Call(HostFn(Box::new(move || {
                let value = f();
                *slot.lock() = Some(value);
            })))
        });
        Pending::later(self.core(), place, move || {
            Ok(result.lock().take().expect("a host function whose ticket is reached has returned"))
        })
    }
}

impl StreamCore {
    fn alloc(self: &Arc<Self>, site: Site, len_bytes: usize) -> Result<Arc<Allocation>> {
        self.ensure_open(site)?;
        if self.is_captured()
            && let Some(capture) = self.capture(site)?
        {
            return capture.alloc(self, site, len_bytes);
        }
        let memory = &self.device.memory;
        let grant = memory.alloc(len_bytes, self.id, &**self, site).map_err(|error| {
            // What refused the memory may have shown that the device has failed.
            match error.kind() {
                ErrorKind::Driver => self.device.ensure_open().err().unwrap_or(error),
                _ => error,
            }
        });
        let grant = grant.map_err(|error| self.unserved(site, error))?;
        let ticket = match grant.wait {
            None => self.allocation_ticket(site),
            Some(used) => self.wait_for_block(site, used),
        };
        let ticket = ticket.inspect_err(|_| memory.free(grant.block, &[]))?;
        let used = Use { stream: self.id, ticket };
        Ok(Allocation::new(self.device.clone(), &grant, len_bytes, used, site))
    }

    #[cold]
    fn too_long(&self, site: Site, len: usize, element_bytes: usize) -> Error {
        let why =
            format!("{len} elements of {element_bytes} bytes are more than can be addressed; allocate fewer");
        Error::new(ErrorKind::OutOfMemory, format!("{}: {why}", site.on(&self.label)))
    }

    /// The refusal of an op that got no memory, with its place. That of a device that takes no more
    /// work stays as it is.
    #[cold]
    pub(crate) fn unserved(&self, site: Site, error: Error) -> Error {
        match error.kind() {
            ErrorKind::OutOfMemory | ErrorKind::Driver => {
                Error::new(error.kind(), format!("{}: {error}", site.on(&self.label)))
            }
            _ => error,
        }
    }

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
        self.settings.max_in_flight = Some(ops.max(1));
        self
    }

    /// Works on somebody else's stream instead of one of ours: a `CUstream` of another library.
    ///
    /// What that library enqueues there is not known here: it has to be declared as [`Stream::external`] does, or to touch no
    /// memory of ours.
    ///
    /// # Safety
    /// `stream` is a live stream of this device's primary context, and stays so until everything that was enqueued through the
    /// returned `Stream` and its clones is over.
    ///
    /// The stream gets markers besides, each an 8-byte write to a word of ours, and is not destroyed. [`priority`](Self::priority)
    /// is its maker's. Two `Stream`s over one raw stream are two streams to the order check: state edges between them, which cost
    /// nothing much.
    ///
    /// # On the CPU device
    /// There are no raw streams: [`build`](Self::build) is refused as `Unsupported`. The null stream is refused as
    /// `InvalidArgument`: it would wait for every stream that others made to block.
    pub unsafe fn borrow_raw(mut self, stream: *mut c_void) -> Self {
        self.settings.borrowed = Some(RawHandle::new(stream));
        self
    }

    /// The stream.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` when the device takes no more work; `Driver` if the driver refuses; `Unsupported` or
    /// `InvalidArgument` of [`borrow_raw`](Self::borrow_raw).
    pub fn build(self) -> Result<Stream> {
        if self.settings.borrowed.is_some() && !matches!(self.device.id(), DeviceId::Cuda(_)) {
            return Err(Error::new(
                crate::ErrorKind::Unsupported,
                format!(
                    "borrow_raw: {} has no raw streams; make one of its own with new_stream",
                    self.device
                ),
            ));
        }
        if self.settings.borrowed.is_some_and(|raw| raw.as_ptr().is_null()) {
            return Err(Error::new(
                crate::ErrorKind::InvalidArgument,
                "borrow_raw: the null stream is in order with every stream that blocks; pass one made with cuStreamCreate",
            ));
        }
        Ok(Stream::new(StreamCore::new(self.device.shared().clone(), self.settings)?))
    }
}
