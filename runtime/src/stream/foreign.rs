//! Work that other code enqueues on a stream, with its reads and writes declared.
//!
//! While the closure runs, its thread has the stream's turn. The turn is not the stream's lock,
//! since the closure is user code: the stream records which thread has the turn. Other threads that
//! enqueue wait for the turn to end. The same thread enqueuing again gets an error instead of a
//! deadlock. `poll` and `drop` are not affected.
//!
//! The accesses are checked, and the op takes its ticket, before the closure is called. On CUDA the
//! closure gets the raw stream and enqueues there. Nothing reports the stream's progress until the
//! turn ends with a marker. An event recorded in the meantime, also by another stream's wait for
//! this one, is placed before the work.
//!
//! On the CPU device foreign work is host functions, which the closure collects and which run as
//! one op. A gate keeps the op from running until the closure has returned: a timeline of its own,
//! waited for just before the op.

use crate::buffer::Buffer;
use crate::order::{AccessMode, Site};
use crate::pending::{Pending, Refusal};
use crate::shared::stream::wait_until_handed_over;
use crate::shared::{HostCode, Operand, Place, Request, Stream, StreamCore, Terms};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::Arc;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Timeline;
use warpline_driver::{
    Command, DeviceId, DriverError, DriverStream, Element, Error, HostFn, Point, RawHandle, Result,
};

/// The memory that work of other code accesses, from [`reads`] and [`writes`]. An argument of
/// [`Stream::external`].
#[must_use = "it does nothing until it is passed to `Stream::external`"]
pub struct Declared<'a>(Vec<Operand<'a>>);

impl<'a> Declared<'a> {
    fn new<T: Element>(buffers: impl IntoIterator<Item = &'a Buffer<T>>, mode: AccessMode) -> Self {
        let touch = |buffer: &'a Buffer<T>| buffer.operand(mode);
        Declared(buffers.into_iter().map(touch).collect())
    }

    /// Adds the buffers of `others`, which may have another element type.
    pub fn and(mut self, others: Declared<'a>) -> Self {
        self.0.extend(others.0);
        self
    }
}

/// Declares the buffers that work of other code reads, for [`Stream::external`].
pub fn reads<'a, T: Element>(buffers: impl IntoIterator<Item = &'a Buffer<T>>) -> Declared<'a> {
    Declared::new(buffers, AccessMode::Read)
}

/// Declares the buffers that work of other code writes, or reads and writes, for
/// [`Stream::external`].
pub fn writes<'a, T: Element>(buffers: impl IntoIterator<Item = &'a Buffer<T>>) -> Declared<'a> {
    Declared::new(buffers, AccessMode::ReadWrite)
}

impl Stream {
    /// Returns the refusal of a call that would have written memory, but failed before it became an
    /// op. `why` is the call's error, or the refusal of an operand. Ops that read the memory in
    /// `writes` fail, as after a refused op: see [`Pending`]. An error of the arguments has no such
    /// effect.
    #[cold]
    pub fn refuse_writes(&self, why: impl Into<Refusal>, writes: Declared<'_>) -> Refusal {
        why.into().or_on(self).map(|error| self.core().mark(&writes.0, error, false))
    }
}

type HostCall = Box<dyn FnOnce() + Send>;

/// The stream handle that [`Stream::external`] passes to its closure.
pub struct RawStream {
    device: DeviceId,
    site: Site,
    /// The functions to run, on the CPU device.
    calls: Vec<HostCall>,
    native: Option<Native>,
    failed: Option<DriverError>,
}

/// A stream of the driver that other code can enqueue on.
#[derive(Clone)]
struct Native {
    stream: Arc<dyn DriverStream>,
    handle: RawHandle,
}

impl RawStream {
    fn new(core: &StreamCore, site: Site, native: Option<Native>) -> Self {
        RawStream { device: core.device.id, site, calls: Vec::new(), native, failed: None }
    }

    /// Enqueues a host function. On the CPU device, the work of the closure consists of these. They
    /// take the place of kernels there and run on the workers: one that waits for another stream
    /// may keep that stream from running. [`Stream::call`](crate::Stream::call) has a thread of its
    /// own.
    pub fn call(&mut self, f: impl FnOnce() + Send + 'static) {
        match &mut self.native {
            None => self.calls.push(Box::new(f)),
            Some(native) => {
                if let Err(error) = native.stream.call_now(self.site, HostFn(Box::new(f))) {
                    self.failed.get_or_insert(error);
                }
            }
        }
    }

