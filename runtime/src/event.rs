//! Events: points on a stream's timeline.

use crate::error::{Error, ErrorKind, Result};
use crate::pending::Pending;
use crate::stream::{Place, Snapshot, StreamCore};
use crate::timeline::Ticket;
use std::fmt;
use std::future::IntoFuture;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A point on a stream's timeline: everything enqueued before it was recorded.
///
/// There is no event that was not recorded, so none can be waited for. Recording again makes another event. Cheap to
/// clone; awaiting it (or a reference to it) is [`synchronize`](Self::synchronize).
#[derive(Clone)]
pub struct Event {
    core: Arc<StreamCore>,
    snapshot: Arc<Snapshot>,
    stamp: Option<Arc<OnceLock<Instant>>>,
}

impl Event {
    pub(crate) fn record(core: &Arc<StreamCore>, stamp: Option<Arc<OnceLock<Instant>>>) -> Self {
        let snapshot = core.snapshot(|_| false).unwrap_or_else(|error| {
            // The driver could make no mark. Whoever waits for this place waits for its ticket; the failure is the device's.
            core.note_unseen(&core.device.refused(&"record_event", &error));
            core.snapshot(|_| true).expect("without a mark nothing can be refused")
        });
        Event { core: core.clone(), snapshot: Arc::new(snapshot), stamp }
    }

    pub(crate) fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The last ticket before it.
    pub fn ticket(&self) -> Ticket {
        self.snapshot.used.ticket
    }

    /// Whether the stream has passed it. A `true` counts as having observed it.
    ///
    /// # Errors
    /// The device has failed.
    pub fn query(&self) -> Result<bool> {
        self.synchronize().query()
    }

    /// Resolves when the stream has passed it.
    ///
    /// # Errors
    /// The device has failed.
    pub fn synchronize(&self) -> Pending<()> {
        let place =
            Place { ticket: self.snapshot.used.ticket, clock: self.snapshot.stated.clone(), exact: false };
        Pending::value(&self.core, Ok(place), ())
    }

    /// The time between two timed events that have both been passed; zero if `earlier` was passed after `self`.
    ///
    /// # Errors
    /// `InvalidArgument` if one was recorded without timing or has not been passed yet.
    pub fn elapsed_since(&self, earlier: &Event) -> Result<Duration> {
        let time = |event: &Event, which: &str| {
            let stamp = event.stamp.as_ref().ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "elapsed_since: the {which} event has no time; record it with record_timed_event"
                    ),
                )
            })?;
            stamp.get().copied().ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "elapsed_since: stream \"{}\" has not passed the {which} event: it is at ticket {} of {}; await \
                         the event first",
                        event.core.label,
                        event.core.timeline.completed(),
                        event.ticket()
                    ),
                )
            })
        };
        Ok(time(self, "later")?.saturating_duration_since(time(earlier, "earlier")?))
    }
}

impl IntoFuture for Event {
    type Output = Result<()>;
    type IntoFuture = Pending<()>;

    fn into_future(self) -> Pending<()> {
        self.synchronize()
    }
}

impl IntoFuture for &Event {
    type Output = Result<()>;
    type IntoFuture = Pending<()>;

    fn into_future(self) -> Pending<()> {
        self.synchronize()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event(ticket {} of {:?})", self.ticket(), self.core)
    }
}
