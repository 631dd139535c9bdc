//! The error type: what failed, why with both numbers, and what to do.

use crate::failure::DriverFailure;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use std::any::Any;
use std::fmt;
use std::sync::OnceLock;
use warpline_order::{Conflict, Mark, Site};

/// The result of a call that can be refused or fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of failure of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An op touches memory whose earlier conflicting use is not ordered before it.
    Unordered,
    /// A written operand overlaps another operand of the same op.
    Overlap,
    /// Lengths, shapes or a kernel's `where` checks do not fit.
    Shape,
    /// Element types do not fit.
    DTypeMismatch,
    /// Operands, stream or event belong to different devices.
    DeviceMismatch,
    /// The device or the pinned pool has no room.
    OutOfMemory,
    /// No device of that name or ordinal.
    NoSuchDevice,
    /// The text is not a device name.
    InvalidName,
    /// An argument is outside what the call accepts.
    InvalidArgument,
    /// The stream has as many ops in flight as it allows, and the op came without a permit.
    Full,
    /// The lease has ended or the runtime is shut down.
    Closed,
    /// Code that the runtime calls made a call that would have to wait for that code. Examples are
    /// a host function or a kernel's CPU form that enqueued, allocated or waited, and a waker that
    /// blocked. Another is foreign work that enqueued on the stream whose turn it has.
    Reentrant,
    /// A graph cannot hold the call, or the stream is being captured elsewhere. Or the work was
    /// captured, so that there is nothing to await.
    Captured,
    /// The driver refused this one call; the device is still usable.
    Driver,
    /// A host function panicked, or the work comes after one that did.
    Panicked,
    /// The device failed and accepts no more work in its runtime. A CPU device works again in a new
    /// `Runtime`. A CUDA device that the driver has abandoned does not work again in this process.
    Fault,
    /// The runtime was shut down before the op could run.
    ShutDown,
    /// The process is the child of a fork, in which devices do not work.
    Forked,
    /// This device or build cannot do it.
    Unsupported,
    /// A dataset cannot be read, or does not hold the expected data.
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
    site: OnceLock<Site>,
    seen: AtomicBool,
}

impl Error {
    /// Creates an error of your own, for code on top of Warpline: a dataset, or an op made of
    /// others.
    ///
    /// The message says what failed, why with both numbers, and what to do. It is in lower case
    /// without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::with_conflicts(kind, message, Vec::new())
    }

    /// Returns the first error of those that this one comes from.
    fn origin(&self) -> &Error {
        self.cause.origin.as_ref().unwrap_or(self)
    }

    fn of(kind: ErrorKind, message: String, conflicts: Vec<Conflict>, origin: Option<Error>) -> Self {
        let (failure, site, seen) = (OnceLock::new(), OnceLock::new(), AtomicBool::new(false));
        Error { cause: Arc::new(Cause { kind, message, conflicts, origin, failure, site, seen }), own: None }
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind
    }

    /// Returns every unordered earlier use that the refused op met; empty for other kinds.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.cause.conflicts
    }

    /// Returns the number of the CUDA error that caused this one, a `CUresult`: 700 is
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`. Returns `None` if no call of the CUDA driver caused it. An error
    /// of the kind `OutOfMemory` has no number: its text has the sizes.
    ///
    /// [`source`](std::error::Error::source) leads to the driver's own words.
    pub fn cuda_code(&self) -> Option<u32> {
        self.origin().cause.failure.get().and_then(DriverFailure::code)
    }

    /// Returns true if this error comes from the error of an earlier op, its
    /// [`source`](std::error::Error::source). The op would have read bytes that the earlier op was
    /// not allowed to write, or it comes after a host function that panicked.
    ///
    /// Looking at an inherited error does not settle the earlier one. The earlier one lasts until
    /// its op's `Pending` is awaited, or the memory is overwritten, or its contents are accepted.
    pub fn is_inherited(&self) -> bool {
        self.cause.origin.is_some()
    }

    /// Returns the op that was refused and the line that called it, or `None` if the error does not
    /// belong to one op.
    pub fn site(&self) -> Option<Site> {
        self.cause.site.get().copied()
    }

    /// Returns the vector that was passed to the refused `Device::pin`. Returns `None` if there was
    /// none, if it was taken before, or if it holds another element type.
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

    /// Returns the error with the source that `other` has.
    fn caused_like(self, other: &Error) -> Self;

    /// Creates the error of an op that is not ordered after these uses.
    fn with_conflicts(kind: ErrorKind, message: impl Into<String>, conflicts: Vec<Conflict>) -> Self;

    /// Creates the error of an op that would have read bytes which an earlier op was not allowed to
    /// write.
    fn inherited(op: &dyn fmt::Display, earlier: &Error) -> Self;

    /// Creates an error that comes from an earlier one.
    fn following(earlier: &Error, message: String) -> Self;

    /// Passes the value that the call was given to `take`, and returns the result. The value stays
    /// in the error if `take` returns it as an `Err`.
    fn hand_back<R>(self, take: impl FnOnce(Given) -> Result<R, Given>) -> Option<R>;

    /// Returns the error with a value that was passed to its call inside.
    fn with(self, given: Given) -> Self;

    /// Returns the error with a state that ends when the program looks at the error.
    fn ending(self, unseen: std::sync::Arc<dyn Unseen>) -> Self;

    /// Returns the error without the part that belongs to its call, for another call that fails
    /// with it.
    fn without_own(&self) -> Self;

    /// Notes which op was refused, unless this is the error of a device, which many ops share.
    fn at(self, site: Site) -> Self;

    /// Notes that the program has looked at the error of this call.
    fn mark_seen(&self);

    /// Returns true if the program has looked at the error.
    fn is_seen(&self) -> bool;
}

impl ErrorParts for Error {
    fn caused_by(self, failure: DriverFailure) -> Self {
        let _ = self.cause.failure.set(failure);
        self
    }

    fn caused_like(self, other: &Error) -> Self {
        match other.cause.failure.get() {
            Some(failure) => self.caused_by(failure.clone()),
            None => self,
        }
    }

    fn with_conflicts(kind: ErrorKind, message: impl Into<String>, conflicts: Vec<Conflict>) -> Self {
        Self::of(kind, message.into(), conflicts, None)
    }

    fn inherited(op: &dyn fmt::Display, earlier: &Error) -> Self {
        let origin = earlier.origin();
        let message = format!(
            "{op} reads memory that was not written, because an earlier op was refused: {origin}; to go on, await that \
             op's Pending, overwrite the memory, or accept what is in it with accept_contents()"
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

    fn mark_seen(&self) {
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
