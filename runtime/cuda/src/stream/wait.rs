//! Makes one stream wait for another, by an event or, if none could be recorded, by a gate.
// Decision: docs/decisions/0031-edges-are-events.md

use super::CudaStream;
use super::refused::Refused;
use crate::api::opened;
use crate::completion::events::PooledEvent;
use crate::context::{Context, followed_by};
use crate::faults::dependents::Dependent;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use warpline_driver::timeline::Ticket;
use warpline_driver::{DriverError, DriverFailure, Point, Site};

/// Refuses work that needs a device that has failed.
pub(crate) fn alive(context: &'static Context) -> Result<(), DriverError> {
    match context.fault() {
        None => Ok(()),
        Some(fault) => {
            let text = format!("it needs cuda:{}, which failed: {fault}", context.ordinal);
            Err(DriverError::Refused(DriverFailure::from(fault).with_text(text)))
        }
    }
}

impl CudaStream {
    /// Makes the stream wait for `point`.
    ///
    /// `is_op` tells whether the wait is all of its ticket's work. Otherwise that work follows, and
    /// only the marker behind it tells that the wait has ended.
    pub(crate) fn wait(&self, point: &Point, ticket: Ticket, site: Site, is_op: bool) -> Result<(), Refused> {
        if let Some(event) = &point.event {
            let event = event.downcast_ref::<PooledEvent>().expect("an event of this driver");
            let awaited = self.device_of(event);
            if let Some(awaited) = awaited {
                self.comes_to_wait(awaited, ticket)?;
            }
            // SAFETY: cuStreamWaitEvent takes a live stream and a live event, of any context.
            unsafe { opened().cuStreamWaitEvent(self.raw.stream, event.raw(), 0) }.inspect_err(|_| {
                let _ = awaited.map(Context::look_after);
            })?;
            if let Some(awaited) = awaited {
                self.depend_on(awaited, point, ticket, site, is_op);
            }
            return Ok(());
        }
        if point.timeline.reached(point.ticket) {
            return Ok(());
        }
        self.hold(point, ticket, site, is_op)
    }

    /// Holds the stream until the host finds that `point` is reached.
    ///
    /// `point` belongs to a gate, or to a stream whose event could not be recorded.
    #[cold]
    pub(crate) fn hold(&self, point: &Point, ticket: Ticket, site: Site, is_op: bool) -> Result<(), Refused> {
        let awaited = followed_by(&point.timeline);
        let elsewhere = awaited.as_ref().map(|track| track.context).filter(|context| !self.is_on(context));
        if let Some(elsewhere) = elsewhere {
            self.comes_to_wait(elsewhere, ticket)?;
        }
        if self.context().completion.has_words.get() == Some(&true) {
            self.gates.hold(&self.track, self.raw.stream, ticket, &point.timeline, point.ticket)?;
        } else {
            let (timeline, until) = (&point.timeline, point.ticket);
            let waits =
                self.gates.hold_by_call(self.context(), ticket, timeline, until, awaited.is_some())?;
            self.call(waits, ticket, site)?;
        }
        if let Some(elsewhere) = elsewhere {
            self.depend_on(elsewhere, point, ticket, site, is_op);
        }
        if awaited.is_none() && self.stopping.load(Ordering::SeqCst) {
            // This work was held back until after the shutdown.
            self.fail_by_shutdown();
        }
        Ok(())
    }

    /// Returns the device of `event`, if it is another one.
    #[inline]
    pub(crate) fn device_of(&self, event: &PooledEvent) -> Option<&'static Context> {
        let context = event.context();
        (!self.is_on(context)).then_some(context)
    }

    pub(crate) fn is_on(&self, context: &Context) -> bool {
        std::ptr::eq(context, self.context())
    }

    /// Prepares a wait for another device, which must stand between two markers.
    #[cold]
    pub(crate) fn comes_to_wait(&self, awaited: &'static Context, ticket: Ticket) -> Result<(), Refused> {
        alive(awaited)?;
        Ok(self.track.write_marker(ticket - 1)?)
    }

    /// Registers a wait for another device, after it was enqueued.
    #[cold]
    pub(crate) fn depend_on(
        &self,
        awaited: &'static Context,
        point: &Point,
        ticket: Ticket,
        site: Site,
        is_op: bool,
    ) {
        if is_op && let Err(failed) = self.track.write_marker(ticket) {
            // A caller that needs the next marker finds the failure.
            self.context().note_failure(failed);
        }
        // A stream waits only for streams of its own runtime, so this is the one health of that
        // device.
        let Some(followed) = awaited.completion.followed_by(&point.timeline) else { return };
        let health = followed.health();
        self.context().faults.depends_on.add(awaited);
        awaited.add_dependent(Dependent {
            health: health.clone(),
            waiting: Arc::downgrade(&self.track),
            ticket,
            site,
            awaited: Arc::downgrade(&point.timeline),
            until: point.ticket,
            stands_since: None,
            completed: 0,
        });
        // The awaited device may have failed before it knew of this wait.
        if awaited.fault().is_some() {
            awaited.settle_dependents();
        } else if let Some(why) = health.fault() {
            awaited.fail_dependents(health, why);
        }
    }
}
