//! The hand-over of held-back work to the driver.
//!
//! It runs on `warpline-pin` and `warpline-submit`. The rules are in `backlog.rs`.

use super::backlog::{After, Backlog, Item, Outcome, Resolved, Work};
use super::coming::{Follower, Recorded, Watched};
use super::core::{State, StreamCore};
use super::refusals::{Leaves, mark_for_everybody, mark_for_followers};
use super::unwritten::{AliveOperand, BacklogOperand, alive};
use crate::background;
use crate::order::{OrderMode, Site};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{
    Command, DeviceId, DriverError, Error, ErrorKind, Health, Result, Submission, affinity,
};

/// A waker that has the stream's backlog handed over.
struct HandsOver(Arc<StreamCore>);

impl Wake for HandsOver {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let core = self.0.clone();
        background::submit(core.device.id, move || hand_over(core));
    }
}

impl State {
    /// Makes the next submission, and all work behind it, wait for `after`.
    #[cold]
    pub(super) fn hold_back(&mut self, core: &StreamCore, after: After) {
        if self.backlog.is_none() {
            // Earlier work does not depend on what this work waits for, so awaiting it must not
            // either.
            self.write_newest_marker();
            core.refusals.late.begins();
        }
        let new = || Box::new(Backlog::new(core.as_watched(), self.marker_at));
        let backlog = self.backlog.get_or_insert_with(new);
        backlog.hold_back(after, || waker(&self.core));
    }

    /// Returns the stream, to be handed over.
    pub(super) fn follower(&self) -> Option<Arc<dyn Follower>> {
        Some(self.core.upgrade()?)
    }

    /// Returns true if work waits on the host.
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.as_ref().is_some_and(|backlog| !backlog.is_lost())
    }

    /// Returns true if the first work that waits on the host waits for another backend.
    #[cfg(feature = "test-util")]
    pub(crate) fn waits_for_another_backend(&self) -> bool {
        self.backlog.as_ref().is_some_and(|backlog| backlog.waits_for_another_backend())
    }

    /// Returns the reason why the stream was abandoned, if it was.
    #[inline]
    pub(super) fn ensure_not_lost(&self) -> Result<(), DriverError> {
        self.backlog.as_ref().map_or(Ok(()), |backlog| backlog.ensure_not_lost())
    }
}

/// Returns a waker that has the stream handed over.
fn waker(core: &Weak<StreamCore>) -> Option<Waker> {
    Some(Waker::from(Arc::new(HandsOver(core.upgrade()?))))
}

/// Work that is left for after the stream's lock was released.
#[derive(Default)]
struct Left {
    followers: Vec<Arc<dyn Follower>>,
    /// Memory whose last holder this may be.
    memory: Vec<AliveOperand>,
    unseen: Vec<Error>,
    /// Streams that were waited for.
    streams: Vec<Watched>,
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

/// Hands over what is ready on a stream, then on those that follow events there. Runs on
/// `warpline-pin` or `warpline-submit`.
pub(crate) fn hand_over(stream: Arc<dyn Follower>) {
    let device = stream.device();
    let mut streams = vec![stream];
    while let Some(stream) = streams.pop() {
        if stream.device().backend() == device.backend() {
            streams.extend(stream.hand_over_what_is_ready());
        } else {
            // A driver call of that device may have to wait for room.
            background::submit(stream.device(), move || hand_over(stream));
        }
    }
}

impl Follower for StreamCore {
    fn device(&self) -> DeviceId {
        self.device.id
    }

    fn hand_over_what_is_ready(&self) -> Vec<Arc<dyn Follower>> {
        let mut state = self.state.lock();
        let Some(mut backlog) = state.backlog.take() else { return Vec::new() };
        let left = Left::default();
        let mut hand_over = HandOver { core: self, state: &mut state, backlog: &mut backlog, left };
        hand_over.run();
        let left = hand_over.left;
        if left.moved && backlog.is_empty() {
            self.refusals.late.ends();
        }
        if !backlog.is_empty() {
            backlog.watch(|| waker(&state.core));
        }
        if !backlog.is_empty() || backlog.is_lost() {
            state.backlog = Some(backlog);
        }
        drop(state);
        left.finish(self)
    }
}

impl Left {
    /// Does what is left, while no lock is held. Returns the followers, which are left to the
    /// caller.
    fn finish(self, core: &StreamCore) -> Vec<Arc<dyn Follower>> {
        let Left { followers, memory, unseen, streams, moved, abandoned_after } = self;
        if let Some(last) = abandoned_after {
            let abandons = Arc::new(Abandons(Arc::downgrade(&core.progress.timeline)));
            core.progress.timeline.keep_until_last(last, abandons);
        }
        if moved {
            // For those that wait for an event or until nothing is held back, or that wait on a
            // stream that was abandoned just now.
            core.progress.timeline.wake_all();
            take_turns_for_late_work(core);
        }
        // Subscribers are notified, and owners of lent memory may be dropped. A panic there must
        // not keep the followers waiting.
        let told = catch_unwind(AssertUnwindSafe(|| {
            drop((memory, streams));
            unseen.iter().for_each(|error| core.note_unseen(error));
        }));
        if told.is_err() {
            background::detach(warpline_driver::report::drop_panicked);
        }
        followers
    }
}

/// A hand-over in progress. The stream's lock is held, and its backlog was taken out.
struct HandOver<'a> {
    core: &'a StreamCore,
    state: &'a mut State,
    backlog: &'a mut Backlog,
    left: Left,
}

