//! The consequences of a refusal: its error, marks on unwritten bytes, and errors that no caller
//! saw.

use super::core::StreamCore;
use crate::background::{self, Duty};
use crate::order::{self, Mark, OrderMode, Site, leaves_a_mark};
use crate::shared::Operand;
use smallvec::SmallVec;
use std::sync::Arc;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{DriverError, Error, ErrorKind, reentry};

/// The maximum number of errors that a stream keeps for `synchronize`, whose docs state it.
const MOST_UNSEEN: usize = 64;

impl StreamCore {
    #[cold]
    pub(super) fn closed_error(&self, site: Site) -> Error {
        let text =
            format!("{}: the stream is closed, its lease has ended; lease another", site.on(&self.label));
        Error::new(ErrorKind::Closed, text)
    }

    /// Returns the error of `site`'s work, which the driver refused.
    #[cold]
    pub(crate) fn refused(&self, site: Site, error: &DriverError) -> Error {
        self.device.refused(&site.on(&self.label), error)
    }

    /// Marks what a refused call on this stream would have written, if such an error leaves a mark.
    /// Returns the error that ends the mark when it is looked at. `everybodys`: true if the bytes
    /// may have changed, so that no op may read them.
    #[cold]
    pub(crate) fn mark(&self, operands: &[Operand<'_>], error: Error, everybodys: bool) -> Error {
        if self.is_captured() {
            // A refused step of a capture fails the capture.
            return error;
        }
        let written = |operand: &&Operand<'_>| operand.access.writes() && !operand.range.is_empty();
        let mut written: SmallVec<[&Operand<'_>; 2]> = operands.iter().filter(written).collect();
        if error.kind() == ErrorKind::Fault {
            // No op reads the memory of a device that has failed. What its op was to write
            // elsewhere may have changed.
            written.retain(|operand| !Arc::ptr_eq(&operand.allocation.device, &self.device));
            order::mark(&written, &Mark::new(self.id, order::cause(&error)), true);
            return error;
        }
        if written.is_empty() || !leaves_a_mark(error.kind()) {
            return error;
        }
        if everybodys || self.device.runtime.mode == OrderMode::Wait {
            order::mark(&written, &Mark::new(self.id, order::cause(&error)), true);
            return error;
        }
        if reentry::holds_a_device() {
            return error;
        }
        let mut state = self.state.lock();
        if state.closed {
            return error;
        }
        let mark = state.marks.mark_for(self.id, order::cause(&error));
        order::mark(&written, &mark, false);
        state.marks.add(mark.clone());
        self.change_version(&mut state);
        drop(state);
        error.ending(mark)
    }

    /// Keeps an error that no caller received for a `synchronize`, unless the stream keeps the
    /// maximum. The error drops the value that it would have handed back, such as a pinned buffer,
    /// which other clients may wait for. Reports it, as far as
    /// [`error_not_awaited`](crate::report::error_not_awaited) does.
    #[cold]
    pub(crate) fn note_unseen(&self, error: &Error) {
        drop(error.take_given());
        let mut unseen = self.unseen.lock();
        unseen.retain(|error| !error.is_seen());
        let is_first = unseen.is_empty();
        if unseen.len() < MOST_UNSEEN {
            unseen.push_back(error.clone());
        }
        drop(unseen);
        let (label, error) = (self.label.clone(), error.clone());
        let report = move || crate::report::error_not_awaited(&label, &error, is_first);
        // A subscriber may wait for work that this thread has yet to hand over.
        if background::duty() == Duty::Submitting { background::detach(report) } else { report() }
    }

    /// Takes the oldest unseen error, which `synchronize` returns once.
    pub(crate) fn take_unseen(&self) -> Option<Error> {
        let mut unseen = self.unseen.lock();
        unseen.retain(|error| !error.is_seen());
        unseen.pop_front()
    }
}
