//! The core of a stream: its identity, its locked state, and how it opens and closes.
//!
//! The core holds the parts of the stream (its line, progress, admission and refusals, and the
//! backlog) and the one lock. Each part states in its own file who may touch what, and when.
//!
//! # Who may touch what, when
//! * `state` is behind the stream's one lock. The lock is held across "next ticket, check, driver
//!   call", so ticket order is enqueue order. `poll` and `drop` never wait for it: they only need a
//!   marker, and they delegate that (`delegation.rs`).
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
//! that every op touches are adjacent, in the order of use: in [`StreamCore`], its parts, [`State`]
//! and [`DelegationLock`], and in the `Ledger` and `Book` of a history. `repr(C)` keeps the order.
//! A `Stream` handle points directly to its core.

use super::admission::{Admission, ForeignWork};
use super::backlog::Backlog;
use super::coming::Watched;
use super::line::{Line, Tip};
use super::progress::Progress;
use super::refusals::Refusals;
use crate::background::{self, Duty};
use crate::delegation::{DelegationLock, Locked};
use crate::order::{MAX_TICKET, Marks, Named, Site, StreamId, Use};
use crate::shared::DeviceShared;
use crate::shared::host_code::{HostCode, Position};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::mem::offset_of;
use std::sync::{Arc, Weak};
use warpline_driver::op_events::{self, Traced};
use warpline_driver::timeline::{Released, Ticket, Timeline};
use warpline_driver::{
    Command, DriverError, DriverStream, Error, ErrorKind, Priority, RawHandle, Result, StreamOptions,
    Submission, reentry,
};

/// The core of a stream.
#[repr(C)]
pub(crate) struct StreamCore {
    pub(crate) progress: Progress,
    pub(crate) id: StreamId,
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) admission: Admission,
    pub(crate) state: DelegationLock<State>,
    pub(crate) line: Line,
    pub(crate) refusals: Refusals,
    pub(crate) priority: Priority,
    pub(crate) label: Arc<str>,
}

/// The state that the stream's lock guards.
#[repr(C)]
pub(crate) struct State {
    pub(crate) marks: Marks,
    /// Work that the driver does not have yet, because its first item is not ready. Also there on a
    /// stream that was abandoned.
    pub(crate) backlog: Option<Box<Backlog>>,
    /// The newest ticket that has a marker.
    pub(crate) marker_at: Ticket,
    /// The foreign work that is being put on the stream.
    pub(crate) foreign: Option<Box<ForeignWork>>,
    pub(crate) tip: Tip,
    /// Also in `Progress`: who serves a request for a marker has the state alone.
    pub(crate) driver: Arc<dyn DriverStream>,
    pub(crate) core: Weak<StreamCore>,
    /// The span of the call that holds the lock to enqueue something.
    caller: Option<tracing::Id>,
    /// The values kept for a submission that the driver refused. The thread that holds the lock
    /// drops them after releasing it.
    pub(super) forgotten: Option<Released>,
    /// A value that is dropped once the stream is closed and drained: a lease's permit.
    then: Option<Box<dyn Any + Send>>,
}

/// The most bytes from the first to the last field that every op touches: with the counts of the
/// `Arc` before them, they are on at most four cache lines, wherever the allocation begins.
const HOT_BYTES: usize = 4 * 64 - 48 - 16;
const _: () = assert!(
    offset_of!(StreamCore, state)
        + DelegationLock::<State>::STATE_AT
        + offset_of!(State, tip)
        + Tip::HOT_BYTES
        <= HOT_BYTES
);

/// The settings of a new stream.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) label: Option<Arc<str>>,
    pub(crate) priority: Priority,
    pub(crate) max_in_flight: Option<usize>,
    pub(crate) then: Option<Box<dyn Any + Send>>,
    pub(crate) borrowed: Option<RawHandle>,
}

