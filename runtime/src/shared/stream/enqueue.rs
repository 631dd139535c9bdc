//! Enqueuing: the path from an op with its accesses to a ticket.
//!
//! The steps are shape rules, room, order check and driver call, in that order. The last three run
//! under one lock.
// Decision: docs/decisions/0005-check-enter-submit-undo.md

use super::added_edges::{Edges, edges_for, ensure, insert_edges, submit_edges, unordered, warn_of};
use super::core::{State, StreamCore};
use super::launch_blocking::wait_for_launch;
use super::op::{Build, Op, Peers};
use super::place::Place;
use crate::delegation::Locked;
use crate::order::{
    self, Asker, Disjoint, Ensured, Entered, Entry, FoundMark, MAX_ACCESSES, Mark, OrderMode, Refused, Site,
    check_and_enter, leaves_a_mark, overlap_within,
};
use crate::shared::{Allocation, Operand};
use smallvec::SmallVec;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::{Ticket, Until};
use warpline_driver::{
    Claim, Command, DeviceId, DriverError, DriverFailure, Error, ErrorKind, Result, reentry,
};

/// The maximum number of operands of one op.
const MAX_OPERANDS: usize = 255;

impl StreamCore {
    /// Enqueues an op on the stream. A refusal may mark what the op would have written, and changes
    /// nothing else.
    #[inline]
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        op: &mut Op<'_>,
        command: impl FnOnce(Ticket) -> Command,
    ) -> Result<Place> {
        let mut command = Some(command);
        self.enqueue_built(op, &mut |ticket| (command.take().expect("an op has one command"))(ticket))
    }

    /// Enqueues an op. Takes the function behind a pointer, so that this long path is compiled
    /// once, not for each kind of command and element in each crate.
    fn enqueue_built(self: &Arc<Self>, op: &mut Op<'_>, command: Build<'_>) -> Result<Place> {
        self.enqueue_inline(op, command)
    }

    /// Enqueues an op by code of the caller's own, without a call through a pointer. For launches,
    /// which have one caller: it saves an eighth of their time.
    #[inline]
    pub(crate) fn enqueue_inline(
        self: &Arc<Self>,
        op: &mut Op<'_>,
        command: impl FnOnce(Ticket) -> Command,
    ) -> Result<Place> {
        if self.is_captured() {
            match self.capture(op.site) {
                Ok(Some(capture)) => {
                    let mut command = Some(command);
                    let build: Build<'_> = &mut |ticket| (command.take().expect("one command"))(ticket);
                    return capture.enqueue(self, op, build).map(Place::captured);
                }
                Ok(None) => {}
                Err(error) => return Err(self.not_written(op, error)),
            }
        }
        // Nothing borrows the result, so that a place stays in registers.
        let place = match self.try_enqueue(op, command) {
            Ok(place) => place,
            Err(error) => return Err(self.not_written(op, error)),
        };
        self.submitted(op.site, place.ticket, || {
            let touched = || op.operands.iter().map(|operand| operand.range.len_bytes()).sum();
            (op.kind, if op.moved > 0 { op.moved } else { touched() })
        });
        if self.device.launches_block {
            wait_for_launch(self, op, place.ticket)?;
        }
        Ok(place)
    }

    /// Admits the op to the stream, checks it, and puts it on the stream.
    #[inline]
    fn try_enqueue(
        self: &Arc<Self>,
        op: &mut Op<'_>,
        command: impl FnOnce(Ticket) -> Command,
    ) -> Result<Place> {
        if let Some(error) = op.refused.take() {
            return Err(error);
        }
        let mut order = Disjoint::new();
        let disjoint = order::disjoint(op.operands, &mut order).then_some(&order);
        self.check_shape(op, disjoint.is_some())?;
        // Declared before the lock is taken, so that it is dropped after the lock is released:
        // returning room wakes the task that waits for it.
        let permit;
        let state = self.lock(op.site, op.turn)?;
        permit = if op.without_permit { None } else { self.permit(op.site)? };
        let (mut entered, mut edges) = (Entered::default(), Edges::default());
        let state = self.check(op, state, disjoint, &mut entered, &mut edges)?;
        self.put(op, state, command, permit, &mut entered, &edges)
    }

    /// Checks the op against the histories of its operands, and enters it there. Notes the edges
    /// that it needs. The lock is released while other streams are asked where they stand.
    #[inline(always)]
    fn check<'a>(
        &'a self,
        op: &Op<'_>,
        mut state: Locked<'a, State>,
        disjoint: Option<&Disjoint>,
        entered: &mut Entered,
        edges: &mut Edges,
    ) -> Result<Locked<'a, State>> {
        let (accesses, runtime) = (op.operands, &*self.device.runtime);
        loop {
            let ticket = state.issued + 1;
            let entry = self.entry(op, &state, &edges.ensured, ticket);
            let needs = match check_and_enter(accesses, disjoint, &entry, entered) {
                Ok(()) => return Ok(state),
                Err(Refused::Marked(FoundMark { mark, ends_when_seen })) => {
                    let earlier = order::refusal(&mark);
                    return Err(Error::inherited(&op.site.on(&self.label), earlier, ends_when_seen));
                }
                Err(Refused::Unordered(findings)) if runtime.mode == OrderMode::Deny => {
                    drop(state);
                    return Err(unordered(self, op.site, accesses, &findings));
                }
                Err(Refused::Unordered(findings)) => edges_for(self, op.site, accesses, findings)?,
                Err(Refused::Needs(needs)) => needs,
            };
            if ensure(self, accesses, &needs, edges) {
                drop(state);
                insert_edges(self, op.site, op.turn, &needs, edges)?;
                state = self.lock(op.site, op.turn)?;
            }
        }
    }

    /// Returns the op as the order check sees it.
    #[inline(always)]
    fn entry<'a>(
        &'a self,
        op: &'a Op<'_>,
        state: &'a State,
        ensured: &'a Ensured,
        ticket: Ticket,
    ) -> Entry<'a> {
        let State { stated, marks, .. } = state;
        let runtime = &*self.device.runtime;
        let asker = Asker { stream: self.id, stated, observed: &runtime.observed, marks, ensured };
        Entry { asker, ticket, site: &op.site, strictness: runtime.mode.strictness() }
    }

    /// Puts an op that was checked on the stream: its edges, then the op itself.
    #[inline(always)]
    fn put(
        &self,
        op: &mut Op<'_>,
        mut state: Locked<'_, State>,
        command: impl FnOnce(Ticket) -> Command,
        permit: Option<OwnedSemaphorePermit>,
        entered: &mut Entered,
        edges: &Edges,
    ) -> Result<Place> {
        let has_edges = !edges.from.is_empty();
        let claims = (self.device.runtime.mode != OrderMode::Deny).then(|| claims(op));
        let ticket = state.issued + 1;
        let kept = self.keep(op, permit, ticket);
        let led = if has_edges || op.gate.is_some() {
            submit_edges(self, &mut state, op.site, edges, op.gate.take(), kept)
        } else {
            Ok(())
        };
        let unmarks = entered.unmarks;
        let submitted = match led {
            Ok(()) => {
                if let Some(after) = op.after.take() {
                    state.hold_back(self, after);
                }
                self.submit(&mut state, op.site, command, claims, kept)
            }
            Err(error) => Err(error),
        };
        if has_edges && state.issued == ticket {
            edges.from.iter().for_each(|from| self.know(&mut state, from));
        }
        if let Err(error) = submitted {
            return Err(self.take_back(op, state, ticket, entered, &error));
        }
        if let Some(backlog) = &mut state.backlog {
            backlog.note_operands(&self.device, op.operands);
        }
        if unmarks {
            order::overwritten(op.operands);
        }
        let place = Place { keeps_marker_due: true, ..Place::at(ticket, state.stated.clone()) };
        drop(state);
        if !entered.findings.is_empty() {
            warn_of(self, op.site, op.operands, &entered.findings);
        }
        Ok(place)
    }

    /// Keeps what has to stay until the op of `ticket` has run. Returns whether there is anything.
    #[inline(always)]
    fn keep(&self, op: &mut Op<'_>, permit: Option<OwnedSemaphorePermit>, ticket: Ticket) -> bool {
        let mut kept = false;
        if let Some(keep) = op.keep.take() {
            self.progress.timeline.keep_until(ticket, keep, Until::Over);
            kept = true;
        }
        if let Some(permit) = permit {
            self.progress.timeline.keep_until(ticket, Arc::new(permit), Until::Reached);
            kept = true;
        }
        kept
    }

    /// Takes back the entries of an op that the driver refused, unless it stopped halfway. Returns
    /// the error of the call.
    #[cold]
    fn take_back(
        &self,
        op: &mut Op<'_>,
        mut state: Locked<'_, State>,
        ticket: Ticket,
        entered: &mut Entered,
        error: &DriverError,
    ) -> Error {
        op.halfway = matches!(error, DriverError::Halfway(_));
        if !op.halfway {
            order::undo(
                op.operands,
                &self.entry(op, &state, &Ensured::new(), ticket),
                std::mem::take(entered),
            );
        }
        let forgotten = state.forgotten.take();
        drop(state);
        forgotten.unwrap_or_default().run();
        self.refused(op.site, error)
    }

    #[inline]
    pub(crate) fn check_shape(&self, op: &Op<'_>, disjoint: bool) -> Result<()> {
        let accesses = op.operands;
        for operand in accesses {
            if !Arc::ptr_eq(&operand.allocation.device, &self.device) {
                self.check_device(op.site, op.peers, operand.allocation)?;
            }
        }
        let most = if op.of_many { MAX_ACCESSES } else { MAX_OPERANDS };
        if accesses.len() > most {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{}: {} operands, and an op takes {most}; split it", op.site, accesses.len()),
            ));
        }
        if !disjoint
            && !op.of_many
            && let Some((one, two)) = overlap_within(accesses, op.in_place)
        {
            let (a, b) = (accesses[one].range, accesses[two].range);
            return Err(Error::new(
                ErrorKind::Overlap,
                format!(
                    "{}: operand {two} (bytes {}..{}) overlaps operand {one} (bytes {}..{}) of the \
                     same memory, and one of them is written; {}",
                    op.site.on(&self.label),
                    b.offset(),
                    b.end(),
                    a.offset(),
                    a.end(),
                    if op.in_place {
                        "an op in place needs exactly the same range for both"
                    } else {
                        "copy one of them first"
                    }
                ),
            ));
        }
        Ok(())
    }

    #[cold]
    fn check_device(&self, site: Site, peers: Peers, allocation: &Allocation) -> Result<()> {
        let (here, there) = (self.device.id, allocation.device.id);
        let same_runtime = Arc::ptr_eq(&self.device.runtime, &allocation.device.runtime);
        let is_reached = match peers {
            Peers::None => false,
            Peers::OfBackend => here.backend() == there.backend(),
            Peers::Cpu => matches!(there, DeviceId::Cpu(_)),
        };
        if is_reached && same_runtime {
            return self.needs(site, there, allocation.device.health.fault());
        }
        let is_cpu = |id| matches!(id, DeviceId::Cpu(_));
        let (what, remedy) = match (same_runtime, peers) {
            (false, _) => (
                " of another runtime",
                "open both devices from one runtime, or read it on the host and write it here",
            ),
            (true, Peers::None) => ("", "move a tensor with to, or a buffer with copy_buffer_peer"),
            (true, _) if is_cpu(here) || is_cpu(there) => ("", "copy on a stream of that device"),
            (true, _) => ("", "copy it to cpu:0 first"),
        };
        Err(Error::new(
            ErrorKind::DeviceMismatch,
            format!(
                "{}: the stream is on {here} and an operand is on {there}{what}; {remedy}",
                site.on(&self.label),
            ),
        ))
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
        let Some((room, most)) = &self.room else { return Ok(None) };
        if let Some(permit) = super::permits::take_permit(self.id) {
            return Ok(Some(permit));
        }
        room.clone().try_acquire_owned().map(Some).map_err(|_| {
            // The room of an abandoned stream becomes free, and is of no use.
            if let Some(why) = self.progress.timeline.fault() {
                return self.refused(site, &DriverError::Refused(why.into()));
            }
            self.want_marker(self.issued());
            Error::new(
                ErrorKind::Full,
                format!(
                    "{}: the stream allows {most} ops in flight and has {}; await stream.room() and \
                     enqueue within its permit",
                    site.on(&self.label),
                    most - room.available_permits()
                ),
            )
        })
    }

    /// Marks what a refused op would have written, and notes in the error which op it was.
    #[cold]
    fn not_written(&self, op: &Op<'_>, error: Error) -> Error {
        self.mark(op.operands, error.at(op.site), op.halfway)
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
        if error.kind() == ErrorKind::Fault {
            // No op reads the memory of a device that has failed. What its op was to write
            // elsewhere may have changed.
            written.retain(|operand| !Arc::ptr_eq(&operand.allocation.device, &self.device));
            order::mark(&written, &Mark::new(self.id, order::cause(&error)), true);
            return error;
        }
        if written.is_empty() || !leaves_a_mark(error.kind()) {
            return error;
        }
        if everybodys || self.device.runtime.mode == OrderMode::Wait {
            order::mark(&written, &Mark::new(self.id, order::cause(&error)), true);
            return error;
        }
        if reentry::holds_a_device() {
            return error;
        }
        let mut state = self.state.lock();
        if state.closed {
            return error;
        }
        let mark = state.marks.mark_for(self.id, order::cause(&error));
        order::mark(&written, &mark, false);
        state.marks.add(mark.clone());
        self.change_version(&mut state);
        drop(state);
        error.ending(mark)
    }

    /// Returns whether an edge from `other` is possible: both are of one runtime.
    pub(crate) fn can_wait_for(&self, other: &StreamCore) -> bool {
        Arc::ptr_eq(&self.device.runtime, &other.device.runtime)
    }
}

/// Returns the absolute bytes that the operands touch, and the op's own claims.
#[cold]
fn claims(op: &Op<'_>) -> Box<[Claim]> {
    let claim = |operand: &Operand<'_>| Claim {
        range: operand.range.shifted(operand.allocation.ptr.0),
        exclusive: operand.access.writes(),
    };
    let touched = op.operands.iter().filter(|operand| !operand.range.is_empty()).map(claim);
    touched.chain(op.claims.iter().copied()).collect()
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
        self.enqueue(&mut Op::new(kind, site, &[]), command)
    }
}
