//! The error type, whose message states what failed, the actual and the expected value, and a
//! remedy.

use crate::failure::DriverFailure;
use crate::out_of_memory::OutOfMemory;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use std::any::Any;
use std::fmt;
use std::sync::OnceLock;
use warpline_order::{Conflict, Mark, Site};

/// The result of a call that can be refused or fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of failure of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An op conflicts with an earlier use of the same memory that is not ordered before it.
    Unordered,
    /// A written operand overlaps another operand of the same op.
    Overlap,
    /// Lengths or shapes do not fit, or a condition of a kernel's `where` does not hold.
    Shape,
    /// Element types do not fit.
    DTypeMismatch,
    /// Operands, stream or event belong to different devices.
    DeviceMismatch,
    /// The device's memory or the pool of pinned memory has no room.
    OutOfMemory,
    /// There is no device of that name or ordinal.
    NoSuchDevice,
    /// The text is not a device name.
    InvalidName,
    /// The call does not accept the value of an argument.
    InvalidArgument,
    /// The stream has as many ops in flight as it allows, and the op came without a permit.
    Full,
    /// The lease of the stream has ended, or the tokio runtime that read ahead for a loader was
    /// shut down.
    Closed,
    /// A callback made a call that is not allowed there, because the call might wait for the
    /// callback. Examples are a host function or a kernel's CPU form that enqueued, allocated or
    /// waited, and a waker that blocked. A `blocking_*` call in a task is another, if the runtime
    /// refuses those. Another is the closure of `Stream::external` that enqueued
    /// an op on that same stream.
    Reentrant,
    /// The call cannot be part of a graph, or the stream is being captured elsewhere, or the work
    /// was captured and there is nothing to await.
    Captured,
    /// The driver refused this call; the device is still usable.
    Driver,
    /// A host function panicked, or the work is ordered after one that panicked.
    Panicked,
    /// The device failed and accepts no more work in its runtime. A CPU device works again in a new
    /// `Runtime`. A CUDA device whose context was destroyed does not work again in this process.
    Fault,
    /// The runtime was shut down, before the call or before its op could run.
    ShutDown,
    /// The process is the child of a fork, in which devices do not work.
    Forked,
    /// This device or build does not support the call.
    Unsupported,
    /// A dataset, or a file with the state of a module, cannot be read or does not hold the
    /// expected data.
    Data,
}

/// The reason why a call was refused or an op failed. Cheap to clone: all calls that fail for
/// the same reason share it.
#[derive(Clone)]
pub struct Error {
    cause: Arc<Cause>,
    /// The part that belongs to the one refused call. Other ops may share the cause.
    own: Option<Arc<Mutex<Own>>>,
}

/// The part of an error that belongs to one refused call.
#[derive(Default)]
struct Own {
    /// Host memory that is handed back.
    given: Option<Given>,
    /// Values that are notified when the program looks at the error: the marks on bytes that its
    /// call would have written, or the panic that the error reports.
    unseen: Vec<std::sync::Arc<dyn Unseen>>,
}

/// A value that was passed to a refused call. The type that put it in recovers it.
pub type Given = Box<dyn Any + Send>;

/// A state that lasts until the program has looked at an error.
pub trait Unseen: Send + Sync {
    /// Ends the state, because the program has looked at the error.
    fn see(&self);
}

struct Cause {
    kind: ErrorKind,
    message: String,
    conflicts: Vec<Conflict>,
    /// The refusal that this error comes from.
    origin: Option<Error>,
    /// The failure that a driver reported.
    failure: OnceLock<DriverFailure>,
    /// The details of a refused allocation of device memory.
    out_of_memory: OnceLock<Box<OutOfMemory>>,
    site: OnceLock<Site>,
    seen: AtomicBool,
}

