//! An event that cannot be recorded yet, because the work before it is held back on the host.

use super::core::StreamCore;
use super::unwritten::Unwritten;
use crate::order::Marks;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use warpline_driver::{DriverError, DriverEvent};

/// An event that is recorded once the work before it was handed over.
#[derive(Default)]
pub(crate) struct Coming {
    inner: Mutex<Recording>,
    recorded: Condvar,
}

#[derive(Default)]
struct Recording {
    recorded: Option<Result<Recorded, DriverError>>,
    /// The streams that hold work back because of this event. Recording it hands them over, unless
    /// something else does.
    followers: Vec<Arc<StreamCore>>,
}

#[derive(Clone)]
pub(super) struct Recorded {
    pub(super) event: Option<DriverEvent>,
    /// Memory that accepted calls before the event should have written and did not.
    pub(super) unwritten: Unwritten,
}

impl Coming {
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
            return Some(recorded.clone().map(|recorded| recorded.event));
        }
        inner.followers.extend(stream.upgrade());
        None
    }

    /// Merges the marks of late refusals before the event into `marks`, if it was recorded. Returns
    /// whether that changed `marks`.
    pub(super) fn hand_marks_to(&self, marks: &mut Marks) -> bool {
        match &self.inner.lock().recorded {
            Some(Ok(recorded)) => marks.merge(&recorded.unwritten.marks),
            _ => false,
        }
    }

    /// Blocks until the event was recorded, or could not be.
    pub(super) fn wait(&self) {
        let mut inner = self.inner.lock();
        while inner.recorded.is_none() {
            self.recorded.wait(&mut inner);
        }
    }

    /// Stores the outcome of the recording and wakes blocked threads. Returns the streams that
    /// follow.
    pub(super) fn fill(&self, recorded: Result<Recorded, DriverError>) -> Vec<Arc<StreamCore>> {
        let mut inner = self.inner.lock();
        inner.recorded = Some(recorded);
        let followers = std::mem::take(&mut inner.followers);
        drop(inner);
        self.recorded.notify_all();
        followers
    }

    pub(super) fn get(&self) -> Result<Recorded, DriverError> {
        let recorded = self.inner.lock().recorded.clone();
        recorded.unwrap_or_else(|| Err(DriverError::Refused("its event was not recorded".into())))
    }
}