    /// Returns the `CUstream`, for functions of the driver and its libraries; `None` on the CPU
    /// device. The device's primary context is current on this thread while the closure runs.
    ///
    /// The handle is valid until the closure returns. After that the runtime may enqueue a marker
    /// on the stream at any time, or reuse it for another `Stream`.
    pub fn as_ptr(&self) -> Option<*mut c_void> {
        self.native.as_ref().map(|native| native.handle.as_ptr())
    }

    /// Returns the device of the stream. Its ordinal is the one that the driver and its libraries
    /// use.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Reports that some or all of the work could not be enqueued. The op's `Pending` resolves to a
    /// `Driver` error with this text. Ops that read the memory declared as written fail with it
    /// until that memory is overwritten. Work that was enqueued before still runs. If called
    /// several times, the first call counts.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.failed.get_or_insert_with(|| DriverError::Refused(why.into().into()));
    }
}

impl Stream {
    /// Lets other code enqueue work on this stream, as one op with the declared accesses. Such work
    /// is called *foreign work*.
    ///
    /// `f` has the stream's turn while it runs: other threads that enqueue here wait, and this
    /// thread is refused as `Reentrant` if it enqueues here. If the accesses are refused, `f` is
    /// not called. Report a failed call of the other code with [`RawStream::fail`].
    ///
    /// # Ordering
    /// The work is one op at the stream's end. An event that is recorded while `f` runs comes
    /// before the work. If another stream calls `wait_stream` on this one while `f` runs, that edge
    /// does not include the work. If an earlier copy on this stream waits for page-locked memory
    /// ([`Stream::copy_to_host`]), the call waits until that memory exists.
    ///
    /// # Cancel safety
    /// Dropping the `Pending` detaches the work. If `f` panics, the turn ends, the work it has
    /// enqueued runs, and the panic propagates.
    ///
    /// # On the CPU device
    /// [`RawStream::as_ptr`] is `None`. The work is the host functions that `f` enqueues with
    /// [`RawStream::call`], which access memory through [`Buffer::device_ptr`].
    ///
    /// # Safety
    /// The work that `f` enqueues must go onto this stream only. It may touch only device memory
    /// that is declared, and write only memory that is declared as written. It must be valid to run
    /// after `f` has returned.
    ///
    /// # Errors
    /// In the `Pending`: the errors of any op, as in [`launch`](Self::launch), and the error passed
    /// to [`RawStream::fail`]. `Captured` if `f` leaves the stream capturing: the stream then
    /// accepts no more work.
    ///
    /// # Examples
    /// On a GPU, call the driver's own functions through cudarc, or a library such as cuBLAS. On
    /// the CPU device, do the work by hand:
    /// ```
    /// # fn main() -> warpline::Result<()> {
    /// # let runtime = warpline::Runtime::builder().build()?;
    /// use warpline::{reads, writes};
    ///
    /// # let stream = runtime.device("cpu".parse()?)?.new_stream()?;
    /// let (x, y) = (stream.alloc::<f32>(4)?, stream.alloc::<f32>(4)?);
    /// drop(stream.write(&x, &[1.0, 2.0, 3.0, 4.0]));
    /// let (from, to) = (x.device_ptr().0, y.device_ptr().0);
    /// // SAFETY: the work is enqueued on this stream. It reads `x` and writes `y`,
    /// // as declared.
    /// let copied = unsafe {
    ///     stream.external(reads([&x]), writes([&y]), |raw| match raw.as_ptr() {
    ///         Some(_cu_stream) => {
    ///             // For instance, cuMemcpyDtoDAsync(to, from, 16, cu_stream).
    ///         }
    ///         None => raw.call(move || {
    ///             std::ptr::copy_nonoverlapping(from as *const f32, to as *mut f32, 4)
    ///         }),
    ///     })
    /// };
    /// copied.blocking_wait()?;
    /// assert_eq!(stream.read(&y).blocking_wait()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub unsafe fn external(
        &self,
        reads: Declared<'_>,
        writes: Declared<'_>,
        f: impl FnOnce(&mut RawStream),
    ) -> Pending<()> {
        let site = Site::here(&"external");
        let operands = reads.and(writes).0;
        let core = self.core();
        const WHY: &str = "the stream is being captured, and a capture cannot see what foreign \
            work enqueues; do it between launches";
        let begun = core.refuse_captured(site, WHY).and_then(|()| core.capture(site));
        let begun = begun.and_then(|_| Turn::begin(core, site));
        let begun = begun.map_err(|error| core.refuse_op(&operands, error.at(site), false));
        let place = begun.and_then(|turn| match turn.native.clone() {
            Some(native) => turn.enqueue_native(site, &operands, native, f),
            None => turn.enqueue(site, &operands, f),
        });
        Pending::value(core, place, ())
    }
}

