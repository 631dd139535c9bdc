//! The hand-over of held-back work to the driver.
//!
//! It runs on `warpline-pin` and `warpline-submit`. The rules are in `backlog.rs`.

use super::backlog::{After, Backlog, Item, Work};
use super::coming::Recorded;
use super::core::{State, StreamCore};
use super::unwritten::{BacklogOperand, Unwritten};
use crate::background;
use crate::memory::HostEnd;
use crate::order::{self, Mark, OrderMode, Site, leaves_a_mark};
use crate::shared::{Allocation, OwnedOperand};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{Command, Copy, CopyKind, DriverError, Error, ErrorKind, Result, Submission, affinity};

/// Work that is left for after the stream's lock was released.
#[derive(Default)]
struct Left {
    followers: Vec<Arc<StreamCore>>,
    /// Memory whose last holder this may be.
    memory: Vec<OwnedOperand<Arc<Allocation>>>,
    unseen: Vec<Error>,
    /// Streams that were waited for.
    streams: Vec<Arc<StreamCore>>,
    /// True if anything was handed over, or found to be lost.
    moved: bool,
    /// The last ticket that the driver has of a stream that was abandoned.
    abandoned_after: Option<Ticket>,
}

/// A value that the timeline of an abandoned stream keeps until the driver has run what it has.
/// When it is dropped, the timeline releases everything else.
struct Abandons(Weak<Timeline>);

impl Drop for Abandons {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        if let Some(timeline) = self.0.upgrade() {
            timeline.abandon();
        }
    }
}

/// Hands over what is ready on `core`, then on the streams that waited for events there. Runs on
/// `warpline-pin` or `warpline-submit`.
pub(crate) fn hand_over(core: Arc<StreamCore>) {
    let device = core.device.id;
    let mut cores = vec![core];
    while let Some(core) = cores.pop() {
        if core.device.id.backend() == device.backend() {
            cores.extend(core.hand_over_what_is_ready());
        } else {
            // A driver call of that device may have to wait for room.
            background::submit(core.device.id, move || hand_over(core));
        }
    }
}

impl StreamCore {
    fn hand_over_what_is_ready(&self) -> Vec<Arc<StreamCore>> {
        let mut left = Left::default();
        let mut state = self.state.lock();
        let Some(mut backlog) = state.backlog.take() else { return Vec::new() };
        while let Some(item) = backlog.next() {
            left.moved = true;
            match item {
                Item::Marker(ticket) => {
                    state.raw.signal(ticket);
                    backlog.marker_at = ticket;
                }
                Item::Event(coming) => {
                    let (event, unwritten) = (state.raw.record(), backlog.unwritten.clone());
                    left.followers.extend(coming.fill(Recorded { event, unwritten }));
                }
                Item::Work(work) => self.hand_over_work(&mut state, &mut backlog, *work, &mut left),
            }
        }
        if left.moved && backlog.queue.is_empty() {
            self.refusals.late.ends();
        }
        if !backlog.queue.is_empty() {
            backlog.watch(&state.core);
        }
        if !backlog.queue.is_empty() || backlog.lost.is_some() {
            state.backlog = Some(backlog);
        }
        drop(state);
        let Left { followers, memory, unseen, streams, moved, abandoned_after } = left;
        if let Some(last) = abandoned_after {
            let abandons = Arc::new(Abandons(Arc::downgrade(&self.progress.timeline)));
            self.progress.timeline.keep_until_last(last, abandons);
        }
        if moved {
            // For those that wait for an event or until nothing is held back, or that wait on a
            // stream that was abandoned just now.
            self.progress.timeline.wake_all();
            self.take_turns_for_late_work();
        }
        // Subscribers are notified, and owners of lent memory may be dropped. A panic there must
        // not keep the followers waiting.
        let told = catch_unwind(AssertUnwindSafe(|| {
            drop((memory, streams));
            unseen.iter().for_each(|error| self.note_unseen(error));
        }));
        if told.is_err() {
            background::detach(warpline_driver::report::drop_panicked);
        }
        followers
    }

