//! Places on a stream, for tasks to await and other streams to wait for.
//!
//! # Places are returned in registers
//! Many functions on the path of an op return a [`Place`]. A value that is written to memory in
//! parts and then read back as a whole stalls the processor for as long as an atomic operation
//! takes. So on the path of a launch these functions are inlined, some by `#[inline(always)]`, and
//! nothing borrows a place that is about to be returned. Link-time optimisation could inline them
//! too, but only the profile of the final program can ask for it. A ticket without its clock would
//! fit in a register anyway. But the clock of an older ticket is not kept, so an await could not
//! say afterwards what the host has observed.

use super::coming::Coming;
use super::core::{State, StreamCore};
use crate::order::{Clock, Marks, Site, Use};
use crate::shared::CaptureToken;
use crate::shared::panics::{Concern, Epoch, Reached};
use std::sync::Arc;
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{DeviceId, DriverError, DriverEvent, Error, Result};

/// A place on a stream, with the order before it.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) ticket: Ticket,
    /// The stated clock at the place. It changes with tickets alone, so the ticket identifies it.
    pub(crate) clock: Clock,
    /// True if the place is that of the call which took the ticket. A `Pending` of it then keeps
    /// the ticket's marker due.
    pub(crate) keeps_marker_due: bool,
    /// True if the place is in a capture, where nothing runs. The ticket is then the number of a
    /// step.
    pub(crate) captured: bool,
}

impl Place {
    #[inline]
    pub(crate) fn at(ticket: Ticket, clock: Clock) -> Self {
        Place { ticket, clock, keeps_marker_due: false, captured: false }
    }

    pub(crate) fn captured(number: Ticket) -> Self {
        Place { captured: true, ..Place::at(number, Clock::default()) }
    }

    /// Returns where the stream stands, for a caller that has its lock.
    #[inline]
    pub(super) fn at_tip(state: &State) -> Self {
        Place::at(state.tip.issued, state.tip.stated.clone())
    }

    /// Returns the place of the call that took the newest ticket, and keeps the ticket's marker due
    /// until the place's `Pending` is dropped. The caller has the lock: of two threads, the one
    /// with the newer ticket notes that later.
    #[inline(always)]
    pub(super) fn of_call(core: &StreamCore, state: &State) -> Self {
        let place = Place::at_tip(state);
        core.progress.note_awaited(place.ticket);
        Place { keeps_marker_due: true, ..place }
    }

    /// Notes that no `Pending` is made for this place.
    pub(crate) fn is_not_awaited(&self, core: &StreamCore) {
        if self.keeps_marker_due {
            core.progress.note_passed_on(self.ticket);
        }
    }

    /// Returns where the stream stands, for an await of everything so far.
    pub(crate) fn here(core: &StreamCore) -> Self {
        let mut state = core.state.lock();
        core.line.forget_observed(&mut state.tip);
        core.progress.stand_at(state.tip.issued);
        Place::at_tip(&state)
    }

    /// Returns the error of a place on `core` that comes after a host function that panicked.
    #[inline]
    pub(crate) fn panic_before(&self, core: &StreamCore, epoch: Epoch, concern: Concern) -> Option<Error> {
        let Place { ticket, clock, .. } = self;
        let reached = Reached { ticket: *ticket, clock, epoch, concern };
        core.device.runtime.panics.before(core.id, &core.label, &reached)
    }

    /// Notes that the host has seen `core` pass this place.
    #[inline]
    pub(crate) fn observe(&self, core: &StreamCore) {
        let used = Use { stream: core.id, ticket: self.ticket };
        let observed = &core.device.runtime.observed;
        // A stream that is gone counts as covered. What it had waited for is not observed by that.
        if !observed.covers(used) || core.is_closed() || core.line.is_unobserved(&self.clock) {
            observed.observe(used, &self.clock);
            // After that, since a ticket can be covered before all that is before it.
            core.line.note_observed(self.ticket);
        }
    }
}

