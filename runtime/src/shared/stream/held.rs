//! Work that a stream holds back on the host, because what comes first there is not ready yet.
//!
//! A copy whose page-locked memory has yet to be made is checked and takes its ticket when it is
//! called, as any op. The driver gets it when the memory exists, and until then it gets nothing
//! else of that stream either: the rest queues up behind the copy.
//!
//! # Rules
//! 1. The queue is part of the stream's `State`: only who holds its lock touches it. While there
//!    is one, whatever would be a driver call under that lock (a submission, a marker, an event) goes
//!    to its end. So ticket order is the order at the driver.
//! 2. The devices' threads `warpline-pin` alone hand queues over, and no call of a user waits for
//!    that, but for those that have to be on the driver's stream when they return: foreign work,
//!    and what goes on a borrowed stream, whose owner may use it next.
//! 3. An event that is recorded behind held-back work is [`Coming`]. A stream that waits for one
//!    holds back too, until the event is recorded. A gate on the device would keep that busy, and
//!    page-locking may wait until the device is idle.
//! 4. What the driver refuses when it is handed over has its ticket already. It is a **late**
//!    refusal (`late.rs`): it fails the op's own `Pending` and marks its bytes as any refusal does,
//!    and what is held back behind it and reads them is refused as well (`unwritten.rs`). Markers
//!    go on, so that its ticket is reached.
//! 5. A wait that cannot be handed over gives its stream up: later work was accepted because of it.
//!    Nothing more of that stream reaches the driver, and whoever waits for a place on it that was
//!    not reached is refused, or given up with it.
//!
//! What is held back takes memory of the host and is not limited by the driver's queue. Where that
//! matters a limit of the stream's own does it (`room.rs`), which counts what is held back as in
//! flight.
//!
//! # Why nothing is waited for in a circle
//! The first item of a queue waits for memory, or for an event that stands in the queue of another
//! stream. A stream can wait only for what was recorded before, so the events that queues wait for
//! are in the order in which they were recorded, and the first of them waits for memory. That
//! comes, or is refused, as soon as the driver answers: nothing that is held back has been
//! enqueued, so no stream waits on the device for it.
//!
//! # Lock order
//! A stream's lock → [`Coming`], late refusals, the ledgers. Never two streams': those that follow are handed
//! over after it was let go, and so is dropped what may run code of others or give memory back.

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

/// A stream's work that the driver does not have yet. Empty only while it is made or handed over.
#[derive(Default)]
pub(crate) struct HeldBack {
    queue: VecDeque<Item>,
    /// The wait of the next submission.
    after: Option<After>,
    /// Memory that late refusals before the next item left unwritten.
    unwritten: Unwritten,
}

/// A driver call that is put off.
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

/// The host's end of a copy, once there is one, or why there is none.
#[derive(Default)]
pub(crate) struct Staging(OnceLock<Result<HostEnd>>);

impl Staging {
    pub(crate) fn set(&self, end: Result<HostEnd>) {
        let _ = self.0.set(end);
    }
}

impl State {
    /// Has the next submission, and what comes behind it, wait for `after`.
    #[cold]
    pub(super) fn hold_back(&mut self, core: &StreamCore, after: After) {
        if self.held.is_none() {
            // Earlier work does not depend on this copy's memory, so awaiting it must not either.
            self.mark_newest();
            core.late_begins();
        }
        self.held.get_or_insert_default().after = Some(after);
    }

    /// Puts a marker of the newest ticket off, if something is held back.
    #[inline]
    pub(super) fn puts_marker_off(&mut self) -> bool {
        let Some(held) = &mut self.held else { return false };
        held.queue.push_back(Item::Marker(self.issued));
        true
    }
}

impl HeldBack {
    /// Puts a submission off.
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

    /// Puts an event off that marks the queue's end.
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

/// Work for after the stream's lock was let go.
#[derive(Default)]
struct Left {
    followers: Vec<Arc<StreamCore>>,
    /// It may be the last that holds it.
    memory: Vec<OwnedOperand<Arc<Allocation>>>,
    unseen: Vec<Error>,
    gave_up: bool,
}

/// Hands over what is ready on `core`, then on the streams that waited for events there. By
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
        // Subscribers are notified, and owners of lent memory may be dropped: a panic there is not
        // to keep the followers waiting.
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
                // SAFETY: as in `StreamCore::submit`, which put it off: the uses noted for the
                // ticket and `keeps` are in place since then, and a host address that it did not
                // have yet is that of a `HostEnd`.
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
                // A fault is every op's, and reported by the device.
                left.unseen.extend(unseen.filter(|_| !is_fault));
            }
        }
        left.memory.extend(operands);
    }

    /// Marks what a late refusal left unwritten, and returns the error that ends the mark when it
    /// is looked at.
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
            // As in `StreamCore::mark`: nobody reads the memory of a device that has failed.
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

    /// Rule 5.
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
                    // Everybody's: the stream counts as over once it is idle, and others go on.
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
                    left.followers.extend(coming.fill(Err(DriverError::Refused(text.clone()))));
                }
                Item::Marker(_) => {}
            }
        }
        state.lost = Some(DriverError::Refused(text));
        left.unseen.push(error.clone());
        self.timeline.give_up(error);
        left.gave_up = true;
    }

    /// Waits until nothing is held back on this stream, for a call that leaves work on the driver's
    /// stream itself. Called while no stream's lock is held.
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

    /// Where this stream cannot hold a wait for `from` back, waits until the event there was
    /// recorded. Called while no stream's lock is held.
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
