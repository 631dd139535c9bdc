//! Work that a stream holds back on the host until its first item is ready.
//!
//! Two sorts of work wait on the host: a copy whose page-locked memory does not exist yet, and a
//! wait for a stream of another backend. Each is checked and takes its ticket at the call, like any
//! op. The driver gets it when the memory exists, or when that stream has reached the place. Until
//! then it gets nothing else of that stream either: the rest queues up behind.
//!
//! A CUDA stream could wait for a word that the host writes. But streams share the hardware's
//! queues, and the waiting stream could then block the very work that the host waits for.
//!
//! # Rules
//! 1. The queue is part of the stream's `State`: only the holder of its lock touches it. While
//!    there is a queue, whatever would be a driver call under that lock (a submission, a marker, an
//!    event) goes to its end. So ticket order is the order at the driver.
//! 2. Only the devices' threads `warpline-pin` and `warpline-submit` hand queues over: the first
//!    when memory exists, the second when a stream of another backend has reached a place, or an
//!    event is there already. No user call waits for that, except those whose work has to be on the
//!    driver's stream when they return: foreign work, and work on a borrowed stream, whose owner
//!    may use it next.
//! 3. An event that is recorded behind held-back work is [`Coming`]. A stream that waits for one
//!    holds back too, until the event is recorded. A gate on the device would keep the device busy,
//!    and page-locking may wait until the device is idle. The event brings the marks of late
//!    refusals before it. So a stream holds back for it even if it is ordered after that place
//!    already.
//! 4. The place that the first item waits for on another backend is **watched**: a waker in that
//!    stream's waiting list has the queue handed over. The other items are looked at when they come
//!    first. The waker is registered under the lock, and looks at nothing: `warpline-submit` takes
//!    the lock and looks. So a place that is reached, or that fails, at any time is found.
//! 5. An op that the driver refuses at its hand-over has its ticket already. Its refusal is
//!    **late** (`late.rs`): it fails the op's own `Pending` and marks its bytes as any refusal
//!    does. Work that is held back behind the op and reads those bytes is refused as well
//!    (`unwritten.rs`). The op's ticket is reached nevertheless: markers are still handed over, and
//!    a device that completes each op gets one that does nothing.
//! 6. If a wait cannot be handed over, or waits for work that will not run, its stream is
//!    abandoned, because later work was accepted on the strength of that wait. Nothing more of that
//!    stream reaches the driver: its queue stays, **lost**, and refuses whatever comes. Work that
//!    waits for a place on it that was not reached is refused, or abandoned with it. Once the
//!    driver has run what it had before, everything kept for the stream is released. The device is
//!    still usable.
//!
//! Held-back work takes host memory, and the driver's queue does not limit it. Where that matters,
//! the stream's own limit does (`room.rs`), which counts held-back work as in flight.
//!
//! # Why nothing is waited for in a circle
//! The first item of a queue waits for memory, for an event in the queue of another stream, or for
//! a place on a stream of another backend. A stream can wait only for what was enqueued before. So
//! all these waits are in the order of the calls that made them. The first of them waits for
//! memory, or for work that its device has. That memory arrives, or is refused, as soon as the
//! driver answers, and that work runs: nothing that is held back has been enqueued, so no device
//! waits for it.
//!
//! # Lock order
//! A stream's lock → [`Coming`], late refusals, the ledgers. The locks of two streams are never
//! held at the same time: following streams are handed over after the first lock was released.
//! Values whose drop may run user code or return memory are dropped after that too.
// Decision: docs/decisions/0022-copies-without-pinned-memory-are-held-back.md
// Decision: docs/decisions/0053-waits-between-backends-are-held-back.md

use super::coming::Coming;
use super::core::{State, StreamCore};
use super::hand_over::hand_over;
use super::place::Snapshot;
use super::turns::block_until;
use super::unwritten::Unwritten;
use crate::background;
use crate::memory::HostEnd;
use crate::order::{MAX_TICKET, Site};
use crate::shared::{Allocation, DeviceShared, Operand, OwnedOperand};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Wake, Waker};
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::{Registration, Ticket};
use warpline_driver::{DeviceId, DriverError, Error, ErrorKind, Health, Result, Submission, reentry};

/// A stream's work that the driver does not have yet. It is empty only while it is created or
/// handed over.
#[derive(Default)]
pub(crate) struct Backlog {
    pub(super) queue: VecDeque<Item>,
    /// The condition that the next submission waits for.
    after: Option<After>,
    /// Memory that late refusals before the next item left unwritten.
    pub(super) unwritten: Unwritten,
    /// The waker of the first item, in the waiting list of the stream that the item waits for.
    watched: Option<Registration>,
    /// The newest ticket whose marker the driver has.
    pub(super) marker_at: Ticket,
    /// The reason why the stream was abandoned. The queue is then empty for good.
    pub(super) lost: Option<DriverError>,
}

/// A deferred driver call.
pub(super) enum Item {
    Work(Box<Work>),
    Marker(Ticket),
    Event(Arc<Coming>),
}

