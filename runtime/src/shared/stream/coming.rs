//! An event that cannot be recorded yet, because the work before it is held back on the host.

use super::unwritten::Unwritten;
use crate::order::Marks;
use crate::sync::{Arc, Mutex};
use warpline_driver::timeline::Timeline;
use warpline_driver::{DeviceId, DriverError, DriverEvent, Error, Health};

/// A stream as others may watch it, also after the runtime has forgotten it.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) timeline: Arc<Timeline>,
    pub(super) device: DeviceId,
    pub(super) health: Arc<Health>,
}

impl Watched {
    /// Returns the reason why tickets that are not reached never will be, if there is one.
    pub(super) fn fault(&self) -> Option<&Error> {
        self.health.fault().or_else(|| self.timeline.fault())
    }
}

/// A stream that holds work back because of an event.
pub(crate) trait Follower: Send + Sync {
    fn device(&self) -> DeviceId;

    /// Hands over what is ready. Returns the followers of the events that this recorded.
    fn hand_over_what_is_ready(&self) -> Vec<Arc<dyn Follower>>;
}

/// An event that is recorded once the work before it was handed over.
pub(crate) struct Coming {
    /// The stream that the event is recorded on.
    stream: Watched,
    inner: Mutex<Recording>,
}

#[derive(Default)]
struct Recording {
    recorded: Option<Recorded>,
    /// The streams that hold work back because of this event. Recording it hands them over, unless
    /// something else does.
    followers: Vec<Arc<dyn Follower>>,
}

#[derive(Clone)]
pub(super) struct Recorded {
    pub(super) event: Result<Option<DriverEvent>, DriverError>,
    /// Memory that accepted calls before the event should have written and did not.
    pub(super) unwritten: Unwritten,
}

impl Coming {
    pub(super) fn on(stream: Watched) -> Self {
        Coming { stream, inner: Mutex::default() }
    }

    /// Returns the stream that the event is recorded on. The runtime may have forgotten it, if the
    /// device has reached the event's place already.
    pub(super) fn stream(&self) -> &Watched {
        &self.stream
    }

    pub(super) fn is_recorded(&self) -> bool {
        self.inner.lock().recorded.is_some()
    }

    /// Returns the event if it was recorded. Otherwise the follower is handed over once it is.
    pub(super) fn or_follow(
        &self,
        follower: impl FnOnce() -> Option<Arc<dyn Follower>>,
    ) -> Option<Result<Option<DriverEvent>, DriverError>> {
        let mut inner = self.inner.lock();
        if let Some(recorded) = &inner.recorded {
            return Some(recorded.event.clone());
        }
        inner.followers.extend(follower()); // weaken: look-and-follow
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

    /// Stores the outcome of the recording. Returns the followers, which the caller hands over
    /// once it has released its stream's lock. It wakes the waiters of its stream, which may wait
    /// for this.
    #[must_use]
    pub(super) fn fill(&self, recorded: Recorded) -> Vec<Arc<dyn Follower>> {
        let mut inner = self.inner.lock();
        inner.recorded = Some(recorded); // weaken: record-then-wake
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
