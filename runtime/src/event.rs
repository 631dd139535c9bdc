//! Events: points on a stream's timeline.

use crate::order::Site;
use crate::pending::Pending;
use crate::shared::{Place, Snapshot, StreamCore};
use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;
use warpline_driver::timeline::Ticket;
use warpline_driver::{Error, ErrorKind, Result, Stamp, reentry};

/// A point on a stream, after everything that was enqueued when the event was recorded.
///
/// Each call of [`Stream::record_event`](crate::Stream::record_event) creates a new event. So,
/// unlike in CUDA, there is no event that has yet to be recorded. An event is cheap to clone.
/// Awaiting it, or a reference to it, is [`synchronize`](Self::synchronize).
#[derive(Clone)]
pub struct Event {
    core: Arc<StreamCore>,
    /// The place, or the error why it was not recorded.
    snapshot: Result<Arc<Snapshot>>,
    /// The fault of the device, if it had failed before. The work before the event may be lost
    /// then. A wait of another stream is not refused for it: such a wait hands on what the work
    /// left unwritten.
    fault: Option<Error>,
    stamp: Option<Arc<Stamp>>,
}

impl Event {
    #[track_caller]
    pub(crate) fn record(core: &Arc<StreamCore>, stamp: Option<Arc<Stamp>>) -> Self {
        let site = Site::here(&"record_event");
        let fault = core.device.health.fault().cloned();
        let event = |snapshot| Event { core: core.clone(), snapshot, fault, stamp };
        if let Err(error) = core.may_ask(site) {
            return event(Err(error));
        }
        // If another thread captures the stream, the event stands at the current end of the stream
        // itself.
        let capture = core.capture(site).ok().flatten();
        if let Some(capture) = capture {
            return event(Ok(Arc::new(capture.snapshot(core))));
        }
        let snapshot = Snapshot::to_await(core, |_| false).unwrap_or_else(|error| {
            // The driver could record no event. A wait for this place waits for its ticket; the
            // failure is the device's.
            core.note_unseen(&core.device.refused(&"record_event", &error));
            Snapshot::to_await(core, |_| true).expect("without a driver event nothing can be refused")
        });
        event(Ok(Arc::new(snapshot)))
    }

    pub(crate) fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }

    pub(crate) fn snapshot(&self) -> Result<&Snapshot> {
        self.snapshot.as_deref().map_err(Clone::clone)
    }

    /// Returns the ticket of the newest op before the event; 0 if recording it was refused.
    pub fn ticket(&self) -> Ticket {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.used.ticket)
    }

    /// Returns true if the stream has passed the event. A `true` counts as having observed it, as
    /// awaiting does (see [`Pending`]).
    ///
    /// # Errors
    /// The device has failed; `Captured` if the event was recorded in a capture; `Reentrant` in a
    /// host function.
    pub fn query(&self) -> Result<bool> {
        self.synchronize().query()
    }

    /// Resolves when the stream has passed the event.
    ///
    /// # Errors
    /// In the `Pending`: the device has failed; `Captured` if the event was recorded in a capture.
    pub fn synchronize(&self) -> Pending<()> {
        let place = self.snapshot().and_then(|snapshot| match (&snapshot.capture, &self.fault) {
            (Some(_), _) => Err(self.core.nothing_to_await(0)),
            (None, Some(fault)) => Err(fault.clone()),
            (None, None) => Ok(Place::at(snapshot.used.ticket, snapshot.stated.clone())),
        });
        Pending::value(&self.core, place, ())
    }

    /// Returns the time between two timed events that their streams have passed.
    ///
    /// # Errors
    /// `InvalidArgument` if one was recorded without timing or has not been passed yet, if
    /// `earlier` was passed after `self`, or if the clocks of their devices cannot be compared;
    /// `Reentrant` in a host function.
    pub fn elapsed_since(&self, earlier: &Event) -> Result<Duration> {
        reentry::may_ask(&"elapsed_since")?;
        let (end, start) = (self.passed_stamp("later")?, earlier.passed_stamp("earlier")?);
        if let (Some(end), Some(start)) = (end.time(), start.time()) {
            return end.checked_duration_since(start).ok_or_else(|| in_the_wrong_order(start - end));
        }
        let device = &self.core.device;
        let (Some(end), Some(start)) = (end.event(), start.event()) else {
            return Err(refused(format_args!(
                "the events are of {} and {}, whose clocks cannot be compared; time both on one device",
                earlier.core.device.id, device.id
            )));
        };
        let elapsed = |start, end| {
            device.driver.elapsed(start, end).map_err(|error| device.refused(&"elapsed_since", &error))
        };
        let took = elapsed(start, end)?;
        // It is 0 too if the device passed them in the other order.
        if took.is_zero() {
            let backwards = elapsed(end, start)?;
            if !backwards.is_zero() {
                return Err(in_the_wrong_order(backwards));
            }
        }
        Ok(took)
    }

    /// Returns the event's time stamp, if the event has been passed.
    fn passed_stamp(&self, which: &str) -> Result<&Stamp> {
        let stamp = self.stamp.as_deref().ok_or_else(|| {
            refused(format_args!("the {which} event has no time; record it with record_timed_event"))
        })?;
        if stamp.time().is_some()
            || (stamp.event().is_some() && self.core.progress.timeline.reached(self.ticket()))
        {
            return Ok(stamp);
        }
        Err(refused(format_args!(
            "stream \"{}\" has not passed the {which} event: it is at ticket {} of {}; await the event first",
            self.core.label,
            self.core.completed(),
            self.ticket()
        )))
    }
}

#[cold]
fn in_the_wrong_order(by: Duration) -> Error {
    refused(format_args!(
        "`earlier` was reached {by:?} after the event that it is compared with; swap the two"
    ))
}

/// Returns the error of a call of `elapsed_since`.
#[cold]
fn refused(why: fmt::Arguments<'_>) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("elapsed_since: {why}"))
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
