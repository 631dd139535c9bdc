//! Enqueuing: the path from an op with its accesses to a ticket.
//!
//! The steps are shape rules, room, order check and driver call, in that order. The last three run
//! under one lock.
// Decision: docs/decisions/0005-check-enter-submit-undo.md

use super::added_edges::{Edges, edges_for, ensure, insert_edges, submit_edges, unordered, warn_of};
use super::admission::Full;
use super::backlog::Backlog;
use super::core::{State, StreamCore};
use super::launch_blocking::wait_for_launch;
use super::place::Place;
use super::refusals::{Leaves, mark_for_everybody, mark_for_followers};
use super::request::{Build, HostMemory, Request, Terms};
use super::shape::check_shape;
use crate::delegation::Locked;
use crate::order::{
    self, Asker, Disjoint, Ensured, Entered, Entry, FoundMark, OrderMode, Refused, Site, Use, check_and_enter,
};
use crate::shared::{Capture, DeviceShared, Operand, OwnedOperand, Tracked};
use smallvec::SmallVec;
use std::sync::{Arc, Weak};
use tokio::sync::OwnedSemaphorePermit;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::{Ticket, Until};
use warpline_driver::{
    Claim, Command, DeviceId, DriverError, DriverFailure, Error, ErrorKind, Result, reentry,
};

/// The destination of an op.
enum Sink<'a> {
    /// The stream, with its lock: the driver, or the backlog if there is one.
    Stream(Locked<'a, State>),
    /// The recording of a capture.
    Recording(Arc<Capture>),
}

