//! Waits of a stream: those that the program states, and edges that the runtime adds.
//!
//! # Rules
//! 1. A stated wait takes a ticket if it changes the stated clock, whether or not the driver has to
//!    wait. The program sees nothing else of it.
//! 2. An edge that the runtime adds takes no ticket. It is part of the op that follows under the
//!    same hold of the lock, and known from that op's ticket on.
//! 3. Before the driver gets anything here, the ticket before gets its marker if its `Pending` is
//!    held. So awaiting that ticket waits for nothing behind it.
//! 4. A driver waits only for streams of its own backend. A wait for another backend's stream is
//!    held back on the host until that stream has reached the place (`backlog.rs`).
//! 5. A stated wait hands on the marks of what the other stream did not write, even if it is
//!    refused because of that stream or its device, or by the driver. The program has stated the
//!    order, and may not look at that refusal.
// Decision: docs/decisions/0003-closed-stream-is-ordered-before-later-work.md
// Decision: docs/decisions/0010-wait-mode-edges-are-not-stated.md
// Decision: docs/decisions/0053-waits-between-backends-are-held-back.md

use super::backlog::{After, Elsewhere};
use super::coming::{Coming, Watched};
use super::core::{State, StreamCore};
use super::host_waits::wait_if_borrowed;
use super::line::Tip;
use super::place::{Place, Snapshot};
use crate::memory::ReuseOrder;
use crate::order::{Site, StreamId, Use};
use crate::shared::Allocation;
use std::sync::Arc;
use warpline_driver::{
    Command, DriverError, DriverFailure, Error, ErrorKind, Point, Result, Submission, op_events,
};

/// The outcome of a wait.
struct Waited {
    place: Place,
    /// True if the driver got a wait. False where the order held already.
    by_driver: bool,
}

/// The effect of an accepted wait on its stream.
struct Ordered {
    /// True if the wait took a ticket. False where the stated clock implied it.
    took_ticket: bool,
    by_driver: bool,
}

impl StreamCore {
    /// Orders later work on this stream after `from`, because the program says so.
    ///
    /// The wait takes a ticket if it changes the stated clock, which the program alone decides. The
    /// driver gets no wait if `from` is done, or if this stream's known clock implies it, unless
    /// the backlog before `from` may still leave marks. A wait for a closed stream changes no
    /// clock, and takes a ticket each time.
    fn wait_at(&self, state: &mut State, site: Site, from: &Snapshot) -> Result<Waited> {
        if from.used.stream == self.id {
            return Ok(Waited { place: Place::at_tip(state), by_driver: false });
        }
        self.line.forget_observed(&mut state.tip);
        let ordered = self.order_after(state, site, from);
        // A refused wait hands marks on as well: what `from` was to write is missing either way.
        let mut changed = state.marks.merge(&from.marks);
        if let Some(coming) = &from.coming {
            changed |= coming.hand_marks_to(&mut state.marks);
        }
        if let Ok(Ordered { took_ticket: true, .. }) = ordered {
            changed |=
                self.line.add_wait(&mut state.tip, self.id, from.used, &from.stated, from.known.as_ref());
        }
        if changed {
            self.line.change_version(&mut state.tip);
        }
        let Ordered { took_ticket, by_driver } = ordered?;
        state.tip.note_wait((from.used.stream, from.used.ticket, from.version));
        let place = if took_ticket { Place::of_call(self, state) } else { Place::at_tip(state) };
        Ok(Waited { place, by_driver })
    }

    /// Takes over the marks that `other` carries now, after a wait that was refused before it had a
    /// place. Called while no stream's lock is held.
    #[cold]
    fn take_marks_of(&self, other: &StreamCore) {
        let marks = other.state.lock().marks.clone();
        let mut state = self.state.lock();
        if !state.tip.closed && state.marks.merge(&marks) {
            self.line.change_version(&mut state.tip);
        }
    }

