//! The error of a refused call, on its way to who awaits something.

use super::{Pending, State};
use crate::shared::{Stream, StreamCore};
use std::sync::Arc;
use warpline_driver::Error;
use warpline_driver::internal::ErrorParts;

/// A refusal on its way from one `Pending` to that of an op which would have used its value.
///
/// The error follows the data: whoever passes it on has not looked at it, so it does not count as seen until the last
/// `Pending` is awaited, and one that is dropped says so on the stream that refused first.
#[derive(Debug)]
#[must_use = "an error that nobody passes on is lost"]
pub struct Refusal {
    pub(super) error: Error,
    pub(super) core: Option<Arc<StreamCore>>,
    /// Whether a capture sees to it that somebody is told.
    pub(super) captured: bool,
}

impl Refusal {
    /// The refusal of a call that would have gone on `stream`.
    pub fn on(stream: &Stream, error: Error) -> Self {
        Refusal::of(stream.core(), error)
    }

    pub(super) fn of(core: &Arc<StreamCore>, error: Error) -> Self {
        let captured = core.note_refusal(&error);
        Refusal { error, core: Some(core.clone()), captured }
    }

    /// The same refusal, which `stream` tells of if no other stream does.
    pub fn or_on(self, stream: &Stream) -> Self {
        if self.core.is_some() { self } else { Refusal::of(stream.core(), self.error) }
    }

    /// Why.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the refusal with the error that `change` makes of its own.
    pub(crate) fn map(self, change: impl FnOnce(Error) -> Error) -> Self {
        Refusal { error: change(self.error), ..self }
    }

    /// Returns the refusal for another op. Looking at that op's error settles what that op would
    /// have written, and not what this one would have.
    pub(super) fn again(&self) -> Self {
        Refusal { error: self.error.without_own(), core: self.core.clone(), captured: self.captured }
    }

    /// A `Pending` that fails with it.
    pub fn pass_on<T>(self) -> Pending<T> {
        Pending { state: State::Failed(self) }
    }
}

/// Of a call that was refused before it reached a stream.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal { error, core: None, captured: false }
    }
}
