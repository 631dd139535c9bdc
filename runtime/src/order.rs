//! The order check as this crate uses it: its modes, and errors as the causes of marks.

use crate::error::{Error, ErrorKind, Unseen};
use std::str::FromStr;
use std::sync::Arc;
pub(crate) use warpline_order::{
    Access, Asker, Cause, Clock, Disjoint, Entered, Entry, Finding, Findings, Ledger, MAX_ACCESSES,
    MAX_TICKET, Mark, Marks, Named, Observed, Refused, Strictness, Use, check_and_enter, describe, disjoint,
    mark, overlap_within, overwrites, overwritten, overwritten_of, undo, wait_call,
};
pub use warpline_order::{AccessMode, ByteRange, Conflict, Site, StreamId, Ticket};

/// What the order check does about an op that is not ordered after an earlier conflicting use of the same memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OrderMode {
    /// Refuse the op.
    #[default]
    Deny,
    /// Warn once for each pair of source lines, and run it. The warning is a `tracing` event, or a
    /// line on standard error where no subscriber is set.
    Warn,
    /// Insert the missing edge and run it.
    Wait,
    /// Do not check.
    Off,
}

impl FromStr for OrderMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "deny" => Ok(OrderMode::Deny),
            "warn" => Ok(OrderMode::Warn),
            "wait" => Ok(OrderMode::Wait),
            "off" => Ok(OrderMode::Off),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("\"{text}\" is not an order mode: expected deny, warn, wait or off"),
            )),
        }
    }
}

impl OrderMode {
    /// How strictly a first look is. With `Wait` the missing edges are put in, where they can be, and it is looked again.
    #[inline]
    pub(crate) fn strictness(self) -> Strictness {
        match self {
            OrderMode::Deny | OrderMode::Wait => Strictness::Refuse,
            OrderMode::Warn => Strictness::Find,
            OrderMode::Off => Strictness::Skip,
        }
    }
}

impl Unseen for Mark {
    fn see(&self) {
        Mark::see(self);
    }
}

/// An error as the cause of a mark.
pub(crate) fn cause(error: &Error) -> Cause {
    Arc::new(error.without_own())
}

/// The error that made a mark.
pub(crate) fn refusal(mark: &Mark) -> &Error {
    mark.cause().downcast_ref().expect("causes are made of errors of this crate")
}

/// Returns whether a write that was refused for such a reason leaves a mark. Errors of the
/// arguments do not: the call could never have worked, and what existed before it is what it was.
pub(crate) fn leaves_a_mark(kind: ErrorKind) -> bool {
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
