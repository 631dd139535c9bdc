//! Work that a stream holds back on the host until its first item is ready.
//!
//! A copy whose page-locked memory does not exist yet is checked and takes its ticket at the call,
//! like any op. The driver gets the copy when the memory exists. Until then it gets nothing else of
//! that stream either: the rest queues up behind the copy.
//!
//! # Rules
//! 1. The queue is part of the stream's `State`: only the holder of its lock touches it. While
//!    there is a queue, whatever would be a driver call under that lock (a submission, a marker, an
//!    event) goes to its end. So ticket order is the order at the driver.
//! 2. Only the devices' `warpline-pin` threads hand queues over. No user call waits for that,
//!    except those whose work has to be on the driver's stream when they return: foreign work, and
//!    work on a borrowed stream, whose owner may use it next.
//! 3. An event that is recorded behind held-back work is [`Coming`]. A stream that waits for one
//!    holds back too, until the event is recorded. A gate on the device would keep the device busy,
//!    and page-locking may wait until the device is idle.
//! 4. An op that the driver refuses at its hand-over has its ticket already. Its refusal is
//!    **late** (`late.rs`): it fails the op's own `Pending` and marks its bytes as any refusal
//!    does. Work that is held back behind the op and reads those bytes is refused as well
//!    (`unwritten.rs`). Markers are still handed over, so that the op's ticket is reached.
//! 5. If a wait cannot be handed over, its stream is abandoned, because later work was accepted on
//!    the strength of that wait. Nothing more of that stream reaches the driver. Work that waits
//!    for a place on it that was not reached is refused, or abandoned with it.
//!
//! Held-back work takes host memory, and the driver's queue does not limit it. Where that matters,
//! the stream's own limit does (`room.rs`), which counts held-back work as in flight.
//!
//! # Why nothing is waited for in a circle
//! The first item of a queue waits for memory, or for an event in the queue of another stream. A
//! stream can wait only for what was recorded before. So the events that queues wait for are in the
//! order in which they were recorded, and the first of them waits for memory. That memory arrives,
//! or is refused, as soon as the driver answers: nothing that is held back has been enqueued, so no
//! stream waits on the device for it.
//!
//! # Lock order
//! A stream's lock → [`Coming`], late refusals, the ledgers. The locks of two streams are never
//! held at the same time: following streams are handed over after the first lock was released.
//! Values whose drop may run user code or return memory are dropped after that too.

use super::coming::{Coming, Recorded};
use super::core::{State, StreamCore};
use super::place::Snapshot;
use super::unwritten::Unwritten;
use crate::background;
use crate::memory::HostEnd;
use crate::order::{self, Mark, OrderMode, Site, leaves_a_mark};
use crate::shared::{Allocation, Operand, OwnedOperand};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Ticket;
use warpline_driver::{Command, Copy, CopyKind, DriverError, Error, ErrorKind, Result, Submission, reentry};

/// A stream's work that the driver does not have yet. It is empty only while it is created or
/// handed over.
#[derive(Default)]
pub(crate) struct HeldBack {
    queue: VecDeque<Item>,
    /// The condition that the next submission waits for.
    after: Option<After>,
    /// Memory that late refusals before the next item left unwritten.
    unwritten: Unwritten,
}

/// A deferred driver call.
enum Item {
    Work(Box<Work>),
    Marker(Ticket),
    Event(Arc<Coming>),
}

struct Work {
    submission: Submission,
    after: Option<After>,
    operands: Vec<OwnedOperand<Weak<Allocation>>>,
}

/// The part of a submission that has to be ready before it can be handed over.
pub(crate) enum After {
    /// The host's end of a copy.
    Memory(Arc<Staging>),
    /// The event of a wait.
    Event(Arc<Coming>),
}

impl After {
    fn is_ready(&self) -> bool {
        match self {
            After::Memory(staging) => staging.0.get().is_some(),
            After::Event(coming) => coming.is_recorded(),
        }
    }
}