impl HandOver<'_> {
    fn run(&mut self) {
        while let Some(item) = self.backlog.next() {
            self.left.moved = true;
            match item {
                Item::Marker(ticket) => {
                    self.state.driver.signal(ticket);
                    self.backlog.marker_at = ticket;
                }
                Item::Event(coming) => {
                    let (event, unwritten) = (self.state.driver.record(), self.backlog.unwritten.clone());
                    self.left.followers.extend(coming.fill(Recorded { event, unwritten }));
                }
                Item::Work(work) => self.work(*work),
            }
        }
    }

    fn work(&mut self, work: Work) {
        let Work { mut submission, after, operands, others } = work;
        let (ticket, site) = (submission.ticket, submission.site);
        // Mostly nothing was left unwritten. The memory is then not held here, so it is free as
        // soon as its last handle is dropped.
        let known = if self.backlog.unwritten.is_empty() { Vec::new() } else { alive(&operands) };
        let is_wait = submission.command.holds_until().is_some();
        let ready = match after.map(|after| after.resolve(&mut submission.command)) {
            None => Ok(()),
            Some(resolved) => match self.take_over(resolved) {
                Outcome::Ready => Ok(()),
                Outcome::Over => return,
                Outcome::Failed(error) => Err(error),
                Outcome::Refused(error) => Err(self.core.refused(site, &error)),
            },
        };
        let ready = ready.and_then(|()| self.may_run(site, &operands, &others));
        let mut halfway = false;
        let submitted = match ready {
            Ok(()) => {
                // SAFETY: as in `StreamCore::submit`, which deferred this submission. The uses
                // noted for the ticket and `keeps` have been in place since then. A host address
                // that was missing then is that of a `HostEnd`.
                let submitted = unsafe { self.state.driver.submit(submission) };
                submitted.map_err(|error| {
                    halfway = matches!(error, DriverError::Halfway(_));
                    self.core.refused(site, &error)
                })
            }
            Err(error) => {
                submission.command.drop_elsewhere();
                Err(error)
            }
        };
        match submitted {
            Ok(()) => self.backlog.unwritten.overwritten_by(&operands, &known),
            Err(error) if is_wait => self.give_up_waiting(site, ticket, &error),
            Err(error) => {
                let error = self.mark_late(&operands, error.at(site), halfway);
                self.core.device.tally.refuses(&error);
                let is_fault = error.kind() == ErrorKind::Fault;
                let unseen = self.core.refusals.late.refuse(ticket, error);
                // A fault concerns every op, and the device reports it.
                self.left.unseen.extend(unseen.filter(|_| !is_fault));
                if !self.core.device.signalled && !halfway {
                    self.complete_refused(site, ticket);
                }
            }
        }
        self.left.memory.extend(known);
    }

    /// Notes what late refusals before an awaited place left unwritten. A stated wait takes over
    /// their marks too, unless the stream is closed, which carries none.
    fn take_over(&mut self, resolved: Resolved) -> Outcome {
        let Resolved { unwritten, stated, stream, outcome } = resolved;
        if let Some(unwritten) = unwritten {
            self.backlog.unwritten.merge(&unwritten);
            if stated && !self.state.tip.closed && self.state.marks.merge(&unwritten.marks) {
                self.core.line.change_version(&mut self.state.tip);
            }
        }
        self.left.streams.extend(stream);
        outcome
    }

    /// Refuses work that would read bytes that were not written, or that uses a failed device.
    fn may_run(
        &self,
        site: Site,
        operands: &[BacklogOperand],
        others: &[(DeviceId, Arc<Health>)],
    ) -> Result<()> {
        if let Some(piece) = self.backlog.unwritten.read_by(operands) {
            return Err(Error::inherited(&site.on(&self.core.label), &piece.error, piece.ends_when_seen));
        }
        others.iter().try_for_each(|(device, health)| self.core.needs(site, *device, health.fault()))
    }

    /// Marks what a late refusal left unwritten. Returns the error that ends the mark when it is
    /// looked at.
    #[cold]
    fn mark_late(&mut self, operands: &[BacklogOperand], error: Error, halfway: bool) -> Error {
        let not_written: Vec<_> = operands.iter().filter(|operand| operand.is_written()).cloned().collect();
        let with_handles = alive(&not_written);
        self.left.memory.extend(with_handles.iter().cloned());
        let mut written: Vec<_> = with_handles.iter().collect();
        let (core, unwritten) = (self.core, &mut self.backlog.unwritten);
        // A closed stream carries no marks.
        let everybodys = halfway || core.is_closed() || core.device.runtime.mode == OrderMode::Wait;
        let leaves = Leaves::of(&error, !not_written.is_empty(), everybodys);
        if matches!(leaves, Leaves::ForEverybody | Leaves::ForFollowers) {
            unwritten.add(&not_written, &error, !everybodys);
        }
        match leaves {
            Leaves::Nothing => error,
            Leaves::OnOtherDevices => {
                written.retain(|operand| operand.allocation.device() != core.device.id);
                mark_for_everybody(core.id, &written, &error);
                error
            }
            Leaves::ForEverybody => {
                unwritten.add_mark(mark_for_everybody(core.id, &written, &error));
                error
            }
            Leaves::ForFollowers => {
                let mark = mark_for_followers(core.id, &mut self.state.marks, &written, &error);
                unwritten.add_mark(mark.clone());
                core.line.change_version(&mut self.state.tip);
                error.ending(mark)
            }
        }
    }

    /// Makes a device that completes each op reach the ticket of an op that it refused (rule 5).
    #[cold]
    fn complete_refused(&mut self, site: Site, ticket: Ticket) {
        let submission = Submission { ticket, site, command: Command::Elided, claims: None, caller: None };
        // SAFETY: the command names no address.
        let submitted = unsafe { self.state.driver.submit(submission) };
        if let Err(error) = submitted
            && self.core.device.health.fault().is_none()
        {
            let error = self.core.refused(site, &error);
            self.give_up_waiting(site, ticket, &error);
        }
    }

    /// Abandons the stream after the wait of `ticket` could not be handed over (rule 6). The driver
    /// has everything before it, and nothing from there on.
    #[cold]
    fn give_up_waiting(&mut self, site: Site, ticket: Ticket, error: &Error) {
        let (core, last) = (self.core, ticket - 1);
        if core.device.signalled && self.backlog.marker_at < last {
            self.state.driver.signal(last);
        }
        self.left.abandoned_after = Some(last);
        let text = format!(
            "stream \"{}\" of {} was abandoned: {site}, which later work relies on, could not be \
             enqueued: {error}; use another stream",
            core.label, core.device.id
        );
        let kind = match error.kind() {
            kind @ (ErrorKind::Fault | ErrorKind::ShutDown) => kind,
            _ => ErrorKind::Driver,
        };
        let error = Error::new(kind, text).caused_like(error);
        let why = || DriverError::Refused((&error).into());
        let unwritten = self.backlog.unwritten.clone();
        for item in self.backlog.lose(why()) {
            match item {
                Item::Work(work) => {
                    // The mark is for everybody: the stream counts as finished once it is idle, and
                    // other streams continue.
                    let operands = alive(&work.operands);
                    let written: Vec<_> = operands.iter().filter(|operand| operand.is_written()).collect();
                    mark_for_everybody(core.id, &written, &error);
                    self.left.memory.extend(operands);
                    if let Some(After::Elsewhere(place)) = work.after {
                        self.left.streams.push(place.stream);
                    }
                    work.submission.command.drop_elsewhere();
                }
                Item::Event(coming) => {
                    let recorded = Recorded { event: Err(why()), unwritten: unwritten.clone() };
                    self.left.followers.extend(coming.fill(recorded));
                }
                Item::Marker(_) => {}
            }
        }
        self.left.unseen.push(error.clone());
        core.progress.timeline.give_up(error);
    }
}

/// Notifies a device that runs in turns of the work that it has just got.
fn take_turns_for_late_work(core: &StreamCore) {
    if !core.device.runs_in_turns {
        return;
    }
    core.device.driver.after_submit();
    if core.device.runtime.is_shut_down() {
        // No poll might come any more. The work may be code of the user, which this thread must
        // not call.
        let driver = core.device.driver.clone();
        let turns = std::thread::Builder::new().name("warpline-turns".into());
        let started = turns.spawn(move || {
            affinity::follow_main_thread();
            while driver.turn() {}
        });
        drop(started);
    }
}
