//! Handles work that a stream refused, and abandons the stream if a marker fails.

use super::CudaStream;
use crate::api::Failed;
use crate::completion::reactor;
use crate::faults::fault;
use std::fmt;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Ticket;
use warpline_driver::{DriverError, Error, ErrorKind, Site};

/// The reason that a command was not performed.
pub(crate) enum Refused {
    Call(Failed),
    Other(DriverError),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Call(failed) => failed.fmt(f),
            Refused::Other(error) => error.fmt(f),
        }
    }
}

impl From<Failed> for Refused {
    fn from(failed: Failed) -> Self {
        Refused::Call(failed)
    }
}

impl From<DriverError> for Refused {
    fn from(error: DriverError) -> Self {
        Refused::Other(error)
    }
}

impl CudaStream {
    #[cold]
    pub(crate) fn refused(&self, refused: Refused, ticket: Ticket, site: Site) -> DriverError {
        let context = self.context();
        match refused {
            Refused::Other(error) => {
                // An error in the form of a text may come from a dead context.
                let _ = context.look_after();
                error
            }
            Refused::Call(failed) => {
                // The error was found at this call. It belongs to this op only if each op is waited
                // for.
                let op = context.blocking.then(|| fault::named(site, self.track.label(), ticket));
                context.is_killed_by(failed, op.as_ref().map(|op| op as &dyn fmt::Display));
                context.driver_error(failed)
            }
        }
    }

    /// Abandons the stream, because the marker of `ticket` could not be enqueued.
    #[cold]
    pub(crate) fn give_up(&self, ticket: Ticket, failed: Failed) {
        if warpline_driver::process::is_forked() || self.context().is_killed_by(failed, None) {
            return;
        }
        let error = Error::new(
            ErrorKind::Driver,
            format!(
                "stream \"{}\" of cuda:{} was abandoned at ticket {ticket}: its completion marker \
                 could not be enqueued: {failed}; use another stream",
                self.track.label(),
                self.context().ordinal
            ),
        );
        self.timeline.give_up(error.caused_by(failed.into()));
        reactor::wake_timeline(self.timeline.clone());
    }
}