/// A stream's turn, which this thread holds until it drops it.
struct Turn<'a> {
    core: &'a Arc<StreamCore>,
    gate: Arc<Timeline>,
    native: Option<Native>,
}

impl<'a> Turn<'a> {
    fn begin(core: &'a Arc<StreamCore>, site: Site) -> Result<Self> {
        let mut state = core.lock(site, false)?;
        while state.has_backlog() {
            drop(state);
            wait_until_handed_over(core, site)?;
            state = core.lock(site, false)?;
        }
        // Earlier work may be awaited during the turn, however long it lasts.
        if core.device.signalled {
            state.write_newest_marker();
        }
        state.foreign = Some(Box::default());
        let native = state.driver.raw().map(|handle| Native { stream: state.driver.clone(), handle });
        drop(state);
        Ok(Turn { core, gate: Arc::new(Timeline::new()), native })
    }

    fn enqueue_native(
        self,
        site: Site,
        operands: &[Operand<'_>],
        native: Native,
        f: impl FnOnce(&mut RawStream),
    ) -> Result<Place> {
        let current =
            native.stream.make_current().map_err(|error| self.refused(site, operands, &error, false))?;
        let mut request = Request::new("foreign", site, operands).on_terms(Terms::ForeignTurn(None));
        let place = self.core.enqueue(&mut request, |ticket| {
            self.core.note_host_code(HostCode::ForeignWork, site, ticket);
            Command::Foreign
        })?;
        self.core.device.runtime.host_code.added();
        let enqueuing = native.stream.foreign_begins(place.ticket, site);
        let mut raw = RawStream::new(self.core, site, Some(native));
        f(&mut raw);
        let ended = self.native.as_ref().map_or(Ok(()), |native| native.stream.foreign_ends());
        drop(enqueuing);
        drop(current);
        self.outcome(site, operands, raw.failed.or(ended.err()), place)
    }

    /// Returns the place of the work, or an error if some of it could not be enqueued.
    fn outcome(
        &self,
        site: Site,
        operands: &[Operand<'_>],
        failed: Option<DriverError>,
        place: Place,
    ) -> Result<Place> {
        match failed {
            // Some of the work may already be on the stream.
            Some(error) => Err(self.refused(site, operands, &error, true)),
            None => Ok(place),
        }
    }

    #[cold]
    fn refused(&self, site: Site, operands: &[Operand<'_>], error: &DriverError, everybodys: bool) -> Error {
        let error = self.core.refused(site, error).at(site);
        self.core.refuse_op(operands, error, everybodys)
    }

    fn enqueue(self, site: Site, operands: &[Operand<'_>], f: impl FnOnce(&mut RawStream)) -> Result<Place> {
        let gate = Point { timeline: self.gate.clone(), ticket: 1, event: None };
        let mut request = Request::new("call", site, operands).on_terms(Terms::ForeignTurn(Some(gate)));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let run = calls.clone();
        let place = self.core.enqueue(&mut request, |ticket| {
            self.core.note_host_code(HostCode::ForeignWork, site, ticket);
            Command::HostWork(HostFn(Box::new(move || {
                let calls: Vec<HostCall> = std::mem::take(&mut *run.lock());
                calls.into_iter().for_each(|call| call());
            })))
        })?;
        self.core.device.runtime.host_code.added();
        let mut raw = RawStream::new(self.core, site, None);
        f(&mut raw);
        *calls.lock() = raw.calls;
        self.outcome(site, operands, raw.failed, place)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.foreign = None;
        if self.native.is_some() {
            state.write_newest_marker();
        }
        drop(state);
        self.core.device.foreign_turns.end();
        self.gate.complete(1);
    }
}