impl StreamCore {
    pub(crate) fn new(device: Arc<DeviceShared>, settings: Settings) -> Result<Arc<Self>> {
        reentry::may_ask(&"new_stream")?;
        device.ensure_open()?;
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
        let driver = device.driver.new_stream(&options, timeline.clone()).map_err(|error| {
            runtime.observed.retire(id);
            device.refused(&"new_stream", &error)
        })?;
        device.health.watch(&timeline);
        let core = Arc::new_cyclic(|core: &Weak<StreamCore>| {
            let state = State {
                marks: Marks::default(),
                backlog: None,
                marker_at: 0,
                foreign: None,
                tip: Tip::new(id),
                driver: driver.clone(),
                core: core.clone(),
                caller: None,
                forgotten: None,
                then: settings.then,
            };
            StreamCore {
                id,
                label,
                priority: settings.priority,
                progress: Progress::new(driver, timeline, device.signalled),
                admission: Admission::new(settings.borrowed.is_some(), settings.max_in_flight),
                state: DelegationLock::new(state, device.signalled),
                line: Line::default(),
                refusals: Refusals::default(),
                device,
            }
        });
        core.device.runtime.join(&core);
        if core.admission.is_borrowed() {
            core.note_host_code(HostCode::BorrowedStream, Site::here(&"borrow_raw"), 0);
        }
        Ok(core)
    }

    pub(crate) fn name(&self) -> Named {
        Named { label: self.label.clone(), device: self.device.id.to_string().into(), id: self.id }
    }

    #[inline]
    pub(crate) fn issued(&self) -> Ticket {
        self.progress.issued()
    }

    /// Returns the newest ticket that is done, even if its waiters have not been woken yet.
    pub(crate) fn completed(&self) -> Ticket {
        self.progress.timeline.newest()
    }

    /// Returns whether everything that is enqueued here from now on is ordered after `used`.
    pub(crate) fn knows(&self, used: Use) -> bool {
        self.line.knows(used)
    }

    pub(crate) fn position(&self, ticket: Ticket) -> Position {
        Position { backend: self.device.id.backend(), used: Use { stream: self.id, ticket } }
    }

    /// Notes host code on this stream ([`HostCodes::note`](crate::shared::host_code::HostCodes)).
    pub(crate) fn note_host_code(&self, what: HostCode, site: Site, ticket: Ticket) {
        if ticket == 0 && what != HostCode::BorrowedStream {
            // A capture refuses it.
            return;
        }
        let end = (self.progress.timeline.clone(), ticket);
        self.device.runtime.host_code.note(what, site, self.position(ticket), end);
    }

    /// Notes a gate of this stream, which opens at the first ticket of `gate`.
    #[cfg(feature = "test-util")]
    pub(crate) fn note_gate(&self, site: Site, ticket: Ticket, gate: Arc<Timeline>) {
        self.device.runtime.host_code.note(HostCode::Gate, site, self.position(ticket), (gate, 1));
    }