pub(super) struct Work {
    pub(super) submission: Submission,
    pub(super) after: Option<After>,
    pub(super) operands: Vec<OwnedOperand<Weak<Allocation>>>,
    /// The other devices whose memory it uses.
    pub(super) others: Vec<(DeviceId, Arc<Health>)>,
}

/// The part of a submission that has to be ready before it can be handed over.
pub(crate) enum After {
    /// The host's end of a copy.
    Memory(Arc<Staging>),
    /// The event of a wait.
    Event(Arc<Coming>),
    /// The place of a wait for another backend.
    Elsewhere(Elsewhere),
    /// The marks that the backlog before an event leaves, where the order holds already. The driver
    /// gets nothing. `stated`: true if the program has stated that order, so that this stream
    /// carries them from then on.
    Marks { coming: Arc<Coming>, stated: bool },
}

impl After {
    fn is_ready(&self) -> bool {
        match self {
            After::Memory(staging) => staging.0.get().is_some(),
            After::Event(coming) | After::Marks { coming, .. } => coming.is_recorded(),
            After::Elsewhere(place) => place.outcome().is_some(),
        }
    }
}

/// A place on a stream of another backend.
pub(crate) struct Elsewhere {
    pub(super) stream: Arc<StreamCore>,
    pub(super) ticket: Ticket,
    /// The event of the place, if it was held back itself. Recording it tells what the work before
    /// it left unwritten. The device may reach the place before that.
    pub(super) coming: Option<Arc<Coming>>,
}

impl Elsewhere {
    /// Returns `Ok` if the place is reached, an error if it never will be, and `None` before that.
    pub(super) fn outcome(&self) -> Option<Result<()>> {
        // The place may have been reached just before the device failed: read the fault first.
        let fault = self.stream.fault();
        if self.stream.progress.timeline.reached(self.ticket) {
            let told = self.coming.as_ref().is_none_or(|coming| coming.is_recorded());
            return told.then_some(Ok(()));
        }
        fault.map(|fault| {
            let text = format!("it waits for work of {} that will not run: {fault}", self.stream.device.id);
            Err(Error::new(fault.kind(), text).caused_like(fault))
        })
    }

    /// Registers `waker` for the end of the wait. Returns true if the wait has ended already.
    fn register(&self, waker: &Waker, registration: &mut Option<Registration>) -> bool {
        // Register first, then look. If the place is reached and its event is yet to be recorded,
        // recording it hands the stream over.
        let _ = self.stream.progress.timeline.register(self.ticket, waker, registration);
        self.outcome().is_some()
    }
}

/// A waker that has the stream's queue handed over.
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

/// The host's end of a copy once it exists, or the reason why there is none.
#[derive(Default)]
pub(crate) struct Staging(pub(super) OnceLock<Result<HostEnd>>);

impl Staging {
    pub(crate) fn set(&self, end: Result<HostEnd>) {
        let _ = self.0.set(end);
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
        let marker_at = self.marker_at;
        let backlog =
            self.backlog.get_or_insert_with(|| Box::new(Backlog { marker_at, ..Backlog::default() }));
        if backlog.lost.is_some() {
            return;
        }
        backlog.after = Some(after);
        if backlog.queue.is_empty() {
            backlog.watch(&self.core);
        }
    }

    /// Defers a marker of the newest ticket, if something is held back. Returns whether it did.
    #[inline]
    pub(super) fn puts_marker_off(&mut self) -> bool {
        let Some(backlog) = &mut self.backlog else { return false };
        // Of an abandoned stream, ops that never reached the driver would count as reached.
        if backlog.lost.is_none() {
            backlog.queue.push_back(Item::Marker(self.issued));
        }
        true
    }

    /// Returns true if work waits on the host.
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.as_ref().is_some_and(|backlog| backlog.lost.is_none())
    }

    /// Returns the reason why the stream was abandoned, if it was.
    #[inline]
    pub(super) fn ensure_not_lost(&self) -> Result<(), DriverError> {
        match &self.backlog {
            Some(backlog) => backlog.ensure_not_lost(),
            None => Ok(()),
        }
    }
}

impl Backlog {
    fn ensure_not_lost(&self) -> Result<(), DriverError> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Defers a submission.
    #[cold]
    pub(crate) fn submit(&mut self, submission: Submission) -> Result<(), DriverError> {
        if let Some(why) = &self.lost {
            submission.command.drop_elsewhere();
            return Err(why.clone());
        }
        let after = self.after.take();
        self.queue.push_back(Item::Work(Box::new(Work {
            submission,
            after,
            operands: Vec::new(),
            others: Vec::new(),
        })));
        Ok(())
    }

