//! The one error type: what failed, why with both numbers, and what to do.

use crate::memory::{Pinned, PinnedBytes};
use crate::order::Conflict;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use std::any::Any;
use std::fmt;

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
    /// The thread that holds a stream's turn for foreign work enqueued on that same stream.
    Reentrant,
    /// A call that a graph cannot hold, or on a stream that is being captured elsewhere; or the work was captured, so that there is
    /// nothing to await.
    Captured,
    /// The driver refused this one call; the device goes on.
    Driver,
    /// The device failed and accepts no more work.
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
    /// What the refused call was given. Not part of the cause, which other ops may share.
    given: Option<Arc<Mutex<Option<Given>>>>,
}

/// Memory of the host that is handed back.
enum Given {
    Pinned(PinnedBytes),
    /// A `Vec` of some type of elements.
    Vec(Box<dyn Any + Send>),
}

struct Cause {
    kind: ErrorKind,
    message: String,
    conflicts: Vec<Conflict>,
    seen: AtomicBool,
}

impl Error {
    /// An error of your own, for what is built on top: a dataset, an op made of others.
    ///
    /// The message says what failed, why with both numbers, and what to do, in lower case without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::with_conflicts(kind, message, Vec::new())
    }

    pub(crate) fn with_conflicts(
        kind: ErrorKind,
        message: impl Into<String>,
        conflicts: Vec<Conflict>,
    ) -> Self {
        let cause = Cause { kind, message: message.into(), conflicts, seen: AtomicBool::new(false) };
        Error { cause: Arc::new(cause), given: None }
    }

    /// Which sort of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind
    }

    /// Every unordered earlier use the refused op ran into; empty for other kinds.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.cause.conflicts
    }

    /// The pinned buffer that the refused copy was given, once: `None` if there was none, if it was taken before, or
    /// if it holds another element type.
    pub fn into_buffer<T: crate::Element>(self) -> Option<Pinned<T>> {
        self.hand_back(|given| match given {
            Given::Pinned(bytes) => Pinned::from_bytes(bytes).map_err(Given::Pinned),
            other => Err(other),
        })
    }

    /// The vector that the refused [`Device::pin`](crate::Device::pin) was given, once: `None` if there was none, if it was taken
    /// before, or if it holds another element type.
    pub fn into_vec<T: crate::Element>(self) -> Option<Vec<T>> {
        self.hand_back(|given| match given {
            Given::Vec(elements) => elements.downcast().map(|elements| *elements).map_err(Given::Vec),
            other => Err(other),
        })
    }

    /// What `take` makes of what there is, which stays if it makes nothing of it.
    fn hand_back<R>(self, take: impl FnOnce(Given) -> Result<R, Given>) -> Option<R> {
        let mut given = self.given.as_ref()?.lock();
        match take(given.take()?) {
            Ok(taken) => Some(taken),
            Err(other) => {
                *given = Some(other);
                None
            }
        }
    }

    pub(crate) fn with_buffer(self, bytes: PinnedBytes) -> Self {
        self.with(Given::Pinned(bytes))
    }

    pub(crate) fn with_vec<T: crate::Element>(self, elements: Vec<T>) -> Self {
        self.with(Given::Vec(Box::new(elements)))
    }

    fn with(self, given: Given) -> Self {
        Error { given: Some(Arc::new(Mutex::new(Some(given)))), ..self }
    }

    /// Says that somebody has been told: it was awaited, or passed on to what depends on it.
    pub(crate) fn mark_seen(&self) {
        self.cause.seen.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_seen(&self) -> bool {
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

impl std::error::Error for Error {}
