//! An event that cannot be recorded yet, because what comes before it waits on the host.

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
    /// The streams that hold back because of it. They have something else that hands them over, or
    /// this does.
    followers: Vec<Arc<StreamCore>>,
}

#[derive(Clone)]
pub(super) struct Recorded {
    pub(super) event: Option<DriverEvent>,
    /// Memory that was not written before it although that was called.
    pub(super) unwritten: Unwritten,
}

impl Coming {
    pub(super) fn is_recorded(&self) -> bool {
        self.inner.lock().recorded.is_some()
    }

    /// Returns the event if it was recorded. If not, the stream is handed over when it is.
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

    /// Has `marks` carry what late refusals before it left, once it was recorded.
    pub(super) fn hand_marks_to(&self, marks: &mut Marks) -> bool {
        match &self.inner.lock().recorded {
            Some(Ok(recorded)) => marks.merge(&recorded.unwritten.marks),
            _ => false,
        }
    }

    /// Blocks until it was recorded, or could not be.
    pub(super) fn wait(&self) {
        let mut inner = self.inner.lock();
        while inner.recorded.is_none() {
            self.recorded.wait(&mut inner);
        }
    }

    /// Returns who follows.
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