    fn hand_over_work(&self, state: &mut State, backlog: &mut Backlog, work: Work, left: &mut Left) {
        let Work { mut submission, after, operands, others } = work;
        let (ticket, site) = (submission.ticket, submission.site);
        // Mostly nothing was left unwritten. The memory is then not held here, so it is free as
        // soon as its last handle is dropped.
        let known = if backlog.unwritten.is_empty() { Vec::new() } else { alive(&operands) };
        let is_wait = submission.command.holds_until().is_some();
        let ready = match after.map(|after| self.resolve(state, backlog, &mut submission, after, left)) {
            None => Ok(()),
            Some(Some(ready)) => ready,
            Some(None) => return,
        };
        let ready = ready.and_then(|()| match backlog.unwritten.read_by(&operands) {
            Some(piece) => Err(Error::inherited(&site.on(&self.label), &piece.error, piece.ends_when_seen)),
            None => others.iter().try_for_each(|(device, health)| self.needs(site, *device, health.fault())),
        });
        let mut halfway = false;
        let submitted = match ready {
            Ok(()) => {
                // SAFETY: as in `StreamCore::submit`, which deferred this submission. The uses
                // noted for the ticket and `keeps` have been in place since then. A host address
                // that was missing then is that of a `HostEnd`.
                let submitted = unsafe { state.raw.submit(submission) };
                submitted.map_err(|error| {
                    halfway = matches!(error, DriverError::Halfway(_));
                    self.refused(site, &error)
                })
            }
            Err(error) => {
                submission.command.drop_elsewhere();
                Err(error)
            }
        };
        match submitted {
            Ok(()) => backlog.unwritten.overwritten_by(&operands, &known),
            Err(error) if is_wait => self.give_up_waiting(state, backlog, (site, ticket), &error, left),
            Err(error) => {
                let error = self.mark_late(state, backlog, &operands, error.at(site), halfway, left);
                let is_fault = error.kind() == ErrorKind::Fault;
                let unseen = self.refusals.late.refuse(ticket, error);
                // A fault concerns every op, and the device reports it.
                left.unseen.extend(unseen.filter(|_| !is_fault));
                if !self.device.signalled && !halfway {
                    self.complete_refused(state, backlog, (site, ticket), left);
                }
            }
        }
        left.memory.extend(known);
    }

    /// Completes the command with what it was held back for. Returns the error by which it cannot
    /// be handed over, or `None` if nothing of it is left for the driver.
    fn resolve(
        &self,
        state: &mut State,
        backlog: &mut Backlog,
        submission: &mut Submission,
        after: After,
        left: &mut Left,
    ) -> Option<Result<()>> {
        let is_edge = matches!(submission.command, Command::Edge(_));
        Some(match after {
            After::Memory(staging) => match (staging.0.get(), &mut submission.command) {
                (Some(Ok(end)), Command::Copy(copy)) => {
                    set_host_end(copy, *end);
                    Ok(())
                }
                (Some(Ok(end)), Command::StagedCopy(staged)) => {
                    staged.staging = end.address();
                    Ok(())
                }
                (Some(Err(error)), _) => Err(error.clone()),
                _ => unreachable!("only copies wait for memory, and this is ready"),
            },
            After::Event(coming) => {
                let Recorded { event, unwritten } = coming.get();
                match (event, &mut submission.command) {
                    (Ok(event), Command::Wait(point) | Command::Edge(point)) => {
                        self.take_over(state, backlog, &unwritten, is_edge);
                        point.event = event;
                        Ok(())
                    }
                    (Err(error), _) => Err(self.refused(submission.site, &error)),
                    _ => unreachable!("only waits wait for events"),
                }
            }
            After::Marks { coming, stated } => {
                self.take_over(state, backlog, &coming.get().unwritten, !stated);
                return None;
            }
            After::Elsewhere(place) => {
                let outcome = place.outcome().expect("only items that are ready are handed over");
                if let (Ok(()), Some(coming)) = (&outcome, &place.coming) {
                    // It does not matter here whether the driver could record the event.
                    self.take_over(state, backlog, &coming.get().unwritten, is_edge);
                }
                left.streams.push(place.stream);
                // Nothing is left to wait for, and this driver does not know that timeline.
                submission.command = Command::Elided;
                if is_edge && outcome.is_ok() {
                    return None;
                }
                outcome
            }
        })
    }

    /// Notes what late refusals before an awaited place left unwritten. A stated wait takes over
    /// their marks too.
    fn take_over(&self, state: &mut State, backlog: &mut Backlog, unwritten: &Unwritten, is_edge: bool) {
        backlog.unwritten.merge(unwritten);
        // A closed stream carries no marks.
        if !is_edge && !state.closed && state.marks.merge(&unwritten.marks) {
            self.change_version(state);
        }
    }

    /// Notifies a device that runs in turns of the work that it has just got.
    fn take_turns_for_late_work(&self) {
        if !self.device.runs_in_turns {
            return;
        }
        self.device.driver.after_submit();
        if self.device.runtime.is_shut_down() {
            // No poll might come any more. The work may be code of the user, which this thread must
            // not call.
            let driver = self.device.driver.clone();
            let turns = std::thread::Builder::new().name("warpline-turns".into());
            let started = turns.spawn(move || {
                affinity::follow_main_thread();
                while driver.turn() {}
            });
            drop(started);
        }
    }

