//! A stream's state, and the one way onto it.
//!
//! # Who may touch what, when
//! * `state` is behind the stream's one lock. It is held across "next ticket, check, driver call", so that ticket order is enqueue
//!   order. `poll` and `drop` never wait for it: all they want is a marker, and they delegate that (`delegation.rs`).
//! * `known` has a lock of its own, because the allocator reads it while it holds the pool. It is written only while the lock
//!   is held.
//! * `issued` and `version` are written under the lock and read by anybody.
//! * The marks that a stream carries are changed under its lock, and cleared when it closes.
//! * No user code, waker or twin runs while any of these is held.
//!
//! # Mutex order
//! lock of the stream → ledgers, by address → known → waiting. Never those of two streams at once. The pool's lock is taken with none held.

use super::held::HeldBack;
use super::late::Late;
use super::place::Place;
use crate::delegation::{DelegationLock, Locked};
use crate::order::{Clock, MAX_TICKET, Marks, Named, Site, StreamId, Use};
use crate::shared::panics::{Concern, Epoch, Reached};
use crate::shared::{Capture, DeviceShared};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use tokio::sync::Semaphore;
use warpline_driver::op_events::{self, Traced};
use warpline_driver::timeline::{Released, Ticket, Timeline};
use warpline_driver::{
    Command, DriverError, DriverStream, Error, ErrorKind, Priority, RawHandle, Result, StreamOptions,
    Submission, reentry,
};

/// At the latest after this many tickets a marker is written, so that what waits silently (freed blocks, buffers) is served.
const MARKER_EVERY: u64 = 64;
/// What every op touches comes first and lies together, here and in [`State`]: among thousands of streams each line of it has to be
/// fetched.
#[repr(C)]
pub(crate) struct StreamCore {
    pub(crate) id: StreamId,
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) timeline: Arc<Timeline>,
    /// The stream at the driver, for what needs no lock.
    pub(crate) driver: Arc<dyn DriverStream>,
    /// Whether it is being captured, and by which capture: written by that capture's thread.
    pub(crate) captured: AtomicBool,
    /// As `State::closed`, for those who do not take the lock.
    closed: AtomicBool,
    /// A hint that `late` has entries, or may soon have some (`late.rs`).
    pub(super) late_matters: AtomicU8,
    pub(crate) priority: Priority,
    pub(crate) issued: AtomicU64,
    /// As many permits as ops may be in flight.
    pub(crate) room: Option<(Arc<Semaphore>, usize)>,
    pub(crate) state: DelegationLock<State>,
    pub(crate) version: AtomicU64,
    pub(crate) known: Mutex<Clock>,
    /// The newest ticket that a `Pending` was made for. Only kept where markers are written.
    pub(crate) held: AtomicU64,
    /// That ticket, if its `Pending` was dropped or passed on.
    pub(crate) let_go: AtomicU64,
    /// The newest ticket that an event or a `synchronize` stands at. Only kept where markers are written.
    pub(super) stood_at: AtomicU64,
    /// Errors that nobody was told of, oldest first.
    pub(crate) unseen: Mutex<VecDeque<Error>>,
    pub(crate) capture: Mutex<Option<Arc<Capture>>>,
    /// Refusals that came after the call.
    pub(super) late: Late,
    /// True if the driver's stream is borrowed: its owner may use it when a call has returned.
    pub(crate) borrowed: bool,
    /// What is let go once the stream is closed and drained: a lease's permit.
    then: Mutex<Option<Box<dyn Any + Send>>>,
    pub(crate) label: Arc<str>,
}

