//! The one error type: what failed, why with both numbers, and what to do.

use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use std::any::Any;
use std::fmt;
use std::sync::OnceLock;
use warpline_order::{Conflict, Mark, Site};

/// The result of anything that can be refused or fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Which sort of failure an [`Error`] is.
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
    /// The stream has as much in flight as it allows, and the op came without a permit.
    Full,
    /// The lease has ended or the runtime is shut down.
    Closed,
    /// Code that the runtime calls asked for what would have to wait for that code: a host function
    /// or a kernel's CPU form that enqueued, allocated or waited, a waker that blocked, foreign
    /// work that enqueued on the stream whose turn it has.
    Reentrant,
    /// A call that a graph cannot hold, or on a stream that is being captured elsewhere; or the work was captured, so that there is
    /// nothing to await.
    Captured,
    /// The driver refused this one call; the device goes on.
    Driver,
    /// A host function panicked, or the work comes after one that did.
    Panicked,
    /// The device failed and accepts no more work in its runtime. A CPU device works again in a new
    /// `Runtime`; a CUDA device that the driver has given up does not in this
    /// process.
    Fault,
    /// The runtime was shut down before the op could run.
    ShutDown,
    /// The process is the child of a fork, in which devices do not work.
    Forked,
    /// This device or build cannot do it.
    Unsupported,
    /// A dataset cannot be read, or does not hold what it should.
    Data,
}

/// Why a call was refused or an op failed. Cheap to clone: everything that fails for the same reason shares it.
#[derive(Clone)]
pub struct Error {
    cause: Arc<Cause>,
    /// The part that belongs to the one refused call. Other ops may share the cause.
    own: Option<Arc<Mutex<Own>>>,
}

/// The part of an error that belongs to one refused call.
#[derive(Default)]
struct Own {
    /// Memory of the host that is handed back.
    given: Option<Given>,
    /// What ends when somebody looks at the error: the marks on what its call would have written,
    /// the panic that it is the error of.
    unseen: Vec<std::sync::Arc<dyn Unseen>>,
}

/// Something that a refused call was given, recovered by the type that put it in.
pub type Given = Box<dyn Any + Send>;

/// Something that lasts until the program has looked at an error.
pub trait Unseen: Send + Sync {
    /// The program has.
    fn see(&self);
}

struct Cause {
    kind: ErrorKind,
    message: String,
    conflicts: Vec<Conflict>,
    /// The refusal that this one comes from.
    origin: Option<Error>,
    site: OnceLock<Site>,
    seen: AtomicBool,
}

impl Error {
    /// An error of your own, for what is built on top: a dataset, an op made of others.
    ///
    /// The message says what failed, why with both numbers, and what to do, in lower case without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::with_conflicts(kind, message, Vec::new())
    }

    /// The first error of those that this one comes from.
    fn origin(&self) -> &Error {
        self.cause.origin.as_ref().unwrap_or(self)
    }

    fn of(kind: ErrorKind, message: String, conflicts: Vec<Conflict>, origin: Option<Error>) -> Self {
        let (site, seen) = (OnceLock::new(), AtomicBool::new(false));
        Error { cause: Arc::new(Cause { kind, message, conflicts, origin, site, seen }), own: None }
    }

    /// Which sort of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind
    }

    /// Every unordered earlier use the refused op ran into; empty for other kinds.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.cause.conflicts
    }

    /// Returns whether it comes from the error of an earlier op, its
    /// [`source`](std::error::Error::source): the op would have read what that one was refused to
    /// write, or comes after a host function that panicked.
    ///
    /// Looking at an inherited error does not settle the earlier one. It lasts until the earlier
    /// op's `Pending` is awaited, or the memory is overwritten or its contents are accepted.
    pub fn is_inherited(&self) -> bool {
        self.cause.origin.is_some()
    }

    /// The op that was refused and the line that called it. `None` if the error is not that of one
    /// op.
    pub fn site(&self) -> Option<Site> {
        self.cause.site.get().copied()
    }

    /// The vector that the refused `Device::pin` was given, once: `None` if there was none, if it was taken
    /// before, or if it holds another element type.
    pub fn into_vec<T: crate::Element>(self) -> Option<Vec<T>> {
        self.hand_back(|given| given.downcast().map(|elements| *elements))
    }
}

impl Unseen for Mark {
    fn see(&self) {
        Mark::see(self);
    }
}

/// Returns whether a write that was refused for such a reason leaves a mark. Errors of the
/// arguments do not: the call could never have worked, and what existed before it is what it was.
pub fn leaves_a_mark(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Unordered | ErrorKind::OutOfMemory | ErrorKind::Full | ErrorKind::Driver => true,
        // The owner of a borrowed stream captures it. A step of a capture of ours never comes here.
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
        // The call came from where the stream takes none.
        ErrorKind::Reentrant => false,
        // Nothing runs after these on the same stream or device.
        ErrorKind::Closed | ErrorKind::Fault | ErrorKind::ShutDown | ErrorKind::Forked => false,
    }
}

/// Internals of an error, for the crates of Warpline.
pub trait ErrorParts: Sized {
    /// The error of an op that is not ordered after these uses.
    fn with_conflicts(kind: ErrorKind, message: impl Into<String>, conflicts: Vec<Conflict>) -> Self;

    /// The error of an op that would have read what an earlier one was refused to write.
    fn inherited(op: &dyn fmt::Display, earlier: &Error) -> Self;

    /// An error that comes from an earlier one.
    fn following(earlier: &Error, message: String) -> Self;

    /// What `take` makes of what there is, which stays if it makes nothing of it.
    fn hand_back<R>(self, take: impl FnOnce(Given) -> Result<R, Given>) -> Option<R>;

    /// Returns the error with what its call was given inside.
    fn with(self, given: Given) -> Self;

    /// Returns the error with something that ends when the program looks at it.
    fn ending(self, unseen: std::sync::Arc<dyn Unseen>) -> Self;

    /// Returns the error for another call that fails with it.
    fn without_own(&self) -> Self;

    /// Notes which op was refused, unless it is the error of a device, which many ops share.
    fn at(self, site: Site) -> Self;

    /// Notes that the program has looked at the error of this very call.
    fn mark_seen(&self);

    /// Whether it has.
    fn is_seen(&self) -> bool;
}

impl ErrorParts for Error {
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
        self.cause.origin.as_ref().map(|origin| origin as _)
    }
}