    /// Enqueues the wait for `from`, unless the stated clock implies it.
    fn order_after(&self, state: &mut State, site: Site, from: &Snapshot) -> Result<Ordered> {
        let observed = &self.device.runtime.observed;
        let is_implied = state.tip.stated.covers(from.used) || observed.covers(from.used);
        if is_implied && !observed.is_closed(from.used.stream) {
            // Marks of a backlog may be yet to come. A borrowed stream has waited for them.
            if let Some(coming) = &from.coming
                && !self.admission.is_borrowed()
                && state.ensure_not_lost().is_ok()
                && coming.or_follow(|| state.follower()).is_none()
            {
                let waits = self.wait_for_marks(state, site, from, coming, true);
                waits.map_err(|error| self.refused(site, &error))?;
                // Places noted from now on have those marks too, although no ticket was taken.
                self.line.change_version(&mut state.tip);
            }
            return Ok(Ordered { took_ticket: false, by_driver: false });
        }
        let done = observed.covers(from.used)
            || self.line.knows_by_edges(&state.tip, from.used)
            || from.timeline.reached(from.used.ticket);
        let point = if done && from.is_told() { Ok(None) } else { self.point_of(state, from) };
        let by_driver = matches!(point, Ok(Some(_)));
        let taken = match point {
            Ok(Some(point)) => self.submit(state, site, |_| Command::Wait(point), None, false).map(drop),
            Ok(None) => self.take_ticket(state, site),
            Err(error) => Err(error),
        };
        taken.map_err(|error| self.refused(site, &error))?;
        Ok(Ordered { took_ticket: true, by_driver })
    }

    /// Returns the point that the driver waits for, given a place that was not reached. The next
    /// submission has to be the wait for it. That wait is held back if its event has not been
    /// recorded yet. Returns `None` if the place has been reached since, where that can be told.
    fn point_of(&self, state: &mut State, from: &Snapshot) -> Result<Option<Point>, DriverError> {
        if self.is_elsewhere(from) {
            return self.point_elsewhere(state, from);
        }
        if from.event.is_none()
            && from.coming.is_none()
            && let Some(why) = from.timeline.fault()
        {
            // The other stream was abandoned, so this place never counts as reached.
            return Err(DriverError::Refused(why.to_string().into()));
        }
        let mut point = self.point_at(from);
        if let Some(coming) = &from.coming {
            match coming.or_follow(|| state.follower()) {
                Some(event) => point.event = event?,
                None => state.hold_back(self, After::Event(coming.clone())),
            }
        }
        Ok(Some(point))
    }

    /// Returns true if `from` is on a device of another backend.
    pub(super) fn is_elsewhere(&self, from: &Snapshot) -> bool {
        from.device.backend() != self.device.id.backend()
    }

    /// Returns the stream of `from`, to be watched. `None` only if it has retired and the event, if
    /// one had to be held back, was recorded.
    pub(super) fn watched(&self, from: &Snapshot) -> Option<Watched> {
        let of_event = || Some(from.coming.as_ref()?.stream().clone());
        let live = self.device.runtime.with_stream(from.used.stream, |stream| stream.as_watched());
        live.or_else(of_event)
    }

    /// Makes sure that a marker for `from` will be written, on a stream that has not retired.
    pub(super) fn want_marker_at(&self, from: &Snapshot) {
        self.device.runtime.with_stream(from.used.stream, |other| other.want_marker(from.used.ticket));
    }