/// What the stream's lock guards.
#[repr(C)]
pub(crate) struct State {
    pub(crate) issued: Ticket,
    pub(crate) stated: Clock,
    pub(crate) marks: Marks,
    pub(crate) raw: Arc<dyn DriverStream>,
    /// The thread doing foreign work on this stream.
    pub(crate) foreign: Option<ThreadId>,
    pub(crate) closed: bool,
    pub(crate) marked: Ticket,
    /// Work that the driver does not have yet, because its first item is not ready.
    pub(crate) held: Option<Box<HeldBack>>,
    /// The first ticket of that work; 0: it has none yet.
    pub(crate) foreign_from: Ticket,
    pub(crate) core: Weak<StreamCore>,
    /// The latest waits: stream, its ticket, its version. Asking for the same again is nothing to do.
    pub(crate) waited: [(StreamId, Ticket, u64); 4],
    pub(super) waited_at: usize,
    /// What was kept for a submission that the driver refused, to be dropped by whoever lets go of the lock.
    pub(super) forgotten: Option<Released>,
    /// Why what was accepted never got to the driver, and nothing more does.
    pub(crate) lost: Option<DriverError>,
}

/// What makes a stream.
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
        let driver = raw.clone();
        let state = |core: &Weak<StreamCore>| State {
            core: core.clone(),
            raw,
            issued: 0,
            marked: 0,
            stated: Clock::default(),
            marks: Marks::default(),
            closed: false,
            forgotten: None,
            held: None,
            lost: None,
            foreign: None,
            foreign_from: 0,
            waited: [(id, u64::MAX, 0); 4],
            waited_at: 0,
        };
        let core = Arc::new_cyclic(|core| StreamCore {
            id,
            label,
            priority: settings.priority,
            timeline,
            driver,
            state: DelegationLock::new(state(core), device.signalled),
            known: Mutex::default(),
            issued: AtomicU64::new(0),
            version: AtomicU64::new(0),
            held: AtomicU64::new(0),
            let_go: AtomicU64::new(0),
            stood_at: AtomicU64::new(0),
            unseen: Mutex::default(),
            late_matters: AtomicU8::new(0),
            late: Late::default(),
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

    /// Spreads streams over the shards of shared ledgers.
    #[inline]
    pub(crate) fn shard(&self) -> usize {
        self.id.number() as usize
    }

    #[inline]
    pub(crate) fn issued(&self) -> Ticket {
        self.issued.load(Ordering::Acquire)
    }

    /// The newest ticket that is done, also if nobody has been woken for it yet.
    pub(crate) fn completed(&self) -> Ticket {
        self.timeline.newest()
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Sits down to enqueue something: the stream is open, the device works, and nobody does foreign work here. `turn`: whether
    /// the caller is the one that does.
    #[inline(always)]
    pub(crate) fn lock(&self, site: Site, turn: bool) -> Result<Locked<'_, State>> {
        self.may_ask(site)?;
        let state = self.state.lock();
        if state.closed || (state.foreign.is_some() && !turn) || state.issued >= MAX_TICKET {
            return self.lock_slowly(state, site, turn);
        }
        self.device.ensure_open()?;
        Ok(state)
    }

    /// Refuses code that a device waits for: who holds the stream's lock may wait for room that comes when
    /// that code has returned.
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
        if state.closed || state.issued >= MAX_TICKET {
            return Err(self.closed_error(site));
        }
        self.device.ensure_open()?;
        Ok(state)
    }

    /// Waits until nobody does foreign work here.
    ///
    /// # Errors
    /// `Reentrant` if this thread does, or must not wait.
    #[cold]
    pub(super) fn wait_for_turn<'a>(
        &'a self,
        mut state: Locked<'a, State>,
        site: Site,
    ) -> Result<Locked<'a, State>> {
        while let Some(thread) = state.foreign {
            let why = if thread == std::thread::current().id() {
                "this thread holds the stream's turn for foreign work; enqueue through the raw stream it was given, or after it \
                 returns"
            } else if !reentry::may_block() {
                "another thread holds the stream's turn for foreign work, and a waker must not wait for it; enqueue in a task"
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

    /// Whether the stream takes allocations: it is open and the device works.
    #[inline]
    pub(crate) fn ensure_open(&self, site: Site) -> Result<()> {
        self.may_ask(site)?;
        if self.closed.load(Ordering::Acquire) {
            return Err(self.closed_error(site));
        }
        self.device.ensure_open()
    }

    /// What the next ticket's `Pending` will need, should it be held.
    #[inline]
    pub(super) fn before_submit(&self, state: &mut State) {
        if self.device.signalled
            && state.marked < state.issued
            && (self.is_held(state.issued) || self.stood_at.load(Ordering::Relaxed) == state.issued)
            && state.foreign.is_none()
        {
            state.mark();
        }
    }

    /// Hands the next ticket's work to the driver. `kept`: whether something is kept for that ticket. On failure nothing has
    /// changed, unless the driver stopped halfway.
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
        // Made where it is handed over: a command is large.
        let submitted = match &mut state.held {
            // SAFETY: `submit` asks that every address is valid for its access until the ticket is
            // reached, and that accesses do not collide. Device addresses come from `Allocation`s,
            // whose blocks the allocator gives to nobody and back to no driver before the uses
            // noted for this ticket are over; host addresses from pinned blocks, which `keeps`
            // holds, and whose backend `HostEnd` stands for. Collisions: the order check has passed
            // in `deny`, and `claims` says what is touched in every other mode.
            None => unsafe {
                state.raw.submit(Submission { ticket, site, command: command(ticket), claims })
            },
            Some(held) => {
                held.submit(Submission { ticket, site, command: command(ticket), claims });
                Ok(())
            }
        };
        if let Err(error) = &submitted
            && !matches!(error, DriverError::Halfway(_))
        {
            if kept {
                state.forgotten = Some(self.timeline.forget_keeps(ticket));
            }
            return submitted.map(|()| ticket);
        }
        state.issued = ticket;
        if state.foreign.is_some() && state.foreign_from == 0 {
            state.foreign_from = ticket;
        }
        self.issued.store(ticket, Ordering::Release);
        if self.device.signalled && (kept || ticket - state.marked >= MARKER_EVERY) && state.foreign.is_none()
        {
            state.mark();
        }
        submitted.map(|()| ticket)
    }

    /// Called after the lock was let go by one who has put something on the stream: what is told to others may run their code.
    /// `what`: the command's kind, and the bytes it moves or touches.
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

    /// Entries of both clocks, for figures.
    pub(crate) fn clock_len(&self) -> usize {
        self.state.lock().stated.entries().len() + self.known.lock().entries().len()
    }

    /// Returns whether it takes no more work.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The error of a place that comes after a host function which panicked.
    #[inline]
    pub(crate) fn panic_before(&self, place: &Place, epoch: Epoch, concern: Concern) -> Option<Error> {
        let Place { ticket, clock, .. } = place;
        self.device.runtime.panics.before(self, &Reached { ticket: *ticket, clock, epoch, concern })
    }

    /// The host has seen that this stream is past `place`.
    #[inline]
    pub(crate) fn observe(&self, place: &Place) {
        let used = Use { stream: self.id, ticket: place.ticket };
        let observed = &self.device.runtime.observed;
        // A stream that is gone counts as covered, and what it had waited for was not observed with
        // that.
        if !observed.covers(used) || self.is_closed() {
            observed.observe(used, &place.clock);
        }
    }

    /// No more work comes. What is there counts as ordered before whatever touches its memory from
    /// here on: no program can name the stream any more, so the runtime adds the edges. Once it has
    /// run, the stream is before everything.
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
        let unseen = std::mem::take(&mut *self.unseen.lock());
        drop(unseen);
        if self.timeline.settle(last) {
            self.retire();
        } else {
            self.timeline.keep_until_last(last, Arc::new(Retire(self.clone())));
            self.want_marker(last);
        }
    }

    /// Everything on the closed stream is over, or nothing of it will run any more: it is before everything.
    fn retire(&self) {
        self.device.runtime.observed.retire(self.id);
        self.device.runtime.leave(self.id);
        let then = self.then.lock().take();
        drop(then);
    }
}

/// What the timeline of a closed stream keeps until its last ticket: when it is let go, because the ticket is reached or the
/// device has failed and given the stream up, the stream retires. Until then it holds the stream, and so the device and its
/// memory.
struct Retire(Arc<StreamCore>);

impl Drop for Retire {
    fn drop(&mut self) {
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
