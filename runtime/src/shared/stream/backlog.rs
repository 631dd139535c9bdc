//! Work that a stream holds back on the host until its first item is ready.
//!
//! Two sorts of work wait on the host: a copy that has no page-locked memory yet, because that is
//! being made or other copies have it, and a wait for a stream of another backend. Each is checked
//! and takes its ticket at the call, like any op. The driver gets it when the memory exists, or
//! when that stream has reached the place. Until then it gets nothing else of that stream either:
//! the rest queues up behind.
//!
//! A CUDA stream could wait for a word that the host writes. But streams share the hardware's
//! queues, and the waiting stream could then block the very work that the host waits for.
//!
//! # Rules
//! 1. The queue is part of the stream's `State`: only the holder of its lock touches it. While
//!    there is a queue, whatever would be a driver call under that lock (a submission, a marker, an
//!    event) goes to its end. So ticket order is the order at the driver.
//! 2. Only the devices' threads `warpline-pin` and `warpline-submit` hand queues over, and the
//!    turns of devices that run in turns: the first when memory exists, the second when a stream
//!    of another backend has reached a place, or an event is there already. The thread that
//!    records an event hands the followers of the same backend over, because the other thread may
//!    be waiting for room at the driver. No user call waits for that, except those whose work has
//!    to be on the driver's stream when they return: foreign work, and work on a borrowed stream,
//!    whose owner may use it next.
//! 3. An event that is recorded behind held-back work is [`Coming`]. A stream that waits for one
//!    **follows** it: it holds back too, until the event is recorded. A gate on the device would
//!    keep the device busy, and page-locking may wait until the device is idle. The event brings
//!    the marks of late refusals before it. So a stream holds back for it even if it is ordered
//!    after that place already.
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
//! memory, or for work that its device has. That work runs: nothing that is held back has been
//! enqueued, so no device waits for it. The memory is being made, and arrives or is refused as
//! soon as the driver answers, or copies return it. These were enqueued before, so they are not
//! held back any more, and end (`memory/pinned/waits.rs`).
//!
//! # Lock order
//! A stream's lock → [`Coming`], late refusals, the ledgers. The locks of two streams are never
//! held at the same time: followers are handed over after the first lock was released. Values
//! whose drop may run user code or return memory are dropped after that too.
// Decision: docs/decisions/0022-copies-without-pinned-memory-are-held-back.md
// Decision: docs/decisions/0053-waits-between-backends-are-held-back.md

use super::coming::{Coming, Recorded, Watched};
use super::unwritten::{BacklogOperand, Unwritten};
use crate::memory::HostEnd;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::{Registration, Ticket};
use warpline_driver::{Command, Copy, CopyKind, DeviceId, DriverError, Error, Health, Result, Submission};

/// A stream's work that the driver does not have yet. It is empty only while it is created or
/// handed over.
pub(crate) struct Backlog {
    /// The stream whose work it is.
    stream: Watched,
    queue: VecDeque<Item>,
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
    pub(super) operands: Vec<BacklogOperand>,
    /// The other devices whose memory it uses.
    pub(super) others: Vec<(DeviceId, Arc<Health>)>,
}

/// The reason why a submission is not ready yet. A further reason is a variant here, with its arms
/// in [`is_ready`](Self::is_ready), [`watch`](Self::watch) and [`resolve`](Self::resolve).
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

/// The end of the wait of an item that is ready.
pub(super) struct Resolved {
    /// Bytes that work before an awaited place left unwritten.
    pub(super) unwritten: Option<Unwritten>,
    /// True if the program has stated that order, so that the stream carries their marks.
    pub(super) stated: bool,
    /// The watched stream of another backend, to be dropped while no lock is held.
    pub(super) stream: Option<Watched>,
    pub(super) outcome: Outcome,
}

/// The outcome of a wait for the item that made it.
pub(super) enum Outcome {
    Ready,
    /// Nothing of it is left for the driver.
    Over,
    Failed(Error),
    /// The driver could not record the event that it waits for.
    Refused(DriverError),
}