    /// Returns the point to wait for, like [`point_of`](Self::point_of), for a place on a device of
    /// another backend. The wait is held back until the place is reached.
    #[cold]
    fn point_elsewhere(&self, state: &mut State, from: &Snapshot) -> Result<Option<Point>, DriverError> {
        let ticket = from.used.ticket;
        let Some(stream) = self.watched(from) else {
            // It has retired, so its work has finished, perhaps just now, or never will run.
            if from.timeline.reached(ticket) && from.is_told() {
                return Ok(None);
            }
            let text = format!("it needs a stream of {} that ended before its work", from.device);
            return Err(DriverError::Refused(text.into()));
        };
        if let Some(fault) = stream.fault()
            && !from.timeline.reached(ticket)
        {
            let failure = DriverFailure::from(fault);
            let text = format!("it needs {}, which failed: {failure}", from.device);
            return Err(DriverError::Refused(failure.with_text(text)));
        }
        // An event was recorded without a marker. The lock of the other stream is only tried.
        self.want_marker_at(from);
        if let Some(coming) = &from.coming {
            // If it is recorded after the place is reached, that hands the stream over.
            let _ = coming.or_follow(|| state.follower());
        }
        let elsewhere = Elsewhere { stream, ticket, coming: from.coming.clone() };
        state.hold_back(self, After::Elsewhere(elsewhere));
        Ok(Some(Point { timeline: from.timeline.clone(), ticket, event: None }))
    }

    fn point_at(&self, from: &Snapshot) -> Point {
        if from.event.is_none() && from.coming.is_none() && self.device.signalled {
            // The driver recorded no event, so the host ends the wait once it knows that the ticket
            // is reached.
            self.want_marker_at(from);
        }
        Point { timeline: from.timeline.clone(), ticket: from.used.ticket, event: from.event.clone() }
    }

    /// Takes a ticket for a wait whose order holds already. A device that completes tickets by
    /// markers is not notified: the next marker stands for this ticket too, unless each op has its
    /// own.
    pub(crate) fn take_ticket(&self, state: &mut State, site: Site) -> Result<(), DriverError> {
        if !self.device.signalled || self.progress.driver().signals_every_op() {
            return self.submit(state, site, |_| Command::Elided, None, false).map(drop);
        }
        state.ensure_not_lost()?;
        state.before_submit(&self.progress);
        state.tip.issued += 1;
        self.progress.note_issued(state.tip.issued);
        Ok(())
    }

    /// Makes the driver wait for `from` before the next ticket's work, which has to follow under
    /// the same hold of the lock. The wait takes no ticket: where the runtime adds such an edge
    /// depends on timing, and tickets do not.
    ///
    /// The edge is known from that ticket on: the caller merges it then ([`know`](Self::know)).
    #[cold]
    pub(crate) fn submit_edge(
        &self,
        state: &mut State,
        site: Site,
        from: &Snapshot,
    ) -> Result<(), DriverError> {
        if from.timeline.reached(from.used.ticket) && from.is_told() {
            return Ok(());
        }
        match self.point_of(state, from)? {
            Some(point) => self.submit_point(state, site, point),
            None => Ok(()),
        }
    }

    /// Holds later work back until it is known what the work before `from` left unwritten. This
    /// stream is ordered after that work already, so the driver gets nothing. Takes no ticket.
    #[cold]
    pub(super) fn wait_for_marks(
        &self,
        state: &mut State,
        site: Site,
        from: &Snapshot,
        coming: &Arc<Coming>,
        stated: bool,
    ) -> Result<(), DriverError> {
        state.hold_back(self, After::Marks { coming: coming.clone(), stated });
        let point = Point { timeline: from.timeline.clone(), ticket: from.used.ticket, event: None };
        self.submit_point(state, site, point)
    }

    /// Like [`submit_edge`](Self::submit_edge), for a point that the host opens.
    #[cold]
    pub(super) fn submit_point(
        &self,
        state: &mut State,
        site: Site,
        point: Point,
    ) -> Result<(), DriverError> {
        if state.backlog.is_none() && point.timeline.reached(point.ticket) {
            return Ok(());
        }
        // A task that awaits the newest ticket does not wait for the edge.
        state.before_submit(&self.progress);
        let (ticket, command) = (state.tip.issued + 1, Command::Edge(point));
        let submission = Submission { ticket, site, command, claims: None, caller: None };
        if let Some(backlog) = &mut state.backlog {
            return backlog.submit(submission);
        }
        // SAFETY: a wait names no address.
        unsafe { self.progress.driver().submit(submission) }
    }

