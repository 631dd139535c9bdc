//! An event that cannot be recorded yet, because the work before it is held back on the host.

use super::core::StreamCore;
use super::unwritten::Unwritten;
use crate::order::Marks;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use warpline_driver::{DriverError, DriverEvent};

/// An event that is recorded once the work before it was handed over.
pub(crate) struct Coming {
    /// The stream that the event is recorded on.
    stream: Weak<StreamCore>,
    inner: Mutex<Recording>,
}

#[derive(Default)]
struct Recording {
    recorded: Option<Recorded>,
    /// The streams that hold work back because of this event. Recording it hands them over, unless
    /// something else does.
    followers: Vec<Arc<StreamCore>>,
}

#[derive(Clone)]
pub(super) struct Recorded {
    pub(super) event: Result<Option<DriverEvent>, DriverError>,
    /// Memory that accepted calls before the event should have written and did not.
    pub(super) unwritten: Unwritten,
}

impl Coming {
    pub(super) fn of(stream: Weak<StreamCore>) -> Self {
        Coming { stream, inner: Mutex::default() }
    }

    /// Returns the stream that the event is recorded on. It exists until then, because the
    /// hand-over holds it, even if the device has reached the event's place and the runtime has
    /// forgotten the stream.
    pub(super) fn stream(&self) -> Option<Arc<StreamCore>> {
        self.stream.upgrade()
    }

    pub(super) fn is_recorded(&self) -> bool {
        self.inner.lock().recorded.is_some()
    }

    /// Returns the event if it was recorded. Otherwise the stream is handed over once it is.
    pub(super) fn or_follow(
        &self,
        stream: &Weak<StreamCore>,
    ) -> Option<Result<Option<DriverEvent>, DriverError>> {
        let mut inner = self.inner.lock();
        if let Some(recorded) = &inner.recorded {
            return Some(recorded.event.clone());
        }
        inner.followers.extend(stream.upgrade());
        None
    }

    /// Merges the marks of late refusals before the event into `marks`, if it was recorded. Returns
    /// whether that changed `marks`.
    pub(super) fn hand_marks_to(&self, marks: &mut Marks) -> bool {
        match &self.inner.lock().recorded {
            Some(recorded) => marks.merge(&recorded.unwritten.marks),
            None => false,
        }
    }

    /// Stores the outcome of the recording. Returns the streams that follow. The caller wakes the
    /// waiters of its stream, which may wait for this.
    pub(super) fn fill(&self, recorded: Recorded) -> Vec<Arc<StreamCore>> {
        let mut inner = self.inner.lock();
        inner.recorded = Some(recorded);
        std::mem::take(&mut inner.followers)
    }

    /// Returns the event, if it was recorded.
    pub(super) fn recorded(&self) -> Option<Result<Option<DriverEvent>, DriverError>> {
        self.inner.lock().recorded.as_ref().map(|recorded| recorded.event.clone())
    }

    /// Returns the outcome of the recording, which has taken place.
    pub(super) fn get(&self) -> Recorded {
        let recorded = self.inner.lock().recorded.clone();
        recorded.expect("a stream is handed over once the event was recorded")
    }
}