    /// Notes the operands of the newest submission.
    #[cold]
    pub(super) fn note_operands(&mut self, device: &Arc<DeviceShared>, operands: &[Operand<'_>]) {
        if let Some(Item::Work(work)) = self.queue.iter_mut().rfind(|item| matches!(item, Item::Work(_))) {
            let owned = |operand: &Operand<'_>| {
                let Operand { allocation, range, access } = *operand;
                OwnedOperand { allocation: Arc::downgrade(allocation), range, access }
            };
            work.operands = operands.iter().map(owned).collect();
            let devices = operands.iter().map(|operand| &operand.allocation.device);
            let others = devices.filter(|other| !Arc::ptr_eq(other, device));
            work.others = others.map(|other| (other.id, other.health.clone())).collect();
        }
    }

    /// Defers an event at the queue's end.
    #[cold]
    pub(crate) fn record(&mut self, stream: &Weak<StreamCore>) -> Result<Arc<Coming>, DriverError> {
        self.ensure_not_lost()?;
        if let Some(Item::Event(coming)) = self.queue.back() {
            return Ok(coming.clone());
        }
        let coming = Arc::new(Coming::of(stream.clone()));
        self.queue.push_back(Item::Event(coming.clone()));
        Ok(coming)
    }

    pub(super) fn next(&mut self) -> Option<Item> {
        let is_ready = match self.queue.front()? {
            Item::Work(work) => work.after.as_ref().is_none_or(After::is_ready),
            Item::Marker(_) | Item::Event(_) => true,
        };
        if !is_ready {
            return None;
        }
        let item = self.queue.pop_front();
        if let Some(Item::Work(work)) = &item
            && let Some(After::Elsewhere(place)) = &work.after
        {
            place.stream.progress.timeline.deregister(&mut self.watched);
        }
        item
    }

    /// Watches what the first item waits for, if it is on another backend or may be there already.
    pub(super) fn watch(&mut self, core: &Weak<StreamCore>) {
        let after = match self.queue.front() {
            Some(Item::Work(work)) => &work.after,
            Some(Item::Marker(_) | Item::Event(_)) => &None,
            None => &self.after,
        };
        if !matches!(after, Some(After::Elsewhere(_) | After::Marks { .. })) {
            return;
        }
        let Some(core) = core.upgrade() else { return };
        let waker = Waker::from(Arc::new(HandsOver(core)));
        let is_over = match after {
            Some(After::Elsewhere(place)) => place.register(&waker, &mut self.watched),
            // Recording the event hands the stream over, unless it was recorded before.
            Some(after) => after.is_ready(),
            None => false,
        };
        if is_over {
            waker.wake();
        }
    }
}

impl StreamCore {
    /// Waits until nothing is held back on this stream, for a call that enqueues on the driver's
    /// stream directly. Called while no stream's lock is held.
    ///
    /// # Errors
    /// `Reentrant` if this thread must not wait.
    pub(crate) fn wait_until_handed_over(self: &Arc<Self>, site: Site) -> Result<()> {
        if !self.state.lock().has_backlog() {
            return Ok(());
        }
        self.may_block(site)?;
        block_until(self, MAX_TICKET, || {
            !self.state.lock().has_backlog() || self.device.health.fault().is_some()
        });
        Ok(())
    }

    /// Waits on the host until the driver can wait for `from` itself, if this stream is borrowed
    /// and so cannot hold the wait back. Called while no stream's lock is held.
    ///
    /// # Errors
    /// `Reentrant` if this thread must not wait.
    #[inline]
    pub(crate) fn wait_if_borrowed(&self, site: Site, from: &Snapshot) -> Result<()> {
        if self.borrowed && (from.coming.is_some() || self.is_elsewhere(from)) {
            self.wait_on_the_host(site, from)?;
        }
        Ok(())
    }

    /// Waits until the driver can wait for `from` itself: until its event was recorded or, on
    /// another backend, until it is reached. Also returns if that will never happen. Called while
    /// no stream's lock is held.
    ///
    /// # Errors
    /// `Reentrant` if this thread must not wait.
    #[cold]
    pub(super) fn wait_on_the_host(&self, site: Site, from: &Snapshot) -> Result<()> {
        let Some(stream) = self.stream_of(from) else { return Ok(()) };
        let (timeline, ticket) = (&from.timeline, from.used.ticket);
        let is_told = || from.is_told() || stream.fault().is_some();
        let is_over = || !self.is_elsewhere(from) || timeline.reached(ticket) || stream.fault().is_some();
        if is_told() && is_over() {
            return Ok(());
        }
        self.may_block(site)?;
        stream.want_marker(ticket);
        // All waiters of a stream are woken after an event was recorded there. A waiter at `ticket`
        // would not be registered if that is reached already, and so never woken.
        block_until(&stream, MAX_TICKET, is_told);
        block_until(&stream, ticket, is_over);
        Ok(())
    }

    #[cold]
    fn may_block(&self, site: Site) -> Result<()> {
        if reentry::may_block() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Reentrant,
            format!(
                "{}: earlier work on the stream waits on the host, for page-locked memory or for \
                 another device, and a waker must not wait for that; enqueue in a task",
                site.on(&self.label)
            ),
        ))
    }
}