    /// Notes that the newest ticket's work is after `from`, by an edge that the runtime added.
    #[cold]
    pub(crate) fn know(&self, tip: &mut Tip, from: &Snapshot) {
        self.line.add_edge(tip, self.id, from.used, from.known());
    }

    /// Calls [`submitted`](Self::submitted) for a wait for `from`, if the driver got one.
    #[inline]
    fn waited(&self, site: Site, waited: Result<Waited>, from: Use) -> Result<Place> {
        let Waited { place, by_driver } = waited?;
        if by_driver {
            self.submitted(site, place.ticket, || ("wait", 0));
            op_events::op_waits(place.ticket, from, || (self.device.runtime.number, self.id.number()));
        }
        Ok(place)
    }
}

/// The waits of a program.
impl StreamCore {
    #[inline(always)]
    pub(crate) fn wait_stream(self: &Arc<Self>, site: Site, other: &Arc<StreamCore>) -> Result<Place> {
        if self.is_captured() || other.is_captured() {
            let there = other.capture_token(site)?;
            if let Some(place) = self.wait_captured(site, there.as_ref(), |there| there.snapshot(other))? {
                return Ok(place);
            }
        }
        self.wait_for_stream(site, other)
    }

    /// Waits for the other stream's own end, whether or not the stream is captured. Always inline
    /// up to the point where there is clearly nothing to do, so that the place stays in registers.
    #[inline(always)]
    fn wait_for_stream(self: &Arc<Self>, site: Site, other: &Arc<StreamCore>) -> Result<Place> {
        // Load `issued` first and `version` second: the version is then at least as new as the
        // ticket.
        let issued = other.issued();
        let version = other.line.version();
        // No wait can have been made where no snapshot stands.
        if issued <= other.line.seen_at() {
            let state = self.lock(site, false)?;
            if !other.is_closed() && state.tip.waited_lately((other.id, issued, version)) {
                return Ok(Place::at_tip(&state));
            }
        }
        self.wait_for_stream_now(site, other)
    }

    #[inline(never)]
    fn wait_for_stream_now(self: &Arc<Self>, site: Site, other: &Arc<StreamCore>) -> Result<Place> {
        if Arc::ptr_eq(self, other) {
            let state = self.lock(site, false)?;
            return Ok(Place::at_tip(&state));
        }
        self.ensure_open(site)?;
        self.check_can_wait(site, other)?;
        let by_event = self.device.id.backend() == other.device.id.backend();
        let snapshot = Snapshot::of(other, by_event, |used| self.line.knows(used));
        let snapshot = snapshot.map_err(|error| {
            self.take_marks_of(other);
            self.refused(site, &error)
        })?;
        self.wait_snapshot(site, &snapshot)
    }