impl After {
    fn is_ready(&self) -> bool {
        match self {
            After::Memory(staging) => staging.0.get().is_some(),
            After::Event(coming) | After::Marks { coming, .. } => coming.is_recorded(),
            After::Elsewhere(place) => place.outcome().is_some(),
        }
    }

    /// Arranges that the waker is called at the end of the wait: at once if that has passed.
    fn watch(&self, follower: impl FnOnce() -> Option<Waker>, registration: &mut Option<Registration>) {
        match self {
            // The thread that makes the memory or records the event hands the stream over.
            After::Memory(_) | After::Event(_) => {}
            // Recording the event wakes the followers, unless it was recorded before.
            After::Marks { coming, .. } if coming.is_recorded() => {
                follower().into_iter().for_each(Waker::wake)
            }
            After::Marks { .. } => {}
            After::Elsewhere(place) => {
                if let Some(waker) = follower()
                    && place.register(&waker, registration)
                {
                    waker.wake();
                }
            }
        }
    }

    /// Completes the command with what it was held back for, which is there.
    pub(super) fn resolve(self, command: &mut Command) -> Resolved {
        let is_edge = matches!(command, Command::Edge(_));
        let (mut unwritten, mut stated, mut stream) = (None, false, None);
        let outcome = match self {
            After::Memory(staging) => match staging.0.get().expect("the memory is there") {
                Ok(end) => {
                    set_host_end(command, *end);
                    Outcome::Ready
                }
                Err(error) => Outcome::Failed(error.clone()),
            },
            After::Event(coming) => match (coming.get(), command) {
                (
                    Recorded { event: Ok(event), unwritten: left },
                    Command::Wait(point) | Command::Edge(point),
                ) => {
                    (unwritten, stated) = (Some(left), !is_edge);
                    point.event = event;
                    Outcome::Ready
                }
                (Recorded { event: Err(error), .. }, _) => Outcome::Refused(error),
                _ => unreachable!("only waits wait for events"),
            },
            After::Marks { coming, stated: is_stated } => {
                (unwritten, stated) = (Some(coming.get().unwritten), is_stated);
                Outcome::Over
            }
            After::Elsewhere(place) => {
                let outcome = place.outcome().expect("only items that are ready are handed over");
                if let (Ok(()), Some(coming)) = (&outcome, &place.coming) {
                    // It does not matter here whether the driver could record the event.
                    (unwritten, stated) = (Some(coming.get().unwritten), !is_edge);
                }
                stream = Some(place.stream);
                // Nothing is left to wait for, and this driver does not know that timeline.
                *command = Command::Elided;
                match outcome {
                    Ok(()) if is_edge => Outcome::Over,
                    Ok(()) => Outcome::Ready,
                    Err(error) => Outcome::Failed(error),
                }
            }
        };
        Resolved { unwritten, stated, stream, outcome }
    }
}

fn set_host_end(command: &mut Command, end: HostEnd) {
    match command {
        Command::Copy(Copy { kind: CopyKind::HostToDevice, src, .. }) => *src = end.address(),
        Command::Copy(Copy { kind: CopyKind::DeviceToHost, dst, .. }) => *dst = end.address(),
        Command::StagedCopy(staged) => staged.staging = end.address(),
        _ => unreachable!("only copies from or to the host wait for memory"),
    }
}

