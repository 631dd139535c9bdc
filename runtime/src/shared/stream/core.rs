//! The core of a stream: its identity, its locked state, and how it opens and closes.
//!
//! # Who may touch what, when
//! * `state` is behind the stream's one lock. The lock is held across "next ticket, check, driver
//!   call", so ticket order is enqueue order. `poll` and `drop` never wait for it: they only need a
//!   marker, and they delegate that (`delegation.rs`).
//! * `known` has a lock of its own, because the allocator reads it while it holds the pool's lock.
//!   It is written only while the stream's lock is held. Holders of that lock read `stated` instead
//!   unless `State::knows_more`, since both are then one clock.
//! * `issued`, `version` and `seen_at` are written under the stream's lock and read by any thread.
//! * The marks that a stream carries change under its lock, and are cleared when it closes.
//! * No user code, waker or twin runs while any of these locks is held.
//!
//! # Mutex order
//! Stream → ledgers, by address → known → waiting. The locks of two streams are never held at the
//! same time. The pool's lock is taken while none of these is held.
//!
//! # The order of the fields
//! An op touches fields of its stream and of the histories of its operands. Among ten thousand
//! streams, most of these cache lines come from memory. The processor waits for each of them,
//! because it starts no later memory access before an atomic operation has finished. So the fields
//! that every op touches are adjacent, in the order of use: in [`StreamCore`], [`State`] and
//! [`DelegationLock`], and in the `Ledger` and `Book` of a history. `repr(C)` keeps the order. A
//! `Stream` handle points directly to its core.

use super::backlog::Backlog;
use super::place::Place;
use super::progress::Progress;
use super::refusals::Refusals;
use crate::background::{self, Duty};
use crate::delegation::DelegationLock;
use crate::order::{Clock, Marks, Named, Site, StreamId, Use};
use crate::shared::panics::{Concern, Epoch, Reached};
use crate::shared::{Capture, DeviceShared};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use tokio::sync::Semaphore;
use warpline_driver::op_events::{self, Traced};
use warpline_driver::timeline::{Released, Ticket, Timeline};
use warpline_driver::{
    Command, DriverError, DriverStream, Error, ErrorKind, Priority, RawHandle, Result, StreamOptions,
    Submission, reentry,
};

/// The number of tickets after which a marker is written at the latest. It serves what waits
/// silently: freed blocks and buffers.
const MARKER_EVERY: u64 = 64;

/// The core of a stream.
#[repr(C)]
pub(crate) struct StreamCore {
    pub(crate) progress: Progress,
    pub(crate) id: StreamId,
    pub(crate) device: Arc<DeviceShared>,
    /// True while the stream is being captured. Written by the thread that captures it.
    pub(crate) captured: AtomicBool,
    /// A copy of `State::closed` for readers that do not take the lock.
    closed: AtomicBool,
    pub(crate) priority: Priority,
    pub(crate) issued: AtomicU64,
    /// A semaphore with as many permits as ops may be in flight, and that number.
    pub(crate) room: Option<(Arc<Semaphore>, usize)>,
    pub(crate) state: DelegationLock<State>,
    pub(crate) version: AtomicU64,
    pub(crate) known: Mutex<Clock>,
    /// The newest ticket that a [`Snapshot`](super::place::Snapshot) stands at. No clock of another
    /// stream has a newer ticket of this one.
    pub(super) seen_at: AtomicU64,
    /// The newest ticket whose clock the host has observed entirely.
    observed_at: AtomicU64,
    pub(crate) refusals: Refusals,
    pub(crate) capture: Mutex<Option<Arc<Capture>>>,
    /// True if the driver's stream is borrowed: its owner may use it as soon as a call has
    /// returned.
    pub(crate) borrowed: bool,
    /// A value that is dropped once the stream is closed and drained: a lease's permit.
    then: Mutex<Option<Box<dyn Any + Send>>>,
    pub(crate) label: Arc<str>,
}