/// The host's end of a copy once it exists, or the reason why there is none.
#[derive(Default)]
pub(crate) struct Staging(OnceLock<Result<HostEnd>>);

impl Staging {
    pub(crate) fn set(&self, end: Result<HostEnd>) {
        let _ = self.0.set(end);
    }
}

impl State {
    /// Makes the next submission, and all work behind it, wait for `after`.
    #[cold]
    pub(super) fn hold_back(&mut self, core: &StreamCore, after: After) {
        if self.held.is_none() {
            // Earlier work does not depend on this copy's memory, so awaiting it must not either.
            self.mark_newest();
            core.late_begins();
        }
        self.held.get_or_insert_default().after = Some(after);
    }

    /// Defers a marker of the newest ticket, if something is held back. Returns whether it did.
    #[inline]
    pub(super) fn puts_marker_off(&mut self) -> bool {
        let Some(held) = &mut self.held else { return false };
        held.queue.push_back(Item::Marker(self.issued));
        true
    }
}

impl HeldBack {
    /// Defers a submission.
    #[cold]
    pub(crate) fn submit(&mut self, submission: Submission) {
        let after = self.after.take();
        self.queue.push_back(Item::Work(Box::new(Work { submission, after, operands: Vec::new() })));
    }

    /// Notes the operands of the newest submission.
    #[cold]
    pub(super) fn note_operands(&mut self, operands: &[Operand<'_>]) {
        if let Some(Item::Work(work)) = self.queue.iter_mut().rfind(|item| matches!(item, Item::Work(_))) {
            let owned = |operand: &Operand<'_>| {
                let Operand { allocation, range, access } = *operand;
                OwnedOperand { allocation: Arc::downgrade(allocation), range, access }
            };
            work.operands = operands.iter().map(owned).collect();
        }
    }

    /// Defers an event that marks the queue's end.
    #[cold]
    pub(crate) fn record(&mut self) -> Arc<Coming> {
        if let Some(Item::Event(coming)) = self.queue.back() {
            return coming.clone();
        }
        let coming = Arc::<Coming>::default();
        self.queue.push_back(Item::Event(coming.clone()));
        coming
    }

    fn next(&mut self) -> Option<Item> {
        let is_ready = match self.queue.front()? {
            Item::Work(work) => work.after.as_ref().is_none_or(After::is_ready),
            Item::Marker(_) | Item::Event(_) => true,
        };
        if is_ready { self.queue.pop_front() } else { None }
    }
}

/// Work that is left for after the stream's lock was released.
#[derive(Default)]
struct Left {
    followers: Vec<Arc<StreamCore>>,
    /// Memory whose last holder this may be.
    memory: Vec<OwnedOperand<Arc<Allocation>>>,
    unseen: Vec<Error>,
    gave_up: bool,
}

/// Hands over what is ready on `core`, then on the streams that waited for events there. Runs on
/// `warpline-pin`.
pub(crate) fn hand_over(core: Arc<StreamCore>) {
    let mut cores = vec![core];
    while let Some(core) = cores.pop() {
        cores.extend(core.hand_over_what_is_ready());
    }
}

impl StreamCore {
    fn hand_over_what_is_ready(&self) -> Vec<Arc<StreamCore>> {
        let mut left = Left::default();
        let mut state = self.state.lock();
        let Some(mut held) = state.held.take() else { return Vec::new() };
        while let Some(item) = held.next() {
            match item {
                Item::Marker(ticket) => state.raw.signal(ticket),
                Item::Event(coming) => {
                    let unwritten = held.unwritten.clone();
                    let recorded = state.raw.record().map(|event| Recorded { event, unwritten });
                    left.followers.extend(coming.fill(recorded));
                }
                Item::Work(work) => self.hand_over_work(&mut state, &mut held, *work, &mut left),
            }
        }
        let is_over = held.queue.is_empty();
        if is_over {
            self.late_ends();
        } else {
            state.held = Some(held);
        }
        drop(state);
        if is_over {
            self.device.foreign_turns.end();
        }
        if left.gave_up {
            self.timeline.wake_all();
        }
        let Left { followers, memory, unseen, gave_up: _ } = left;
        // Subscribers are notified, and owners of lent memory may be dropped. A panic there must
        // not keep the followers waiting.
        let told = catch_unwind(AssertUnwindSafe(|| {
            drop(memory);
            unseen.iter().for_each(|error| self.note_unseen(error));
        }));
        if told.is_err() {
            background::detach(warpline_driver::report::drop_panicked);
        }
        followers
    }