/// A place on a stream of another backend.
pub(crate) struct Elsewhere {
    pub(super) stream: Watched,
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
        if self.stream.timeline.reached(self.ticket) {
            let told = self.coming.as_ref().is_none_or(|coming| coming.is_recorded());
            return told.then_some(Ok(()));
        }
        fault.map(|fault| {
            let text = format!("it waits for work of {} that will not run: {fault}", self.stream.device);
            Err(Error::new(fault.kind(), text).caused_like(fault))
        })
    }

    /// Registers `waker` for the end of the wait. Returns true if the wait has ended already.
    fn register(&self, waker: &Waker, registration: &mut Option<Registration>) -> bool {
        // Register first, then look. If the place is reached and its event is yet to be recorded,
        // recording it hands the stream over.
        let _ = self.stream.timeline.register(self.ticket, waker, registration);
        self.outcome().is_some()
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

impl Backlog {
    /// Creates the backlog of a stream whose driver has the marker of `marker_at`.
    pub(super) fn new(stream: Watched, marker_at: Ticket) -> Self {
        Backlog {
            stream,
            queue: VecDeque::new(),
            after: None,
            unwritten: Unwritten::default(),
            watched: None,
            marker_at,
            lost: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns true if the first item waits for another backend.
    #[cfg(feature = "test-util")]
    pub(super) fn waits_for_another_backend(&self) -> bool {
        let Some(Item::Work(work)) = self.queue.front() else { return false };
        matches!(work.after, Some(After::Elsewhere(_)))
    }

    /// Takes everything that is left of a stream that was abandoned for this reason, for good.
    pub(super) fn lose(&mut self, why: DriverError) -> impl Iterator<Item = Item> {
        self.lost = Some(why);
        std::mem::take(&mut self.queue).into_iter()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Makes the next submission, and all work behind it, wait for `after`. `follower` returns the
    /// waker that has the stream handed over.
    pub(super) fn hold_back(&mut self, after: After, follower: impl FnOnce() -> Option<Waker>) {
        if self.is_lost() {
            return;
        }
        self.after = Some(after);
        if self.is_empty() {
            self.watch(follower);
        }
    }

    /// Defers a marker of this ticket. Of an abandoned stream, ops that never reached the driver
    /// would count as reached.
    pub(super) fn put_marker(&mut self, ticket: Ticket) {
        if !self.is_lost() {
            self.queue.push_back(Item::Marker(ticket));
        }
    }

    pub(super) fn ensure_not_lost(&self) -> Result<(), DriverError> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Defers a submission.
    #[cold]
    pub(super) fn submit(&mut self, submission: Submission) -> Result<(), DriverError> {
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

    /// Notes the operands of the newest submission, and the other devices whose memory it uses.
    #[cold]
    pub(super) fn note_operands(
        &mut self,
        operands: Vec<BacklogOperand>,
        others: Vec<(DeviceId, Arc<Health>)>,
    ) {
        let newest = self.queue.iter_mut().rev().find_map(|item| match item {
            Item::Work(work) => Some(work),
            Item::Marker(_) | Item::Event(_) => None,
        });
        if let Some(work) = newest {
            (work.operands, work.others) = (operands, others);
        }
    }

    /// Defers an event at the queue's end.
    #[cold]
    pub(super) fn record(&mut self) -> Result<Arc<Coming>, DriverError> {
        self.ensure_not_lost()?;
        if let Some(Item::Event(coming)) = self.queue.back() {
            return Ok(coming.clone());
        }
        let coming = Arc::new(Coming::on(self.stream.clone()));
        self.queue.push_back(Item::Event(coming.clone())); // weaken: defer-the-event
        Ok(coming)
    }

    pub(super) fn next(&mut self) -> Option<Item> {
        let is_ready = match self.queue.front()? {
            Item::Work(work) => work.after.as_ref().is_none_or(After::is_ready),
            Item::Marker(_) | Item::Event(_) => true,
        };
        if !is_ready {
            return None; // weaken: first-when-ready
        }
        let item = self.queue.pop_front();
        if let Some(Item::Work(work)) = &item
            && let Some(After::Elsewhere(place)) = &work.after
        {
            place.stream.timeline.deregister(&mut self.watched);
        }
        item
    }

    /// Watches what the first item waits for.
    pub(super) fn watch(&mut self, follower: impl FnOnce() -> Option<Waker>) {
        let after = match self.queue.front() {
            Some(Item::Work(work)) => &work.after,
            Some(Item::Marker(_) | Item::Event(_)) => &None,
            None => &self.after,
        };
        if let Some(after) = after {
            after.watch(follower, &mut self.watched);
        }
    }
}
