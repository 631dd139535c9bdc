//! Stands in for the driver's seam: its commands and errors, and a stream that notes its calls.

use crate::timeline::{Ticket, Timeline};
use crate::{Error, sync::Arc};
use loom::cell::UnsafeCell;
use std::fmt;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;
pub(crate) type DeviceId = &'static str;
pub(crate) type ErrorKind = &'static str;
#[derive(Clone, Debug)]
pub(crate) struct DriverError;
#[derive(Clone, Debug)]
pub(crate) struct DriverEvent;

impl Error {
    pub(crate) fn new(_kind: ErrorKind, _text: String) -> Self {
        Error
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        "fault"
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

pub(crate) mod internal {
    pub(crate) trait ErrorParts: Sized {
        fn caused_like(self, _other: &Self) -> Self {
            self
        }
    }

    impl ErrorParts for crate::Error {}
}

pub(crate) enum CopyKind {
    HostToDevice,
    DeviceToHost,
}

pub(crate) struct Copy {
    pub(crate) kind: CopyKind,
    pub(crate) src: u64,
    pub(crate) dst: u64,
}

pub(crate) struct StagedCopy {
    pub(crate) staging: u64,
}

pub(crate) struct Point {
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) ticket: Ticket,
    pub(crate) event: Option<DriverEvent>,
}

pub(crate) enum Command {
    Copy(Copy),
    StagedCopy(StagedCopy),
    Wait(Point),
    Edge(Point),
    Elided,
}

impl Command {
    pub(crate) fn drop_elsewhere(self) {}
}

pub(crate) struct Submission {
    pub(crate) ticket: Ticket,
    pub(crate) command: Command,
}

pub(crate) trait DriverStream: Send + Sync {
    fn submit(&self, submission: Submission);
    fn signal(&self, ticket: Ticket);
    fn record(&self) -> Result<Option<DriverEvent>, DriverError>;

    fn may_signal(&self) -> bool {
        true
    }

    fn wait_briefly(&self, _ticket: Ticket) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Call {
    Submit(Ticket),
    Signal(Ticket),
    Record,
}

/// The calls that the driver got, in order. Loom fails the model if two threads call it at the
/// same time.
#[derive(Default)]
pub(crate) struct Calls(UnsafeCell<Vec<Call>>);

// SAFETY: only the holder of the stream's lock calls the driver, which the models check.
unsafe impl Sync for Calls {}
// SAFETY: as above, and no field belongs to one thread.
unsafe impl Send for Calls {}

impl Calls {
    fn note(&self, call: Call) {
        // SAFETY: this thread holds the stream's lock; loom checks that no other thread calls.
        self.0.with_mut(|calls| unsafe { (*calls).push(call) });
    }

    /// Returns the calls, after the model's threads were joined.
    pub(crate) fn all(&self) -> Vec<Call> {
        // SAFETY: no other thread is left.
        self.0.with(|calls| unsafe { (*calls).clone() })
    }
}

impl DriverStream for Calls {
    fn submit(&self, submission: Submission) {
        match submission.command {
            Command::Copy(copy) => assert_ne!(copy.src, 0, "memory that does not exist yet"),
            Command::Wait(point) => assert!(point.event.is_some(), "an event that is not recorded"),
            _ => {}
        }
        self.note(Call::Submit(submission.ticket));
    }

    fn signal(&self, ticket: Ticket) {
        self.note(Call::Signal(ticket));
    }

    fn record(&self) -> Result<Option<DriverEvent>, DriverError> {
        self.note(Call::Record);
        Ok(Some(DriverEvent))
    }
}