    pub(crate) fn check_can_wait(&self, site: Site, other: &StreamCore) -> Result<()> {
        if self.can_wait_for(other) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::DeviceMismatch,
            format!(
                "{}: stream \"{}\" is on {} of another runtime, and an edge cannot start there; await \
                 it on the host instead",
                site.on(&self.label),
                other.label,
                other.device.id,
            ),
        ))
    }

    /// Waits for every open stream that used this memory or was refused to write it. Then waits for
    /// the closed ones, which the caller cannot wait for by name.
    pub(crate) fn wait_for_uses(self: &Arc<Self>, site: Site, allocation: &Allocation) -> Result<Place> {
        let runtime = &*self.device.runtime;
        let (users, marked_by, mut some_are_closed): (Vec<StreamId>, Vec<StreamId>, bool) = {
            let book = allocation.ledger.open();
            let users = book.uses().iter().map(|used| used.stream).collect();
            (users, book.marked_by().collect(), book.outlived())
        };
        let (mut open, mut closed) = (Vec::new(), Vec::new());
        for id in users.into_iter().filter(|id| *id != self.id) {
            match runtime.stream(id) {
                Some(other) if !runtime.observed.is_closed(id) => open.push(other),
                other => {
                    some_are_closed = true;
                    closed.extend(other);
                }
            }
        }
        open.extend(
            marked_by.into_iter().filter_map(|id| runtime.stream(id)).filter(|other| !other.is_closed()),
        );
        let mut place = Ok(Place::here(self));
        for (at, other) in open.iter().enumerate() {
            // Also after a refusal: each wait hands on marks.
            let next = self.wait_for_stream(site, other);
            if at + 1 < open.len() || some_are_closed || place.is_err() {
                next.iter().for_each(|place| place.is_not_awaited(self));
            }
            place = place.and(next);
        }
        let place = place?;
        if some_are_closed { self.wait_for_closed(site, &closed) } else { Ok(place) }
    }

    /// Orders later work after the closed streams that have not drained. Always takes a ticket.
    #[cold]
    fn wait_for_closed(self: &Arc<Self>, site: Site, closed: &[Arc<StreamCore>]) -> Result<Place> {
        let refused = |error| self.refused(site, &error);
        let mut edges: Vec<Snapshot> = Vec::new();
        // The newest user of memory is mostly after the ones before it. So many need one edge.
        for other in closed.iter().rev().filter(|other| self.can_wait_for(other)) {
            let end = Use { stream: other.id, ticket: other.issued() };
            if self.line.knows(end) || edges.first().is_some_and(|from| from.known().covers(end)) {
                continue;
            }
            let from = Snapshot::of(other, true, |_| false).map_err(refused)?;
            wait_if_borrowed(self, site, &from)?;
            edges.push(from);
        }
        let mut state = self.lock(site, false)?;
        for from in &edges {
            self.submit_edge(&mut state, site, from).map_err(refused)?;
        }
        // Behind edges it has to be work, so that awaiting it waits for the edges.
        let taken = if edges.is_empty() {
            self.take_ticket(&mut state, site)
        } else {
            self.submit(&mut state, site, |_| Command::Elided, None, false).map(drop)
        };
        taken.map_err(refused)?;
        edges.iter().for_each(|from| self.know(&mut state.tip, from));
        Ok(Place::of_call(self, &state))
    }

    /// Makes this stream wait for a place on another stream that was noted before.
    pub(crate) fn wait_snapshot(self: &Arc<Self>, site: Site, from: &Snapshot) -> Result<Place> {
        if self.is_captured() || from.capture.is_some() {
            let there = from.capture.as_ref();
            if there.is_some_and(|there| there.has_ended()) {
                return Err(crate::shared::captured(
                    site,
                    self,
                    "the event was recorded in a capture that has ended; record one after a launch",
                ));
            }
            let place = self.wait_captured(site, there, |_| from.clone())?;
            if let Some(place) = place {
                return Ok(place);
            }
        }
        wait_if_borrowed(self, site, from)?;
        let mut locked = self.lock(site, false)?;
        let state: &mut State = &mut locked;
        let place = (from.used.stream, from.used.ticket, from.version);
        if state.tip.waited_lately(place) && !self.device.runtime.observed.is_closed(from.used.stream) {
            return Ok(Place::at_tip(state));
        }
        let place = self.wait_at(state, site, from);
        drop(locked);
        self.waited(site, place, from.used)
    }
}

impl ReuseOrder for StreamCore {
    fn after(&self, used: Use) -> bool {
        self.line.knows(used)
    }

    fn finished(&self, used: Use) -> bool {
        self.device.runtime.is_finished(used)
    }

    fn can_wait(&self, used: Use) -> bool {
        self.device.runtime.stream(used.stream).is_none_or(|other| other.fault().is_none())
    }

    fn ends(&self, used: Use) -> bool {
        self.device.runtime.ends_by_itself(used)
    }

    fn held_up_by(&self, used: Use) -> Option<String> {
        self.device.runtime.host_code_before(used).map(|code| code.to_string())
    }
}
