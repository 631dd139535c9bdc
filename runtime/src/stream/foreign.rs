//! Work that others put on a stream, declared by what it reads and writes.
//!
//! The turn is not the stream's lock, since the closure is user code: the stream notes which thread has the turn, others that
//! want to enqueue wait for it to end, and the same thread coming back is an error instead of a deadlock. `poll` and
//! `drop` are not concerned.
//!
//! The accesses are checked, and the op takes its ticket, before the closure is called. On CUDA the closure gets the raw stream and
//! enqueues there; until the turn ends nothing says how far the stream is, and it ends with a marker. An event that is recorded
//! meanwhile, also by another stream's wait for this one, stands before the work. On the CPU device foreign work is host functions, collected by the closure and run as one op; a gate (a timeline of its own, waited for just before the
//! op) keeps the op from running until the closure has returned.

use crate::buffer::Buffer;
use crate::order::{AccessMode, Site};
use crate::pending::{Pending, Refusal};
use crate::shared::{Op, Operand, Place, Stream, StreamCore};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::Arc;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Timeline;
use warpline_driver::{
    Command, DeviceId, DriverError, DriverStream, Element, Error, HostFn, Point, RawHandle, Result,
};

/// What foreign work touches, by [`reads`] and [`writes`].
pub struct Declared<'a>(Vec<Operand<'a>>);

impl<'a> Declared<'a> {
    fn new<T: Element>(buffers: impl IntoIterator<Item = &'a Buffer<T>>, mode: AccessMode) -> Self {
        let touch = |buffer: &'a Buffer<T>| buffer.operand(mode);
        Declared(buffers.into_iter().map(touch).collect())
    }

    /// These and those, for operands of another element type.
    pub fn and(mut self, others: Declared<'a>) -> Self {
        self.0.extend(others.0);
        self
    }
}

/// What foreign work reads.
pub fn reads<'a, T: Element>(buffers: impl IntoIterator<Item = &'a Buffer<T>>) -> Declared<'a> {
    Declared::new(buffers, AccessMode::Read)
}

/// What foreign work writes, or reads and writes.
pub fn writes<'a, T: Element>(buffers: impl IntoIterator<Item = &'a Buffer<T>>) -> Declared<'a> {
    Declared::new(buffers, AccessMode::ReadWrite)
}

impl Stream {
    /// The refusal of a call before it became an op, where it would have written: unless it is an
    /// error of the arguments, it marks that memory as a refused op does. `why` may be the refusal
    /// of an operand.
    #[cold]
    pub fn refuse_writes(&self, why: impl Into<Refusal>, writes: Declared<'_>) -> Refusal {
        why.into().or_on(self).map(|error| self.core().mark(&writes.0, error, false))
    }
}

type HostCall = Box<dyn FnOnce() + Send>;

/// The stream as foreign work sees it: what [`Stream::external`] hands to its closure.
pub struct RawStream {
    device: DeviceId,
    site: Site,
    /// On the CPU device, what to run.
    calls: Vec<HostCall>,
    native: Option<Native>,
    failed: Option<DriverError>,
}

/// A stream that others can enqueue on.
#[derive(Clone)]
struct Native {
    stream: Arc<dyn DriverStream>,
    handle: RawHandle,
}

impl RawStream {
    fn new(core: &StreamCore, site: Site, native: Option<Native>) -> Self {
        RawStream { device: core.device.id, site, calls: Vec::new(), native, failed: None }
    }

    /// Enqueues a host function. On the CPU device, foreign work is that.
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

    /// The `CUstream`, for the driver's and its libraries' own functions; `None` on the CPU device. The device's primary context
    /// is current on this thread while the closure runs.
    ///
    /// It is good until the closure returns: afterwards the stream may get a marker at any time, or be another's.
    pub fn as_ptr(&self) -> Option<*mut c_void> {
        self.native.as_ref().map(|native| native.handle.as_ptr())
    }

    /// The device it is on: its number is that of the driver and its libraries.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Says that the work could not be enqueued, or not all of it: the op's `Pending` resolves to a `Driver` error with this text,
    /// and what reads the memory that was declared as written fails with it until it is overwritten. What was enqueued before
    /// runs all the same. Of several, the first counts.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.failed.get_or_insert_with(|| DriverError::Refused(why.into()));
    }
}