    /// Returns the reason why tickets that are not reached never will be, if there is one.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.device.health.fault().or_else(|| self.progress.timeline.fault())
    }

    /// Takes the lock in order to enqueue something.
    ///
    /// On success the stream is open, the device is usable, and no other thread does foreign work
    /// here. `turn`: true if the caller holds the turn for foreign work.
    #[inline(always)]
    pub(crate) fn lock(&self, site: Site, turn: bool) -> Result<Locked<'_, State>> {
        self.may_ask(site)?;
        // Before the lock is taken, since a subscriber's code answers.
        let caller = op_events::caller();
        let mut state = self.state.lock();
        if state.tip.closed || (state.foreign.is_some() && !turn) || state.tip.issued >= MAX_TICKET {
            state = self.lock_slowly(state, site, turn)?;
        }
        self.device.ensure_open()?;
        // Also if it is none: a call before, which enqueued nothing, may have left its own.
        if op_events::listened_to() {
            state.caller = caller;
        }
        Ok(state)
    }

    /// Refuses calls from code that a device waits for. The holder of the stream's lock may be
    /// waiting for room that only becomes free once that code has returned.
    #[inline]
    pub(crate) fn may_ask(&self, site: Site) -> Result<()> {
        if reentry::holds_a_device() { Err(reentry::refused(&site.on(&self.label))) } else { Ok(()) }
    }

    #[cold]
    fn lock_slowly<'a>(
        &'a self,
        mut state: Locked<'a, State>,
        site: Site,
        turn: bool,
    ) -> Result<Locked<'a, State>> {
        if !turn {
            state = self.wait_for_turn(state, site)?;
        }
        if state.tip.closed || state.tip.issued >= MAX_TICKET {
            return Err(self.closed_error(site));
        }
        Ok(state)
    }

    /// Checks that the stream takes allocations: it is open and the device is usable.
    #[inline]
    pub(crate) fn ensure_open(&self, site: Site) -> Result<()> {
        self.may_ask(site)?;
        if self.is_closed() {
            return Err(self.closed_error(site));
        }
        self.device.ensure_open()
    }

    /// Waits until no thread does foreign work here.
    ///
    /// # Errors
    /// `Reentrant` if this thread does the foreign work, or must not wait.
    #[cold]
    pub(super) fn wait_for_turn<'a>(
        &'a self,
        mut state: Locked<'a, State>,
        site: Site,
    ) -> Result<Locked<'a, State>> {
        while let Some(foreign) = &state.foreign {
            let why = if foreign.is_here() {
                "this thread is inside foreign work on the stream; enqueue through the raw stream \
                 that the closure received, or after the closure returns"
            } else if !reentry::may_block() {
                "another thread is inside foreign work on the stream, and a waker must not wait \
                 for it; enqueue in a task"
            } else {
                let turns = self.device.foreign_turns.ended();
                drop(state);
                self.device.foreign_turns.wait_for_more_than(turns);
                state = self.state.lock();
                continue;
            };
            return Err(Error::new(ErrorKind::Reentrant, format!("{}: {why}", site.on(&self.label))));
        }
        Ok(state)
    }

    /// Makes sure that a marker for `ticket` will be written, without waiting for the stream's
    /// lock.
    #[inline]
    pub(crate) fn want_marker(self: &Arc<Self>, ticket: Ticket) {
        if self.device.signalled && background::duty().is_barred() {
            let core = self.clone();
            return background::run_where_it_may_block(move || core.state.delegate(ticket));
        }
        self.state.delegate(ticket);
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
        state.before_submit(&self.progress);
        let ticket = state.tip.issued + 1;
        let caller = if op_events::listened_to() { state.caller.take() } else { None };
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
                self.progress.driver().submit(Submission {
                    ticket,
                    site,
                    command: command(ticket),
                    claims,
                    caller,
                })
            },
            Some(backlog) => {
                backlog.submit(Submission { ticket, site, command: command(ticket), claims, caller })
            }
        };
        if let Err(error) = &submitted
            && !matches!(error, DriverError::Halfway(_))
        {
            if kept {
                state.forgotten = Some(self.progress.timeline.forget_keeps(ticket));
            }
            return submitted.map(|()| ticket);
        }
        state.tip.issued = ticket;
        if let Some(foreign) = &mut state.foreign {
            foreign.note_ticket(ticket);
        }
        self.progress.note_issued(ticket);
        if self.device.signalled {
            state.after_submit(kept);
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
            Traced {
                runtime,
                device,
                label: &self.label,
                stream_key: self.id.number(),
                kind,
                bytes,
                caller: None,
            }
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
        self.line.forget_observed(&mut state.tip);
        state.tip.stated.entries().len()
    }

    /// Returns whether the stream takes no more work.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.admission.is_closed()
    }

    /// Returns the stream as others may watch it.
    pub(super) fn as_watched(&self) -> Watched {
        let (timeline, device) = (self.progress.timeline.clone(), &self.device);
        Watched { timeline, device: device.id, health: device.health.clone() }
    }

    /// Closes the stream: it takes no more work. Work already on it counts as ordered before
    /// whatever touches its memory from now on. No program can name the stream any more, so the
    /// runtime adds the edges. Once that work has run, the stream is before everything.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.tip.closed, true) {
            return;
        }
        self.admission.close();
        self.device.runtime.observed.close(self.id);
        let last = state.tip.issued;
        let (marks, then) = (std::mem::take(&mut state.marks), state.then.take());
        drop((state, marks));
        self.refusals.forget_unseen();
        let retire = Retire { core: self.clone(), then: then.map(Mutex::new) };
        if self.progress.timeline.settle(last) {
            drop(retire);
        } else {
            self.progress.timeline.keep_until_last(last, Arc::new(retire));
            self.want_marker(last);
        }
    }
}

/// A value that the timeline of a closed stream keeps until its last ticket. The stream retires
/// when it is dropped, and is before everything from then on: because the ticket is reached, or
/// because the device has failed and abandoned the stream. Until then it holds the stream, and so
/// the device and its memory.
struct Retire {
    core: Arc<StreamCore>,
    /// Dropped once the stream has retired, before the stream.
    then: Option<Mutex<Box<dyn Any + Send>>>,
}

impl Drop for Retire {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            std::mem::forget(self.then.take());
            return;
        }
        self.core.device.runtime.observed.retire(self.core.id);
        self.core.device.runtime.leave(self.core.id);
        self.core.device.tally.left(self.core.issued());
        if self.core.admission.is_borrowed() {
            self.core.device.runtime.host_code.forget(Use { stream: self.core.id, ticket: 0 });
        }
        drop(self.then.take());
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