    fn hand_over_work(&self, state: &mut State, held: &mut HeldBack, work: Work, left: &mut Left) {
        let Work { mut submission, after, operands } = work;
        let (ticket, site) = (submission.ticket, submission.site);
        let operands = operands.into_iter().filter_map(|OwnedOperand { allocation, range, access }| {
            Some(OwnedOperand { allocation: allocation.upgrade()?, range, access })
        });
        let operands: Vec<_> = operands.collect();
        let is_edge = matches!(submission.command, Command::Edge(_));
        let is_wait = submission.command.holds_until().is_some();
        let ready = match after {
            None => Ok(()),
            Some(After::Memory(staging)) => match (staging.0.get(), &mut submission.command) {
                (Some(Ok(end)), Command::Copy(copy)) => {
                    set_host_end(copy, *end);
                    Ok(())
                }
                (Some(Err(error)), _) => Err(error.clone()),
                _ => unreachable!("only copies wait for memory, and this is ready"),
            },
            Some(After::Event(coming)) => match (coming.get(), &mut submission.command) {
                (Ok(recorded), Command::Wait(point) | Command::Edge(point)) => {
                    held.unwritten.merge(&recorded.unwritten);
                    if !is_edge && state.marks.merge(&recorded.unwritten.marks) {
                        self.version.fetch_add(1, Ordering::Release);
                    }
                    point.event = recorded.event;
                    Ok(())
                }
                (Err(error), _) => Err(self.refused(site, &error)),
                _ => unreachable!("only waits wait for events"),
            },
        };
        let ready = ready.and_then(|()| match held.unwritten.read_by(&operands) {
            Some(earlier) => Err(Error::inherited(&site.on(&self.label), earlier)),
            None => Ok(()),
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
            Ok(()) => held.unwritten.overwritten_by(&operands),
            Err(error) if is_wait => self.give_up_waiting(state, held, site, &error, left),
            Err(error) => {
                let error = self.mark_late(state, held, &operands, error.at(site), halfway);
                let is_fault = error.kind() == ErrorKind::Fault;
                let unseen = self.refuse_late(ticket, error);
                // A fault concerns every op, and the device reports it.
                left.unseen.extend(unseen.filter(|_| !is_fault));
            }
        }
        left.memory.extend(operands);
    }

    /// Marks what a late refusal left unwritten. Returns the error that ends the mark when it is
    /// looked at.
    #[cold]
    fn mark_late(
        &self,
        state: &mut State,
        held: &mut HeldBack,
        operands: &[OwnedOperand<Arc<Allocation>>],
        error: Error,
        halfway: bool,
    ) -> Error {
        let mut written: Vec<_> =
            operands.iter().filter(|operand| operand.access.writes() && !operand.range.is_empty()).collect();
        if error.kind() == ErrorKind::Fault {
            // As in `StreamCore::mark`: no op reads the memory of a device that has failed.
            written.retain(|touch| !Arc::ptr_eq(&touch.allocation.device, &self.device));
            order::mark(&written, &Mark::new(self.id, order::cause(&error)), true);
            return error;
        }
        if written.is_empty() || !leaves_a_mark(error.kind()) {
            return error;
        }
        held.unwritten.add(&written, &error);
        // A closed stream carries no marks.
        if halfway || self.is_closed() || self.device.runtime.mode == OrderMode::Wait {
            let mark = Mark::new(self.id, order::cause(&error));
            order::mark(&written, &mark, true);
            held.unwritten.add_mark(mark);
            return error;
        }
        let mark = state.marks.mark_for(self.id, order::cause(&error));
        order::mark(&written, &mark, false);
        state.marks.add(mark.clone());
        held.unwritten.add_mark(mark.clone());
        self.version.fetch_add(1, Ordering::Release);
        error.ending(mark)
    }

    /// Abandons the stream after a wait that could not be handed over (rule 5).
    #[cold]
    fn give_up_waiting(
        &self,
        state: &mut State,
        held: &mut HeldBack,
        site: Site,
        error: &Error,
        left: &mut Left,
    ) {
        let text = format!(
            "stream \"{}\" of {} was given up: {site} could not be enqueued, which later work relies on: {error}; use another \
             stream",
            self.label, self.device.id
        );
        let error = Error::new(ErrorKind::Driver, text.clone());
        let mark = Mark::new(self.id, order::cause(&error));
        for item in held.queue.drain(..) {
            match item {
                Item::Work(work) => {
                    // The mark is for everybody: the stream counts as finished once it is idle, and
                    // other streams continue.
                    let upgraded =
                        |OwnedOperand { allocation, range, access }: OwnedOperand<Weak<Allocation>>| {
                            Some(OwnedOperand { allocation: allocation.upgrade()?, range, access })
                        };
                    let operands: Vec<_> = work.operands.into_iter().filter_map(upgraded).collect();
                    let writes = |operand: &&OwnedOperand<Arc<Allocation>>| {
                        operand.access.writes() && !operand.range.is_empty()
                    };
                    order::mark(&operands.iter().filter(writes).collect::<Vec<_>>(), &mark, true);
                    left.memory.extend(operands);
                    work.submission.command.drop_elsewhere();
                }
                Item::Event(coming) => {
                    left.followers.extend(coming.fill(Err(DriverError::Refused(text.clone().into()))));
                }
                Item::Marker(_) => {}
            }
        }
        state.lost = Some(DriverError::Refused(text.into()));
        left.unseen.push(error.clone());
        self.timeline.give_up(error);
        left.gave_up = true;
    }

    /// Waits until nothing is held back on this stream, for a call that enqueues on the driver's
    /// stream directly. Called while no stream's lock is held.
    ///
    /// # Errors
    /// `Reentrant` if this thread must not wait.
    pub(crate) fn wait_until_handed_over(&self, site: Site) -> Result<()> {
        loop {
            let turns = self.device.foreign_turns.ended();
            if self.state.lock().held.is_none() {
                return Ok(());
            }
            self.may_wait_for_memory(site)?;
            self.device.foreign_turns.wait_for_more_than(turns);
        }
    }

    /// Waits until the event of `from` was recorded, if this stream is borrowed and so cannot hold
    /// the wait back. Called while no stream's lock is held.
    ///
    /// # Errors
    /// `Reentrant` if this thread must not wait.
    #[inline]
    pub(crate) fn wait_if_borrowed(&self, site: Site, from: &Snapshot) -> Result<()> {
        match &from.coming {
            Some(coming) if self.borrowed => self.wait_for_event(site, coming),
            _ => Ok(()),
        }
    }

    /// Waits until that event was recorded, or could not be. Called while no stream's lock is held.
    ///
    /// # Errors
    /// `Reentrant` if this thread must not wait.
    #[cold]
    pub(super) fn wait_for_event(&self, site: Site, coming: &Coming) -> Result<()> {
        self.may_wait_for_memory(site)?;
        coming.wait();
        Ok(())
    }

    #[cold]
    fn may_wait_for_memory(&self, site: Site) -> Result<()> {
        if reentry::may_block() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Reentrant,
            format!(
                "{}: work before it waits for page-locked memory, and a waker must not wait for that; enqueue in a task",
                site.on(&self.label)
            ),
        ))
    }
}

fn set_host_end(copy: &mut Copy, end: HostEnd) {
    match copy.kind {
        CopyKind::HostToDevice => copy.src = end.address(),
        CopyKind::DeviceToHost => copy.dst = end.address(),
        CopyKind::DeviceToDevice | CopyKind::Peer { .. } => unreachable!("neither end is the host's"),
    }
}