impl Stream {
    /// Lets other code enqueue work on this stream, as one op with the declared accesses.
    ///
    /// `f` has the stream's turn while it runs: other threads that enqueue here wait, and this thread enqueuing here is
    /// refused as `Reentrant`. If the accesses are refused, `f` is not called. Calls of the other code that fail are reported with
    /// [`RawStream::fail`].
    ///
    /// # Ordering
    /// The work is one op at the stream's end. An event recorded while `f` runs, and a wait for
    /// this stream called then, stand before it. Where a copy before it waits for page-locked
    /// memory ([`Stream::copy_to_host`]), the call waits for that.
    ///
    /// # Cancel safety
    /// Dropping the `Pending` detaches the work. If `f` panics the turn ends, what it has enqueued runs, and the panic goes on.
    ///
    /// # On the CPU device
    /// [`RawStream::as_ptr`] is `None`; the work is the host functions that `f` enqueues with [`RawStream::call`], which touch
    /// memory by [`Buffer::device_ptr`].
    ///
    /// # Safety
    /// The work that `f` enqueues goes onto this stream only, touches no device memory but what is declared, writes only what
    /// is declared as written, and is valid to run after `f` has returned.
    ///
    /// # Errors
    /// In the `Pending`: as for any op, and what [`RawStream::fail`] was told. `Captured` if `f`
    /// leaves the stream capturing: the stream takes nothing more.
    ///
    /// # Examples
    /// On a GPU, with the driver's own functions through cudarc or with a library such as cuBLAS; on the CPU device by hand:
    /// ```
    /// # fn main() -> warpline_runtime::Result<()> {
    /// # let runtime = warpline_runtime::Runtime::builder().build()?;
    /// use warpline_runtime::{reads, writes};
    ///
    /// # let stream = runtime.device("cpu".parse()?)?.new_stream()?;
    /// let (x, y) = (stream.alloc::<f32>(4)?, stream.alloc::<f32>(4)?);
    /// drop(stream.write(&x, &[1.0, 2.0, 3.0, 4.0]));
    /// let (from, to) = (x.device_ptr().0, y.device_ptr().0);
    /// // SAFETY: the work is enqueued on this stream, reads `x` and writes `y`, as declared.
    /// let copied = unsafe {
    ///     stream.external(reads([&x]), writes([&y]), |raw| match raw.as_ptr() {
    ///         Some(_cu_stream) => { /* cuMemcpyDtoDAsync(to, from, 16, cu_stream), say */ }
    ///         None => raw.call(move || std::ptr::copy_nonoverlapping(from as *const f32, to as *mut f32, 4)),
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
        const WHY: &str = "the stream is being captured, and nobody knows what foreign work enqueues; do it between launches";
        let begun = core.refuse_captured(site, WHY).and_then(|()| core.capture(site));
        let begun = begun.map_err(|error| core.mark(&operands, error.at(site), false));
        let place = begun.and_then(|_| Turn::begin(core, site)).and_then(|turn| match turn.native.clone() {
            Some(native) => turn.enqueue_native(site, &operands, native, f),
            None => turn.enqueue(site, &operands, f),
        });
        Pending::value(core, place, ())
    }
}

/// A stream's turn, held by this thread until it is dropped.
struct Turn<'a> {
    core: &'a Arc<StreamCore>,
    gate: Arc<Timeline>,
    native: Option<Native>,
}

impl<'a> Turn<'a> {
    fn begin(core: &'a Arc<StreamCore>, site: Site) -> Result<Self> {
        let mut state = core.lock(site, false)?;
        while state.held.is_some() {
            drop(state);
            core.wait_until_handed_over(site)?;
            state = core.lock(site, false)?;
        }
        // What is there already may be awaited while the turn goes on, however long it does.
        if core.device.signalled {
            state.mark_newest();
        }
        state.foreign = Some(std::thread::current().id());
        let native = state.raw.raw().map(|handle| Native { stream: state.raw.clone(), handle });
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
        let mut op = Op { turn: true, ..Op::new("foreign", site, operands) };
        let place = self.core.enqueue(&mut op, |_| Command::Foreign)?;
        let enqueuing = native.stream.foreign_begins(place.ticket, site);
        let mut raw = RawStream::new(self.core, site, Some(native));
        f(&mut raw);
        let ended = self.native.as_ref().map_or(Ok(()), |native| native.stream.foreign_ends());
        drop(enqueuing);
        drop(current);
        self.outcome(site, operands, raw.failed.or(ended.err()), place)
    }

    /// The place of the work, unless some of it could not be enqueued.
    fn outcome(
        &self,
        site: Site,
        operands: &[Operand<'_>],
        failed: Option<DriverError>,
        place: Place,
    ) -> Result<Place> {
        match failed {
            // Some of it may be on the stream.
            Some(error) => Err(self.refused(site, operands, &error, true)),
            None => Ok(place),
        }
    }

    #[cold]
    fn refused(&self, site: Site, operands: &[Operand<'_>], error: &DriverError, everybodys: bool) -> Error {
        let error = self.core.refused(site, error).at(site);
        self.core.mark(operands, error, everybodys)
    }

    fn enqueue(self, site: Site, operands: &[Operand<'_>], f: impl FnOnce(&mut RawStream)) -> Result<Place> {
        let gate = Point { timeline: self.gate.clone(), ticket: 1, event: None };
        let mut op = Op { turn: true, gate: Some(gate), ..Op::new("call", site, operands) };
        let calls = Arc::new(Mutex::new(Vec::new()));
        let run = calls.clone();
        let place = self.core.enqueue(&mut op, |_| {
            Command::Call(HostFn(Box::new(move || {
                let calls: Vec<HostCall> = std::mem::take(&mut *run.lock());
                calls.into_iter().for_each(|call| call());
            })))
        })?;
        let mut raw = RawStream::new(self.core, site, None);
        f(&mut raw);
        *calls.lock() = raw.calls;
        self.outcome(site, operands, raw.failed, place)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        (state.foreign, state.foreign_from) = (None, 0);
        if self.native.is_some() {
            state.mark_newest();
        }
        drop(state);
        self.core.device.foreign_turns.end();
        self.gate.complete(1);
    }
}