/// The state that the stream's lock guards.
#[repr(C)]
pub(crate) struct State {
    pub(crate) issued: Ticket,
    pub(crate) stated: Clock,
    /// True if the runtime has added edges that the program did not state, so that the known clock
    /// is not the stated one.
    pub(super) knows_more: bool,
    pub(crate) marks: Marks,
    pub(crate) raw: Arc<dyn DriverStream>,
    /// The thread doing foreign work on this stream.
    pub(crate) foreign: Option<ThreadId>,
    pub(crate) closed: bool,
    pub(crate) marker_at: Ticket,
    /// Work that the driver does not have yet, because its first item is not ready. Also there on a
    /// stream that was abandoned.
    pub(crate) backlog: Option<Box<Backlog>>,
    /// The first ticket of the foreign work; 0 if it has none yet.
    pub(crate) foreign_from: Ticket,
    pub(crate) core: Weak<StreamCore>,
    /// The latest waits: stream, its ticket, its version. Repeating one of them does nothing.
    pub(crate) waited: [(StreamId, Ticket, u64); 4],
    pub(super) waited_at: usize,
    /// The values kept for a submission that the driver refused. The thread that holds the lock
    /// drops them after releasing it.
    pub(super) forgotten: Option<Released>,
}

/// The settings of a new stream.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) label: Option<Arc<str>>,
    pub(crate) priority: Priority,
    pub(crate) max_in_flight: Option<usize>,
    pub(crate) then: Option<Box<dyn Any + Send>>,
    pub(crate) borrowed: Option<RawHandle>,
}

impl State {
    fn new(core: Weak<StreamCore>, id: StreamId, raw: Arc<dyn DriverStream>) -> Self {
        State {
            core,
            raw,
            issued: 0,
            marker_at: 0,
            stated: Clock::default(),
            knows_more: false,
            marks: Marks::default(),
            closed: false,
            forgotten: None,
            backlog: None,
            foreign: None,
            foreign_from: 0,
            waited: [(id, u64::MAX, 0); 4],
            waited_at: 0,
        }
    }
}