impl StreamCore {
    /// Enqueues an op on the stream. A refusal may mark what the op would have written, and changes
    /// nothing else.
    #[inline]
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        request: &mut Request<'_>,
        command: impl FnOnce(Ticket) -> Command,
    ) -> Result<Place> {
        let mut command = Some(command);
        self.enqueue_built(request, &mut |ticket| (command.take().expect("an op has one command"))(ticket))
    }

    /// Enqueues an op. Takes the function behind a pointer, so that this long path is compiled
    /// once, not for each kind of command and element in each crate.
    fn enqueue_built(self: &Arc<Self>, request: &mut Request<'_>, command: Build<'_>) -> Result<Place> {
        self.enqueue_inline(request, command)
    }

    /// Enqueues an op by code of the caller's own, without a call through a pointer. For launches,
    /// which have one caller: it saves an eighth of their time. The op is admitted to its sink,
    /// checked there, and put there.
    #[inline]
    pub(crate) fn enqueue_inline(
        self: &Arc<Self>,
        request: &mut Request<'_>,
        command: impl FnOnce(Ticket) -> Command,
    ) -> Result<Place> {
        let mut order = Disjoint::new();
        let disjoint = order::disjoint(request.operands, &mut order).then_some(&order);
        let mut entered = Entered::default();
        let mut edges = Edges::default();
        // Declared before the lock is taken, so that it is dropped after the lock is released:
        // returning room wakes the task that waits for it.
        let mut permit = None;
        let checked = match self.admit(request, disjoint.is_some(), &mut permit) {
            Ok(Sink::Stream(state)) => self.check(request, state, disjoint, &mut entered, &mut edges),
            Ok(Sink::Recording(capture)) => return record(self, &capture, request, command, &mut entered),
            Err(error) => Err(error),
        };
        match checked {
            Ok(state) => self.put(request, state, command, permit, &mut entered, &edges),
            Err(error) => Err(self.not_written(request, error)),
        }
    }

    /// Admits the op: its operands fit together, and its sink is open and has room. On success the
    /// stream's lock is held, unless the sink is a recording.
    #[inline(always)]
    fn admit<'a>(
        self: &'a Arc<Self>,
        request: &Request<'_>,
        disjoint: bool,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Sink<'a>> {
        if self.is_captured()
            && let Some(capture) = self.capture(request.site)?
        {
            self.ensure_open(request.site)?;
            check_shape(self, request, disjoint)?;
            return Ok(Sink::Recording(capture));
        }
        check_shape(self, request, disjoint)?;
        let state = self.lock(request.site, request.holds_turn())?;
        if !matches!(request.terms, Terms::WithoutRoom) {
            *permit = self.permit(request.site)?;
        }
        Ok(Sink::Stream(state))
    }

    /// Checks the op against the histories of its operands, and enters it there. Notes the edges
    /// that it needs. The lock is released while other streams are asked where they stand.
    #[inline(always)]
    fn check<'a>(
        &'a self,
        request: &Request<'_>,
        mut state: Locked<'a, State>,
        disjoint: Option<&Disjoint>,
        entered: &mut Entered,
        edges: &mut Edges,
    ) -> Result<Locked<'a, State>> {
        let (accesses, runtime) = (request.operands, &*self.device.runtime);
        loop {
            let ticket = state.tip.issued + 1;
            let entry = self.entry(request, &state, &edges.ensured, ticket);
            let needs = match check_and_enter(accesses, disjoint, &entry, entered) {
                Ok(()) => return Ok(state),
                Err(Refused::Marked(FoundMark { mark, ends_when_seen })) => {
                    let earlier = order::refusal(&mark);
                    return Err(Error::inherited(&request.site.on(&self.label), earlier, ends_when_seen));
                }
                Err(Refused::Unordered(findings)) if runtime.mode == OrderMode::Deny => {
                    drop(state);
                    return Err(unordered(self, request.site, accesses, &findings));
                }
                Err(Refused::Unordered(findings)) => edges_for(self, request.site, accesses, findings)?,
                Err(Refused::Needs(needs)) => needs,
            };
            if ensure(self, accesses, &needs, edges) {
                drop(state);
                insert_edges(self, request.site, request.holds_turn(), &needs, edges)?;
                state = self.lock(request.site, request.holds_turn())?;
            }
        }
    }

    /// Returns the op as the order check sees it.
    #[inline(always)]
    fn entry<'a>(
        &'a self,
        request: &'a Request<'_>,
        state: &'a State,
        ensured: &'a Ensured,
        ticket: Ticket,
    ) -> Entry<'a> {
        let (stated, marks) = (&state.tip.stated, &state.marks);
        let runtime = &*self.device.runtime;
        let asker = Asker { stream: self.id, stated, observed: &runtime.observed, marks, ensured };
        Entry { asker, ticket, site: &request.site, strictness: runtime.mode.strictness() }
    }

    /// Puts an op that was checked on the stream: its edges, then the op itself.
    #[inline(always)]
    fn put(
        &self,
        request: &mut Request<'_>,
        mut state: Locked<'_, State>,
        command: impl FnOnce(Ticket) -> Command,
        permit: Option<OwnedSemaphorePermit>,
        entered: &mut Entered,
        edges: &Edges,
    ) -> Result<Place> {
        let has_edges = !edges.from.is_empty();
        let claims = (self.device.runtime.mode != OrderMode::Deny).then(|| claims(request));
        let ticket = state.tip.issued + 1;
        if !matches!(request.host, HostMemory::None)
            && let Err(error) = request.host.enter(self, request.site, ticket)
        {
            return Err(self.give_up(request, state, ticket, entered, error));
        }
        let kept = self.keep(request, permit, ticket);
        let led = if has_edges || request.holds_turn() {
            submit_edges(self, &mut state, request.site, edges, request.terms.take_gate(), kept)
        } else {
            Ok(())
        };
        let submitted = match led {
            Ok(()) => {
                if let Some(after) = request.payload.after.take() {
                    state.hold_back(self, after);
                }
                self.submit(&mut state, request.site, command, claims, kept)
            }
            Err(error) => Err(error),
        };
        if has_edges && state.tip.issued == ticket {
            edges.from.iter().for_each(|from| self.know(&mut state.tip, from));
        }
        match submitted {
            Ok(_) => self.complete(request, state, entered),
            Err(error) => Err(self.take_back(request, state, ticket, entered, &error)),
        }
    }

    /// Completes an op that was put on the stream, and reports it. Returns its place, which nothing
    /// borrows, so that it stays in registers.
    #[inline(always)]
    fn complete(
        &self,
        request: &Request<'_>,
        mut state: Locked<'_, State>,
        entered: &Entered,
    ) -> Result<Place> {
        if let Some(backlog) = &mut state.backlog {
            note_operands(backlog, &self.device, request.operands);
        }
        if entered.unmarks {
            order::overwritten(request.operands);
        }
        let place = Place::of_call(self, &state);
        drop(state);
        if !entered.findings.is_empty() {
            warn_of(self, request.site, request.operands, &entered.findings);
        }
        self.submitted(request.site, place.ticket, || (request.kind, request.bytes()));
        if self.device.launches_block {
            wait_for_launch(self, request, place.ticket)?;
        }
        Ok(place)
    }

    /// Keeps what has to stay until the op of `ticket` has run. Returns whether there is anything.
    #[inline(always)]
    fn keep(&self, request: &mut Request<'_>, permit: Option<OwnedSemaphorePermit>, ticket: Ticket) -> bool {
        let mut kept = false;
        if let Some(keep) = request.payload.keep.take() {
            self.progress.timeline.keep_until(ticket, keep, Until::Over);
            kept = true;
        }
        if let Some(permit) = permit {
            self.progress.timeline.keep_until(ticket, Arc::new(permit), Until::Reached);
            kept = true;
        }
        kept
    }

    /// Takes back the entries of an op that gets no host memory, and marks what it would have
    /// written, unless it is to be enqueued again. Returns the error of the call.
    #[cold]
    fn give_up(
        &self,
        request: &Request<'_>,
        mut state: Locked<'_, State>,
        ticket: Ticket,
        entered: &mut Entered,
        error: Error,
    ) -> Error {
        let ensured = Ensured::new();
        let entry = self.entry(request, &state, &ensured, ticket);
        order::undo(request.operands, &entry, std::mem::take(entered));
        let forgotten = state.forgotten.take();
        drop(state);
        forgotten.unwrap_or_default().run();
        if matches!(request.host, HostMemory::Overtaken) { error } else { self.not_written(request, error) }
    }

    /// Takes back the entries of an op that the driver refused, unless it stopped halfway, and
    /// marks what it would have written. Returns the error of the call.
    #[cold]
    fn take_back(
        &self,
        request: &mut Request<'_>,
        mut state: Locked<'_, State>,
        ticket: Ticket,
        entered: &mut Entered,
        error: &DriverError,
    ) -> Error {
        let halfway = matches!(error, DriverError::Halfway(_));
        if !halfway {
            order::undo(
                request.operands,
                &self.entry(request, &state, &Ensured::new(), ticket),
                std::mem::take(entered),
            );
        }
        let forgotten = state.forgotten.take();
        if !halfway {
            self.device.runtime.host_code.forget(Use { stream: self.id, ticket });
        }
        drop(state);
        forgotten.unwrap_or_default().run();
        self.refuse_op(request.operands, self.refused(request.site, error).at(request.site), halfway)
    }

    /// Refuses an op that uses memory of `device`, if that device has failed. Writes that a failed
    /// device left undone have no marks, so no op may read its memory.
    #[cold]
    pub(super) fn needs(&self, site: Site, device: DeviceId, fault: Option<&Error>) -> Result<()> {
        let Some(fault) = fault else { return Ok(()) };
        let failure = DriverFailure::from(fault);
        let text = format!("it needs {device}, which failed: {failure}");
        Err(self.refused(site, &DriverError::Refused(failure.with_text(text))))
    }

    /// Takes room for one more op, if this stream limits work in flight.
    #[inline]
    fn permit(self: &Arc<Self>, site: Site) -> Result<Option<OwnedSemaphorePermit>> {
        self.admission.take_room(self.id).map_err(|Full { in_flight, most }| {
            // The room of an abandoned stream becomes free, and is of no use.
            if let Some(why) = self.progress.timeline.fault() {
                return self.refused(site, &DriverError::Refused(why.into()));
            }
            self.want_marker(self.issued());
            Error::new(
                ErrorKind::Full,
                format!(
                    "{}: the stream allows {most} ops in flight and has {in_flight}; await stream.room() \
                     and enqueue within its permit",
                    site.on(&self.label),
                ),
            )
        })
    }

    /// Marks what a refused op would have written, and notes in the error which op it was.
    #[cold]
    fn not_written(&self, request: &Request<'_>, error: Error) -> Error {
        self.refuse_op(request.operands, error.at(request.site), false)
    }

    /// Refuses an op with an error that was found before it was enqueued.
    #[cold]
    pub(crate) fn refuse(&self, request: &Request<'_>, error: Error) -> Error {
        let elsewhere = self.capture(request.site).err();
        self.not_written(request, elsewhere.unwrap_or(error))
    }

    /// Counts a refused op, and marks what it would have written.
    #[cold]
    pub(crate) fn refuse_op(&self, operands: &[Operand<'_>], error: Error, everybodys: bool) -> Error {
        self.count_refusal(&error);
        self.mark(operands, error, everybodys)
    }

    /// Counts a refused op or allocation, unless it is a step of a capture.
    #[cold]
    pub(crate) fn count_refusal(&self, error: &Error) {
        if !self.is_captured() {
            self.device.tally.refuses(error);
        }
    }

    /// Marks what a refused call on this stream would have written, if such an error leaves a mark.
    /// Returns the error that ends the mark when it is looked at. `everybodys`: true if the bytes
    /// may have changed, so that no op may read them.
    #[cold]
    pub(crate) fn mark(&self, operands: &[Operand<'_>], error: Error, everybodys: bool) -> Error {
        if self.is_captured() {
            // A refused step of a capture fails the capture.
            return error;
        }
        let written = |operand: &&Operand<'_>| operand.access.writes() && !operand.range.is_empty();
        let mut written: SmallVec<[&Operand<'_>; 2]> = operands.iter().filter(written).collect();
        let everybodys = everybodys || self.device.runtime.mode == OrderMode::Wait;
        match Leaves::of(&error, !written.is_empty(), everybodys) {
            Leaves::Nothing => error,
            Leaves::OnOtherDevices => {
                written.retain(|operand| !Arc::ptr_eq(&operand.allocation.device, &self.device));
                mark_for_everybody(self.id, &written, &error);
                error
            }
            Leaves::ForEverybody => {
                mark_for_everybody(self.id, &written, &error);
                error
            }
            Leaves::ForFollowers if reentry::holds_a_device() => error,
            Leaves::ForFollowers => {
                let mut state = self.state.lock();
                if state.tip.closed {
                    return error;
                }
                let mark = mark_for_followers(self.id, &mut state.marks, &written, &error);
                self.line.change_version(&mut state.tip);
                drop(state);
                error.ending(mark)
            }
        }
    }

    /// Returns whether an edge from `other` is possible: both are of one runtime.
    pub(crate) fn can_wait_for(&self, other: &StreamCore) -> bool {
        Arc::ptr_eq(&self.device.runtime, &other.device.runtime)
    }
}

/// Returns the absolute bytes that the operands touch, and the op's own claims.
#[cold]
fn claims(request: &Request<'_>) -> Box<[Claim]> {
    let claim = |operand: &Operand<'_>| Claim {
        range: operand.range.shifted(operand.allocation.ptr.0),
        exclusive: operand.access.writes(),
    };
    let touched = request.operands.iter().filter(|operand| !operand.range.is_empty()).map(claim);
    touched.chain(request.effect.claims().iter().copied()).collect()
}

/// Notes the operands of an op that is in the backlog.
#[cold]
fn note_operands(backlog: &mut Backlog, device: &Arc<DeviceShared>, operands: &[Operand<'_>]) {
    let remembered = |operand: &Operand<'_>| {
        let Operand { allocation, range, access } = *operand;
        let allocation: Weak<dyn Tracked> = Arc::downgrade(allocation) as _;
        OwnedOperand { allocation, range, access }
    };
    let devices = operands.iter().map(|operand| &operand.allocation.device);
    let others = devices.filter(|other| !Arc::ptr_eq(other, device));
    let others = others.map(|other| (other.id, other.health.clone())).collect();
    backlog.note_operands(operands.iter().map(remembered).collect(), others);
}

/// Admits an op to a capture, checks it there, and puts it there. This path is not inlined.
#[cold]
fn record(
    core: &Arc<StreamCore>,
    capture: &Capture,
    request: &mut Request<'_>,
    command: impl FnOnce(Ticket) -> Command,
    entered: &mut Entered,
) -> Result<Place> {
    let work = capture.admit(core, request, || command(0));
    let checked = work.and_then(|work| capture.check(core, request, entered).map(|()| work));
    match checked {
        Ok(work) => Ok(capture.put(core, request, work, entered)),
        Err(error) => Err(core.not_written(request, error)),
    }
}

/// Enqueuing without operands.
impl StreamCore {
    /// Enqueues something that touches no device memory: a host function, a time stamp.
    pub(crate) fn enqueue_plain(
        self: &Arc<Self>,
        kind: &'static str,
        site: Site,
        command: impl FnOnce(Ticket) -> Command,
    ) -> Result<Place> {
        self.enqueue(&mut Request::new(kind, site, &[]), command)
    }
}