    /// Marks what a late refusal left unwritten. Returns the error that ends the mark when it is
    /// looked at.
    #[cold]
    fn mark_late(
        &self,
        state: &mut State,
        backlog: &mut Backlog,
        operands: &[BacklogOperand],
        error: Error,
        halfway: bool,
        left: &mut Left,
    ) -> Error {
        let is_written = |operand: &BacklogOperand| operand.access.writes() && !operand.range.is_empty();
        let not_written: Vec<_> = operands.iter().filter(|operand| is_written(operand)).cloned().collect();
        let with_handles = alive(&not_written);
        left.memory.extend(with_handles.iter().cloned());
        let mut written: Vec<_> = with_handles.iter().collect();
        if error.kind() == ErrorKind::Fault {
            // No op reads the memory of a device that has failed: see `StreamCore::mark`.
            written.retain(|touch| !Arc::ptr_eq(&touch.allocation.device, &self.device));
            order::mark(&written, &Mark::new(self.id, order::cause(&error)), true);
            return error;
        }
        if not_written.is_empty() || !leaves_a_mark(error.kind()) {
            return error;
        }
        // A closed stream carries no marks.
        let everybodys = halfway || self.is_closed() || self.device.runtime.mode == OrderMode::Wait;
        backlog.unwritten.add(&not_written.iter().collect::<Vec<_>>(), &error, !everybodys);
        if everybodys {
            let mark = Mark::new(self.id, order::cause(&error));
            order::mark(&written, &mark, true);
            backlog.unwritten.add_mark(mark);
            return error;
        }
        let mark = state.marks.mark_for(self.id, order::cause(&error));
        order::mark(&written, &mark, false);
        state.marks.add(mark.clone());
        backlog.unwritten.add_mark(mark.clone());
        self.change_version(state);
        error.ending(mark)
    }

    /// Makes a device that completes each op reach the ticket of an op that it refused (rule 5).
    #[cold]
    fn complete_refused(
        &self,
        state: &mut State,
        backlog: &mut Backlog,
        of: (Site, Ticket),
        left: &mut Left,
    ) {
        let submission = Submission { ticket: of.1, site: of.0, command: Command::Elided, claims: None };
        // SAFETY: the command names no address.
        let submitted = unsafe { state.raw.submit(submission) };
        if let Err(error) = submitted
            && self.device.health.fault().is_none()
        {
            let error = self.refused(of.0, &error);
            self.give_up_waiting(state, backlog, of, &error, left);
        }
    }

    /// Abandons the stream after a wait that could not be handed over (rule 6). The driver has
    /// everything before the ticket of `of`, and nothing from there on.
    #[cold]
    fn give_up_waiting(
        &self,
        state: &mut State,
        backlog: &mut Backlog,
        of: (Site, Ticket),
        error: &Error,
        left: &mut Left,
    ) {
        let (site, last) = (of.0, of.1 - 1);
        if self.device.signalled && backlog.marker_at < last {
            state.raw.signal(last);
        }
        left.abandoned_after = Some(last);
        let text = format!(
            "stream \"{}\" of {} was abandoned: {site}, which later work relies on, could not be \
             enqueued: {error}; use another stream",
            self.label, self.device.id
        );
        let kind = match error.kind() {
            kind @ (ErrorKind::Fault | ErrorKind::ShutDown) => kind,
            _ => ErrorKind::Driver,
        };
        let error = Error::new(kind, text).caused_like(error);
        let mark = Mark::new(self.id, order::cause(&error));
        for item in backlog.queue.drain(..) {
            match item {
                Item::Work(work) => {
                    // The mark is for everybody: the stream counts as finished once it is idle, and
                    // other streams continue.
                    let operands = alive(&work.operands);
                    let writes = |operand: &&OwnedOperand<Arc<Allocation>>| {
                        operand.access.writes() && !operand.range.is_empty()
                    };
                    order::mark(&operands.iter().filter(writes).collect::<Vec<_>>(), &mark, true);
                    left.memory.extend(operands);
                    if let Some(After::Elsewhere(place)) = work.after {
                        left.streams.push(place.stream);
                    }
                    work.submission.command.drop_elsewhere();
                }
                Item::Event(coming) => {
                    let (event, unwritten) =
                        (Err(DriverError::Refused((&error).into())), backlog.unwritten.clone());
                    left.followers.extend(coming.fill(Recorded { event, unwritten }));
                }
                Item::Marker(_) => {}
            }
        }
        backlog.lost = Some(DriverError::Refused((&error).into()));
        left.unseen.push(error.clone());
        self.progress.timeline.give_up(error);
    }
}

/// Returns the operands whose memory still exists.
fn alive(operands: &[BacklogOperand]) -> Vec<OwnedOperand<Arc<Allocation>>> {
    let alive = |OwnedOperand { allocation, range, access }: &BacklogOperand| {
        Some(OwnedOperand { allocation: allocation.upgrade()?, range: *range, access: *access })
    };
    operands.iter().filter_map(alive).collect()
}

fn set_host_end(copy: &mut Copy, end: HostEnd) {
    match copy.kind {
        CopyKind::HostToDevice => copy.src = end.address(),
        CopyKind::DeviceToHost => copy.dst = end.address(),
        CopyKind::DeviceToDevice | CopyKind::Peer { .. } => unreachable!("neither end is the host's"),
    }
}