impl StreamCore {
    pub(crate) fn new(device: Arc<DeviceShared>, settings: Settings) -> Result<Arc<Self>> {
        reentry::may_ask(&"new_stream")?;
        device.ensure_open()?;
        let borrowed = settings.borrowed.is_some();
        let runtime = &device.runtime;
        let id = runtime.observed.admit().ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, format!("{}: 1048576 streams are live; drop some", device.id))
        })?;
        let label = settings.label.unwrap_or_else(|| device.next_label());
        let timeline = Arc::new(Timeline::new());
        let options = StreamOptions {
            label: label.clone(),
            priority: settings.priority,
            key: id.number(),
            runtime: runtime.number,
            borrowed: settings.borrowed,
        };
        let raw = device.driver.new_stream(&options, timeline.clone()).map_err(|error| {
            runtime.observed.retire(id);
            device.refused(&"new_stream", &error)
        })?;
        device.health.watch(&timeline);
        let progress = Progress::new(raw.clone(), timeline, device.signalled);
        let core = Arc::new_cyclic(|core| StreamCore {
            id,
            label,
            priority: settings.priority,
            progress,
            state: DelegationLock::new(State::new(core.clone(), id, raw), device.signalled),
            known: Mutex::default(),
            seen_at: AtomicU64::new(0),
            issued: AtomicU64::new(0),
            version: AtomicU64::new(0),
            observed_at: AtomicU64::new(0),
            refusals: Refusals::default(),
            borrowed,
            room: settings.max_in_flight.map(|most| (Arc::new(Semaphore::new(most)), most)),
            closed: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            capture: Mutex::new(None),
            then: Mutex::new(settings.then),
            device,
        });
        core.device.runtime.join(&core);
        Ok(core)
    }

    pub(crate) fn name(&self) -> Named {
        Named { label: self.label.clone(), device: self.device.id.to_string().into(), id: self.id }
    }

    #[inline]
    pub(crate) fn issued(&self) -> Ticket {
        self.issued.load(Ordering::Acquire)
    }

    /// Returns the newest ticket that is done, even if its waiters have not been woken yet.
    pub(crate) fn completed(&self) -> Ticket {
        self.progress.timeline.newest()
    }

    /// Returns the reason why tickets that are not reached never will be, if there is one.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.device.health.fault().or_else(|| self.progress.timeline.fault())
    }

    /// Returns the newest ticket that a snapshot stands at. A thread that is not ordered after the
    /// newest snapshot may get an earlier one.
    pub(crate) fn seen_at(&self) -> Ticket {
        self.seen_at.load(Ordering::Relaxed)
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Notes that a clock or a carried mark has changed.
    pub(super) fn change_version(&self, _state: &mut State) {
        // The lock that `_state` stands for makes this thread the only writer.
        self.version.store(self.version.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Hands the next ticket's work to the driver. `kept`: true if something is kept for that
    /// ticket. On failure nothing has changed, unless the driver stopped halfway.
    #[inline]
    pub(crate) fn submit(
        &self,
        state: &mut State,
        site: Site,
        command: impl FnOnce(Ticket) -> Command,
        claims: Option<Box<[warpline_driver::Claim]>>,
        kept: bool,
    ) -> Result<Ticket, DriverError> {
        self.before_submit(state);
        let ticket = state.issued + 1;
        // The command is built in the call that hands it over, because it is large.
        let submitted = match &mut state.backlog {
            // SAFETY: `submit` asks that every address is valid for its access until the ticket is
            // reached, and that accesses do not collide. Device addresses come from `Allocation`s.
            // The allocator neither hands their blocks out again nor returns them to the driver
            // before the uses noted for this ticket have finished. Host addresses come from pinned
            // blocks, which `keeps` holds and whose backend `HostEnd` stands for. Collisions: in
            // `deny` mode the order check has passed, and in every other mode `claims` says what is
            // touched.
            None => unsafe {
                state.raw.submit(Submission { ticket, site, command: command(ticket), claims })
            },
            Some(backlog) => backlog.submit(Submission { ticket, site, command: command(ticket), claims }),
        };
        if let Err(error) = &submitted
            && !matches!(error, DriverError::Halfway(_))
        {
            if kept {
                state.forgotten = Some(self.progress.timeline.forget_keeps(ticket));
            }
            return submitted.map(|()| ticket);
        }
        state.issued = ticket;
        if state.foreign.is_some() && state.foreign_from == 0 {
            state.foreign_from = ticket;
        }
        self.issued.store(ticket, Ordering::Release);
        if self.device.signalled
            && (kept || ticket - state.marker_at >= MARKER_EVERY)
            && state.foreign.is_none()
        {
            state.write_marker();
        }
        submitted.map(|()| ticket)
    }

    /// Reports accepted work to trace subscribers, and to a driver that runs in turns. Called after
    /// the lock was released, because subscribers may run user code. `what`: the command's kind,
    /// and the bytes it moves or touches.
    #[inline]
    pub(super) fn submitted(&self, site: Site, ticket: Ticket, what: impl FnOnce() -> (&'static str, u64)) {
        op_events::op_enqueued(ticket, &site, || {
            let (kind, bytes) = what();
            let (runtime, device) = (self.device.runtime.number, self.device.id);
            Traced { runtime, device, label: &self.label, stream_key: self.id.number(), kind, bytes }
        });
        if self.device.runs_in_turns {
            self.device.driver.after_submit();
        }
    }

    #[cold]
    pub(super) fn closed_error(&self, site: Site) -> Error {
        let text =
            format!("{}: the stream is closed, its lease has ended; lease another", site.on(&self.label));
        Error::new(ErrorKind::Closed, text)
    }

    /// Returns the error of `site`'s work, which the driver refused.
    #[cold]
    pub(crate) fn refused(&self, site: Site, error: &DriverError) -> Error {
        self.device.refused(&site.on(&self.label), error)
    }

    /// Keeps an error that no caller received for a `synchronize`
    /// ([`keep_unseen`](Refusals::keep_unseen)), and reports it, as far as
    /// [`error_not_awaited`](crate::report::error_not_awaited) does.
    #[cold]
    pub(crate) fn note_unseen(&self, error: &Error) {
        let is_first = self.refusals.keep_unseen(error);
        let (label, error) = (self.label.clone(), error.clone());
        let report = move || crate::report::error_not_awaited(&label, &error, is_first);
        // A subscriber may wait for work that this thread has yet to hand over.
        if background::duty() == Duty::Submitting { background::detach(report) } else { report() }
    }

    /// Returns the number of entries in the stated clock, for statistics.
    pub(crate) fn clock_len(&self) -> usize {
        let mut state = self.state.lock();
        self.forget_observed(&mut state);
        state.stated.entries().len()
    }

    /// Returns whether the stream takes no more work.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns the error of a place that comes after a host function that panicked.
    #[inline]
    pub(crate) fn panic_before(&self, place: &Place, epoch: Epoch, concern: Concern) -> Option<Error> {
        let Place { ticket, clock, .. } = place;
        self.device.runtime.panics.before(
            self.id,
            &self.label,
            &Reached { ticket: *ticket, clock, epoch, concern },
        )
    }

    /// Notes that the host has seen this stream pass `place`.
    #[inline]
    pub(crate) fn observe(&self, place: &Place) {
        let used = Use { stream: self.id, ticket: place.ticket };
        let observed = &self.device.runtime.observed;
        // A stream that is gone counts as covered. What it had waited for is not observed by that.
        let changed_at = place.clock.changed_at();
        let has_new_clock = changed_at.is_some_and(|at| at > self.observed_at.load(Ordering::Relaxed));
        if !observed.covers(used) || self.is_closed() || has_new_clock {
            observed.observe(used, &place.clock);
            // After that, since a ticket can be covered before all that is before it.
            self.observed_at.fetch_max(place.ticket, Ordering::Release);
        }
    }

    /// Drops the clocks if everything in them is observed, and so before everything.
    pub(crate) fn forget_observed(&self, state: &mut State) {
        let observed_at = self.observed_at.load(Ordering::Acquire);
        if state.stated.changed_at().is_some_and(|at| at <= observed_at) {
            state.stated = Clock::default();
            let mut known = self.known.lock();
            state.knows_more = known.changed_at().is_some_and(|at| at > observed_at);
            if !state.knows_more {
                *known = Clock::default();
            }
        }
    }

    /// Closes the stream: it takes no more work. Work already on it counts as ordered before
    /// whatever touches its memory from now on. No program can name the stream any more, so the
    /// runtime adds the edges. Once that work has run, the stream is before everything.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        self.closed.store(true, Ordering::Release);
        self.device.runtime.observed.close(self.id);
        let last = state.issued;
        let marks = std::mem::take(&mut state.marks);
        drop((state, marks));
        self.refusals.forget_unseen();
        if self.progress.timeline.settle(last) {
            self.retire();
        } else {
            self.progress.timeline.keep_until_last(last, Arc::new(Retire(self.clone())));
            self.want_marker(last);
        }
    }

    /// Retires the closed stream, whose work has finished or will never run. The stream is before
    /// everything from now on.
    fn retire(&self) {
        self.device.runtime.observed.retire(self.id);
        self.device.runtime.leave(self.id);
        let then = self.then.lock().take();
        drop(then);
    }
}

/// A value that the timeline of a closed stream keeps until its last ticket. The stream retires
/// when it is dropped: because the ticket is reached, or because the device has failed and
/// abandoned the stream. Until then it holds the stream, and so the device and its memory.
struct Retire(Arc<StreamCore>);

impl Drop for Retire {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        self.0.retire();
    }
}

impl fmt::Debug for StreamCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Stream(\"{}\" on {}, {} of {})",
            self.label,
            self.device.id,
            self.completed(),
            self.issued()
        )
    }
}