impl Error {
    /// Creates an error, for code built on Warpline such as a dataset or an op.
    ///
    /// The message should state what failed, the actual and the expected value, and a remedy, in
    /// lower case and without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::with_conflicts(kind, message, Vec::new())
    }

    /// Returns the first error of those that this one comes from.
    fn origin(&self) -> &Error {
        self.cause.origin.as_ref().unwrap_or(self)
    }

    fn of(kind: ErrorKind, message: String, conflicts: Vec<Conflict>, origin: Option<Error>) -> Self {
        let cause = Cause {
            kind,
            message,
            conflicts,
            origin,
            failure: OnceLock::new(),
            out_of_memory: OnceLock::new(),
            site: OnceLock::new(),
            seen: AtomicBool::new(false),
        };
        Error { cause: Arc::new(cause), own: None }
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind
    }

    /// Returns every earlier use that the refused op is not ordered after; empty unless the kind is
    /// `Unordered`.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.cause.conflicts
    }

    /// Returns the details of a refused allocation of device memory: its size, the limit that it
    /// met, the memory in use, and the lines that hold the most. Returns `None` if device memory
    /// was not what was missing.
    ///
    /// Some errors of the kind `OutOfMemory` have no such details: those of pinned memory, and
    /// those of memory that the driver needs for itself.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        self.origin().cause.out_of_memory.get().map(|details| &**details)
    }

    /// Returns the number of the CUDA error that caused this one, a `CUresult`: 700 is
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`. Returns `None` if no call of the CUDA driver caused it, and
    /// for an error that cuBLAS or NVRTC reported. An error of the kind `OutOfMemory` has no
    /// number; its message gives the sizes, and so does [`out_of_memory`](Self::out_of_memory).
    ///
    /// The driver's own message is in the chain of [`source`](std::error::Error::source).
    pub fn cuda_code(&self) -> Option<u32> {
        self.origin().cause.failure.get().and_then(DriverFailure::code)
    }

    /// Returns true if this error was caused by the error of an earlier op. The earlier error is
    /// then the [`source`](std::error::Error::source) of this one. The op would have read bytes
    /// that the refused earlier op did not write, or it is ordered after a host function that
    /// panicked.
    ///
    /// Awaiting an op that fails with an inherited error does not clear the earlier error. Further
    /// ops inherit it until the earlier op's `Pending` is awaited, a `synchronize` returns the
    /// earlier error, the memory is overwritten, or its contents are accepted
    /// (`Buffer::accept_contents`).
    pub fn is_inherited(&self) -> bool {
        self.cause.origin.is_some()
    }

    /// Returns the refused op and the source line that called it, or `None` if the error does not
    /// belong to one op.
    pub fn site(&self) -> Option<Site> {
        self.cause.site.get().copied()
    }

    /// Returns the vector that was passed to the refused `Device::pin` or `Stream::write_vec`.
    /// Returns `None` if there was none, if it was taken before, or if it holds another element
    /// type.
    pub fn into_vec<T: crate::Element>(self) -> Option<Vec<T>> {
        self.hand_back(|given| given.downcast().map(|elements| *elements))
    }
}

impl Unseen for Mark {
    fn see(&self) {
        Mark::see(self);
    }
}

/// Returns true if a write that was refused for this reason leaves a mark. Argument errors leave
/// none: the call could never have worked, and the memory has its earlier contents.
pub fn leaves_a_mark(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Unordered | ErrorKind::OutOfMemory | ErrorKind::Full | ErrorKind::Driver => true,
        // The owner of a borrowed stream captures it. A step of Warpline's own captures never gets
        // here.
        ErrorKind::Captured => true,
        ErrorKind::Overlap
        | ErrorKind::Shape
        | ErrorKind::DTypeMismatch
        | ErrorKind::DeviceMismatch
        | ErrorKind::NoSuchDevice
        | ErrorKind::InvalidName
        | ErrorKind::InvalidArgument
        | ErrorKind::Unsupported
        | ErrorKind::Panicked
        | ErrorKind::Data => false,
        // The call came from code whose calls the stream refuses.
        ErrorKind::Reentrant => false,
        // Nothing runs after these on the same stream or device.
        ErrorKind::Closed | ErrorKind::Fault | ErrorKind::ShutDown | ErrorKind::Forked => false,
    }
}

/// Internals of an error, for the crates of Warpline.
pub trait ErrorParts: Sized {
    /// Returns the error with the failure that a driver reported as its source.
    fn caused_by(self, failure: DriverFailure) -> Self;

    /// Returns the error with the details of a refused allocation.
    fn with_out_of_memory(self, details: OutOfMemory) -> Self;

    /// Returns the error with the source and the details that `other` has.
    fn caused_like(self, other: &Error) -> Self;

    /// Creates the error of an op that is not ordered after these uses.
    fn with_conflicts(kind: ErrorKind, message: impl Into<String>, conflicts: Vec<Conflict>) -> Self;

    /// Creates the error of an op that would have read bytes which an earlier op was not allowed to
    /// write. `ends_when_seen`: true if the program may read them once it has seen that op's error.
    fn inherited(op: &dyn fmt::Display, earlier: &Error, ends_when_seen: bool) -> Self;

    /// Creates an error that comes from an earlier one.
    fn following(earlier: &Error, message: String) -> Self;

    /// Passes the value that the call was given to `take`, and returns the result. The value stays
    /// in the error if `take` returns it as an `Err`.
    fn hand_back<R>(self, take: impl FnOnce(Given) -> Result<R, Given>) -> Option<R>;

    /// Returns the error with a value that was passed to its call inside.
    fn with(self, given: Given) -> Self;

    /// Takes the value out, for an error that no caller received: nothing would hand it back.
    fn take_given(&self) -> Option<Given>;

    /// Returns the error with a state that ends when the program looks at the error.
    fn ending(self, unseen: std::sync::Arc<dyn Unseen>) -> Self;

    /// Returns the error without the part that belongs to its call, for another call that fails
    /// with it.
    fn without_own(&self) -> Self;

    /// Notes which op was refused, unless this is the error of a device, which many ops share.
    fn at(self, site: Site) -> Self;

    /// Notes that the program has looked at the error of this call.
    fn set_seen(&self);

    /// Returns true if the program has looked at the error.
    fn is_seen(&self) -> bool;
}

impl ErrorParts for Error {
    fn caused_by(self, failure: DriverFailure) -> Self {
        let _ = self.cause.failure.set(failure);
        self
    }

    fn with_out_of_memory(self, details: OutOfMemory) -> Self {
        let _ = self.cause.out_of_memory.set(Box::new(details));
        self
    }

    fn caused_like(self, other: &Error) -> Self {
        if let Some(details) = other.cause.out_of_memory.get() {
            let _ = self.cause.out_of_memory.set(details.clone());
        }
        match other.cause.failure.get() {
            Some(failure) => self.caused_by(failure.clone()),
            None => self,
        }
    }

    fn with_conflicts(kind: ErrorKind, message: impl Into<String>, conflicts: Vec<Conflict>) -> Self {
        Self::of(kind, message.into(), conflicts, None)
    }

    fn inherited(op: &dyn fmt::Display, earlier: &Error, ends_when_seen: bool) -> Self {
        let origin = earlier.origin();
        let look = match ends_when_seen {
            true => {
                "await that op's Pending (or synchronize() its stream, if it was dropped), overwrite the \
                 memory, or"
            }
            false => "overwrite the memory, or",
        };
        let message = format!(
            "{op} reads memory that was not written, because an earlier op was refused: {origin}; \
             {look} accept its contents with accept_contents()"
        );
        Self::following(origin, message)
    }

    fn following(earlier: &Error, message: String) -> Self {
        let origin = earlier.origin().without_own();
        Self::of(origin.kind(), message, Vec::new(), Some(origin))
    }

    fn hand_back<R>(self, take: impl FnOnce(Given) -> Result<R, Given>) -> Option<R> {
        let mut own = self.own.as_ref()?.lock();
        match take(own.given.take()?) {
            Ok(taken) => Some(taken),
            Err(other) => {
                own.given = Some(other);
                None
            }
        }
    }

    fn with(mut self, given: Given) -> Self {
        self.own.get_or_insert_default().lock().given = Some(given);
        self
    }

    fn take_given(&self) -> Option<Given> {
        self.own.as_ref()?.lock().given.take()
    }

    fn ending(mut self, unseen: std::sync::Arc<dyn Unseen>) -> Self {
        self.own.get_or_insert_default().lock().unseen.push(unseen);
        self
    }

    fn without_own(&self) -> Self {
        Error { cause: self.cause.clone(), own: None }
    }

    fn at(self, site: Site) -> Self {
        if !matches!(self.kind(), ErrorKind::Fault | ErrorKind::ShutDown | ErrorKind::Forked) {
            let _ = self.cause.site.set(site);
        }
        self
    }

    fn set_seen(&self) {
        self.cause.seen.store(true, Ordering::Relaxed);
        if let Some(own) = &self.own {
            own.lock().unseen.drain(..).for_each(|unseen| unseen.see());
        }
    }

    fn is_seen(&self) -> bool {
        self.cause.seen.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.cause.kind, self.cause.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let failure = self.cause.failure.get().map(|failure| failure as _);
        self.cause.origin.as_ref().map(|origin| origin as _).or(failure)
    }
}
