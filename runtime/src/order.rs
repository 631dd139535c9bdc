//! The order check as this crate uses it: its modes, and errors as the causes of marks.

use std::str::FromStr;
use std::sync::Arc;
pub(crate) use warpline_driver::AccessMode;
use warpline_driver::internal::ErrorParts;
pub(crate) use warpline_driver::internal::leaves_a_mark;
pub use warpline_driver::{ByteRange, Conflict, Site, StreamId};
use warpline_driver::{Error, ErrorKind};
pub(crate) use warpline_order::{
    Access, Asker, Cause, Clock, Disjoint, Ensured, Entered, Entry, Finding, Findings, FoundMark, Ledger,
    MAX_ACCESSES, MAX_TICKET, Mark, Marks, Named, Observed, Refused, Strictness, Use, check_and_enter,
    describe, disjoint, mark, overlap_within, overwritten, overwritten_of, undo, wait_call,
};

/// The reaction of the *order check* to an op that is not ordered after an earlier conflicting use
/// of the same memory. Two uses conflict if one of them writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OrderMode {
    /// Refuse the op.
    #[default]
    Deny,
    /// Warn once for each pair of source lines, and run the op. The warning is a `tracing` event,
    /// or a line on standard error if no subscriber is set.
    Warn,
    /// Insert the missing edge and run the op.
    Wait,
    /// Do not check. Work of a closed stream is before later uses of its memory all the same.
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
                format!("\"{text}\" is not an order mode; expected deny, warn, wait or off"),
            )),
        }
    }
}

impl OrderMode {
    /// Returns how strict the first check is. With `Wait` the missing edges are inserted if
    /// possible, and the op is checked again.
    #[inline]
    pub(crate) fn strictness(self) -> Strictness {
        match self {
            OrderMode::Deny | OrderMode::Wait => Strictness::Refuse,
            OrderMode::Warn => Strictness::Find,
            OrderMode::Off => Strictness::Skip,
        }
    }
}

/// Returns an error as the cause of a mark.
pub(crate) fn cause(error: &Error) -> Cause {
    Arc::new(error.without_own())
}

/// Returns the error that made a mark.
pub(crate) fn refusal(mark: &Mark) -> &Error {
    mark.cause().downcast_ref().expect("causes are made of errors of this crate")
}