/// Everything a wait needs to know about the other stream.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) device: DeviceId,
    pub(crate) used: Use,
    pub(crate) version: u64,
    pub(crate) stated: Clock,
    /// The known clock, if it is not the stated one.
    pub(crate) known: Option<Clock>,
    pub(crate) marks: Marks,
    pub(crate) event: Option<DriverEvent>,
    /// The event that the driver records once the work before it was handed over.
    pub(crate) coming: Option<Arc<Coming>>,
    /// The capture that the place is in, which may have ended. Stream, ticket and clock are then
    /// those of the capture.
    pub(crate) capture: Option<Arc<CaptureToken>>,
}

impl Snapshot {
    pub(crate) fn known(&self) -> &Clock {
        self.known.as_ref().unwrap_or(&self.stated)
    }

    /// Returns where `core` stands, for other streams to wait for. The driver records an event if
    /// those streams wait `by_event`, unless `implied` returns that they need not wait.
    pub(crate) fn of(
        core: &StreamCore,
        by_event: bool,
        implied: impl FnOnce(Use) -> bool,
    ) -> Result<Self, DriverError> {
        Self::under(core, &mut core.state.lock(), by_event, implied)
    }

    /// Like [`of`](Self::of), for callers that may also await the result.
    pub(crate) fn to_await(
        core: &StreamCore,
        implied: impl FnOnce(Use) -> bool,
    ) -> Result<Self, DriverError> {
        let mut state = core.state.lock();
        core.progress.stand_at(state.tip.issued);
        Self::under(core, &mut state, true, implied)
    }

    /// Returns where `core` stands, after waiting for foreign work that is being enqueued.
    ///
    /// # Errors
    /// The errors of [`wait_for_turn`](StreamCore::wait_for_turn), and those of the driver.
    #[cold]
    pub(super) fn behind_foreign_work(core: &StreamCore, site: Site) -> Result<Self> {
        let mut state = core.wait_for_turn(core.state.lock(), site)?;
        Self::under(core, &mut state, true, |_| false).map_err(|error| core.refused(site, &error))
    }

    fn under(
        core: &StreamCore,
        state: &mut State,
        by_event: bool,
        implied: impl FnOnce(Use) -> bool,
    ) -> Result<Self, DriverError> {
        // A place noted during foreign work stands before it, because it is not known how much of
        // that work is on the stream yet.
        let before_foreign = state.foreign.as_ref().and_then(|foreign| foreign.newest_before());
        let ticket = before_foreign.unwrap_or(state.tip.issued);
        let used = Use { stream: core.id, ticket };
        // Edges that the runtime added before foreign work are behind that place.
        let known = if before_foreign.is_some() { None } else { core.line.known_beyond(&state.tip) };
        // `implied` takes a lock, so it is not asked about a place that no clock can have.
        let is_new = core.line.see(ticket, &mut state.tip);
        let (mut event, mut coming) = (None, None);
        // A wait hands on marks, also if its order holds already, and the backlog may leave some.
        let may_mark = state.has_backlog();
        if may_mark || !core.progress.timeline.reached(used.ticket) && (is_new || !implied(used)) {
            if !by_event && core.device.signalled && state.foreign.is_none() {
                // Now, since a marker behind later work would make the waiter wait for that too.
                state.write_newest_marker();
            }
            match &mut state.backlog {
                Some(backlog) => coming = Some(backlog.record()?),
                None if by_event => event = state.driver.record()?,
                None => {}
            }
        }
        Ok(Snapshot {
            timeline: core.progress.timeline.clone(),
            device: core.device.id,
            used,
            version: core.line.version(),
            stated: state.tip.stated.clone(),
            known,
            marks: state.marks.clone(),
            event,
            coming,
            capture: None,
        })
    }

    /// Returns the same place, with its event if that was recorded meanwhile. What was left
    /// unwritten before it has its marks by then.
    pub(super) fn with_recorded_event(mut self) -> Self {
        match self.coming.as_ref().and_then(|coming| coming.recorded()) {
            Some(Ok(event)) => (self.event, self.coming) = (event, None),
            // No event is needed any more.
            Some(Err(_)) if self.timeline.reached(self.used.ticket) => self.coming = None,
            _ => {}
        }
        self
    }

    /// Returns true if it is known what the work before the place left unwritten.
    pub(super) fn is_told(&self) -> bool {
        self.coming.as_ref().is_none_or(|coming| coming.is_recorded())
    }
}
