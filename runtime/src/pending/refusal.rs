//! The error of a refused call, on its way to an awaiting caller.

use super::{Pending, Work};
use crate::shared::{Stream, StreamCore};
use std::sync::Arc;
use warpline_driver::Error;
use warpline_driver::internal::ErrorParts;

/// The error of a refused call, on its way to the `Pending` of an op that would have used the
/// call's value.
///
/// The error follows the data. Passing it on does not count as seeing it: the error is seen when
/// the last `Pending` is awaited. If that `Pending` is dropped unseen, the stream that refused
/// first reports the error.
#[derive(Debug)]
#[must_use = "an error that is not passed on is lost"]
pub struct Refusal {
    pub(super) error: Error,
    pub(super) core: Option<Arc<StreamCore>>,
    /// True if a capture reports the error.
    pub(super) captured: bool,
}

impl Refusal {
    /// Makes the refusal of a call that would have run on `stream`.
    pub fn on(stream: &Stream, error: Error) -> Self {
        Refusal::of(stream.core(), error)
    }

    pub(super) fn of(core: &Arc<StreamCore>, error: Error) -> Self {
        let captured = core.note_refusal(&error);
        Refusal { error, core: Some(core.clone()), captured }
    }

    /// Returns the same refusal; `stream` reports it if no other stream does.
    pub fn or_on(self, stream: &Stream) -> Self {
        if self.core.is_some() { self } else { Refusal::of(stream.core(), self.error) }
    }

    /// Returns the error.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the refusal with its error replaced by `change` of it.
    pub(crate) fn map(self, change: impl FnOnce(Error) -> Error) -> Self {
        Refusal { error: change(self.error), ..self }
    }

    /// Returns the refusal for another op. Seeing that op's error settles the memory that op would
    /// have written, not the memory this one would have.
    pub(super) fn again(&self) -> Self {
        Refusal { error: self.error.without_own(), core: self.core.clone(), captured: self.captured }
    }

    /// Returns a `Pending` that fails with this refusal.
    pub fn pass_on<T>(self) -> Pending<T> {
        Pending { work: Work::Failed(self), output: None }
    }
}

/// The refusal of a call before it reached a stream.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal { error, core: None, captured: false }
    }
}
