//! A CPU stream: a strand of submissions, the timeline it advances, and how an owner runs it.
//!
//! # Rules
//! 1. The strand's owner runs ops in submission order, one at a time, and holds no lock meanwhile.
//! 2. After each op, in this order: its claims are released, its ticket completes, waiters are
//!    woken.
//! 3. Before each op the owner checks the device's health. If the device has failed, the owner
//!    **purges** the stream: it drops everything queued, releases what the timeline keeps, sets
//!    the stream dead and wakes its waiters. Only the owner does so. Nothing of the stream
//!    therefore runs any more when its kept buffers are released.
//! 4. A panic in a twin or host function, and a fault of a kernel's PTX, fail the device with an
//!    error that names the op. Its ticket never completes.
//! 5. The stream's handle may be dropped at any time. Everything from which the strand may still
//!    run (a run queue, a timeline it waits for, the claim table) holds the stream.

use super::awake::Awake;
use super::backend::{Device, Runner};
use super::execute::execute;
use super::failing::drop_quietly;
use super::kernels::Launching;
use super::replay::Replay;
use super::workers::{Attention, Pool};
use crate::strand::Strand;
use crate::sync::Arc;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::task::{Wake, Waker};
use tracing::Id;
use warpline_driver::op_events::{self, Traced};
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{
    Command, DriverError, DriverEvent, DriverStream, Error, ErrorKind, Point, Priority, StreamOptions,
    Submission,
};

/// The number of ops that an owner runs before it lets other ready strands run.
const OPS_PER_TURN: u32 = 64;
/// The number of times that an owner without work looks again before the strand goes idle. It is
/// high enough that a host which enqueues op after op mostly finds the strand running.
const LOOKS_BEFORE_IDLE: u32 = 4;
/// The pause before each look, in spins.
const SPINS_BETWEEN_LOOKS: u32 = 32;

/// A stream of the CPU device.
///
/// The fields that every op reads come first and lie together. Seldom-read fields separate them
/// from the strand, where the host writes while an owner reads. With the two side by side, an op
/// took a tenth longer.
#[repr(C)]
pub(super) struct CpuStream {
    me: Weak<CpuStream>,
    pub(super) device: Arc<Device>,
    pub(super) timeline: Arc<Timeline>,
    /// The stream's number within the backend.
    pub(super) number: u64,
    pub(super) priority: Priority,
    awake: Awake,
    key: u64,
    runtime: u64,
    pub(super) label: Arc<str>,
    pub(super) strand: Strand<Submission>,
}

impl CpuStream {
    pub(super) fn new(
        device: Arc<Device>,
        options: &StreamOptions,
        timeline: Arc<Timeline>,
        number: u64,
    ) -> Arc<Self> {
        let stream = Arc::new_cyclic(|me| CpuStream {
            me: me.clone(),
            device,
            label: options.label.clone(),
            key: options.key,
            runtime: options.runtime,
            number,
            priority: options.priority,
            timeline,
            awake: Awake::default(),
            strand: Strand::new(),
        });
        stream.device.backend.timelines.enter(stream.device.id, &stream.timeline, stream.me.clone());
        stream
    }

    /// Runs the strand until it is idle, parked, or has used up its turn. `batch` is the worker's
    /// spare deque, empty before and after.
    pub(super) fn run(
        self: &Arc<Self>,
        batch: &mut VecDeque<Submission>,
        pool: &Pool,
        attention: &mut Attention,
    ) {
        let backend = &self.device.backend;
        let mut left = OPS_PER_TURN;
        // `gives_way`: another thread may want this core. `awaited`: a thread waits for the newest
        // op before it enqueues the next.
        let (mut gives_way, mut awaited) = (false, false);
        self.strand.begin(batch);
        loop {
            while let Some(head) = batch.front_mut() {
                if let Some(cause) = self.device.health.fault() {
                    attention.stop(pool, backend);
                    self.purge(batch, cause);
                    break;
                }
                match head.command.holds_until() {
                    Some(point) if !point.timeline.reached(point.ticket) => {
                        if let Some(error) = self.wait_is_in_vain(head, point) {
                            attention.stop(pool, backend);
                            self.device.fail(error);
                            continue;
                        }
                        let point = point.clone();
                        return self.park_at(&point, batch);
                    }
                    _ => {}
                }
                if is_host_function(head) && self.device.host_line.is_served() {
                    attention.stop(pool, backend);
                    self.strand.yield_turn(batch);
                    return self.device.send_to_host_thread(pool, self.clone());
                }
                if let Some(claims) = &head.claims
                    && !backend.claims.try_claim(self.number, claims)
                {
                    let claims = claims.clone();
                    self.strand.park(batch);
                    let asked = backend.claims.wait(&claims, self.clone());
                    if !asked || self.device.health.fault().is_some() {
                        self.wake_by_ref();
                    }
                    return;
                }
                attention.spend_on(&head.command, pool, backend);
                let ticket = head.reaches();
                let claimed = head.claims.is_some();
                let outcome = self.run_op(head);
                if outcome.is_ok() {
                    batch.pop_front();
                }
                if claimed {
                    backend.claims.release(self.number).into_iter().for_each(Wake::wake);
                }
                match outcome {
                    Ok(()) => {
                        awaited = self.awake.is_awaited(ticket);
                        // The thread that brought the first op since this worker slept may have
                        // yielded this core, if it busy-waits.
                        let let_us_run = attention.take_first() && awaited;
                        gives_way |= let_us_run || self.timeline.is_wanted();
                        self.timeline.complete_by(ticket, |released| {
                            if released.only_wakes(&self.waker()) {
                                released.run();
                            } else {
                                awaited |= released.wakes();
                                attention.aside(pool, backend, || released.run());
                            }
                        });
                    }
                    Err(error) => {
                        attention.stop(pool, backend);
                        self.device.fail(error);
                        // Drop the op and the work behind it.
                        self.purge(batch, self.device.health.fault().expect("it has just failed"));
                        break;
                    }
                }
                left -= 1;
                if left == 0 {
                    left = OPS_PER_TURN;
                    if !batch.is_empty() && pool.has_work() {
                        self.strand.yield_turn(batch);
                        return self.schedule();
                    }
                }
            }
            if std::mem::take(&mut gives_way) {
                // A woken thread may have been put on this core, where it would wait for the
                // spinning below to end.
                std::thread::yield_now();
            }
            self.look_out(awaited, pool, attention);
            if !self.strand.take(batch) {
                return;
            }
        }
    }

    /// Calls the host functions at the head of the strand, on the thread that calls those of its
    /// device. Sends the strand to a run queue for anything else. `batch` is the thread's spare
    /// deque, empty before and after.
    pub(super) fn call_functions(self: &Arc<Self>, batch: &mut VecDeque<Submission>, pool: &Pool) {
        let mut left = OPS_PER_TURN;
        self.strand.begin(batch);
        loop {
            while let Some(head) = batch.front_mut() {
                if let Some(cause) = self.device.health.fault() {
                    self.purge(batch, cause);
                    break;
                }
                if !is_host_function(head) {
                    self.strand.yield_turn(batch);
                    return self.schedule();
                }
                if left == 0 && self.device.host_line.has_waiting() {
                    self.strand.yield_turn(batch);
                    return self.device.send_to_host_thread(pool, self.clone());
                }
                let ticket = head.reaches();
                if let Err(error) = self.run_op(head) {
                    self.device.fail(error);
                    continue;
                }
                batch.pop_front();
                self.timeline.complete(ticket);
                left = left.checked_sub(1).unwrap_or(OPS_PER_TURN);
            }
            if !self.strand.take(batch) {
                return;
            }
        }
    }

    /// Waits a moment for work to arrive.
    ///
    /// An owner that looked without a pause would contend with the enqueuing host for the inbox's
    /// lock at every op. The pause between looks lets a few ops gather, except where the host
    /// awaits one before it enqueues the next (`awaited`).
    ///
    /// If no worker is attentive yet, the owner then stays awake here and keeps the token. The next
    /// push sends the strand nowhere and unparks no worker.
    fn look_out(&self, awaited: bool, pool: &Pool, attention: &mut Attention) {
        if pool.is_behind() {
            return;
        }
        for _ in 0..LOOKS_BEFORE_IDLE {
            for _ in 0..SPINS_BETWEEN_LOOKS {
                std::hint::spin_loop();
                if awaited && self.strand.seems_to_have_work() {
                    return;
                }
            }
            if self.strand.seems_to_have_work() || pool.has_work() {
                return;
            }
        }
        attention.stay_awake(pool, || self.strand.seems_to_have_work());
    }

    /// Returns a waker of this stream. Never inlined, so that all such wakers are alike for
    /// [`Released::only_wakes`](warpline_driver::timeline::Released::only_wakes).
    #[inline(never)]
    fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }

    /// Parks first, asks to be woken second, looks third: see [`Strand`].
    fn park_at(self: &Arc<Self>, point: &Point, batch: &mut VecDeque<Submission>) {
        self.strand.park(batch);
        let waker = self.waker();
        let reached = point.timeline.register(point.ticket, &waker, &mut None).is_ready();
        let look_again = reached
            || self.device.health.fault().is_some()
            || self.device.backend.timelines.cause_of_death(&point.timeline).is_some();
        if look_again {
            self.wake_by_ref();
        }
    }

    /// Runs one op on this thread. An error is the fault that fails the device. The caller drops
    /// the op and completes the ticket.
    #[inline]
    pub(super) fn run_op(&self, work: &mut Submission) -> Result<(), Error> {
        let Submission { ticket, site, command, caller, .. } = work;
        let (ticket, site) = (*ticket, *site);
        let planned = self.device.fault_plan.as_ref();
        if matches!(command, Command::Edge(_) | Command::Elided) {
            return Ok(());
        }
        if let Some(planned) = planned
            && !matches!(command, Command::Wait(_))
            && planned.fails_this_op()
        {
            return Err(self.failure(ErrorKind::Fault, ticket, &site, "the fault plan asked for it"));
        }
        let begin = op_events::op_started(ticket, &site, || self.traced(command, caller));
        let before = || {
            if let Some(planned) = planned
                && planned.panics_in_this_twin()
            {
                panic!("the fault plan asked for it");
            }
        };
        let seed = match &self.device.backend.runner {
            Runner::Seeded(seeded) => Some(seeded.seed_of(self.number, ticket)),
            Runner::Threads(_) => None,
        };
        let Device { kernels, health, .. } = &*self.device;
        let launching = Launching { kernels, health, seed, before: &before };
        let replay = Replay { seed, at: Cell::new(None) };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `submit` was promised that everything the command names is valid until its
            // ticket is reached. It was also promised that nothing conflicts with the command, or
            // that claims say so: our caller holds them.
            unsafe { execute(command, &launching, &replay) }
        }));
        op_events::op_finished(ticket, &site, begin, || self.traced(command, caller));
        let failed = match outcome {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(fault)) => match replay.at.get() {
                Some(step) => format!("{step} in it failed: {fault}"),
                None => fault,
            },
            Err(panic) => {
                let inside = replay.at.get().map_or_else(String::new, |step| format!("{step} in it "));
                format!("{inside}panicked: {}", warpline_driver::message_of(panic))
            }
        };
        Err(self.failure(ErrorKind::Fault, ticket, &site, &failed))
    }

    #[cold]
    fn traced(&self, command: &Command, caller: &Option<Id>) -> Traced<'_> {
        Traced {
            runtime: self.runtime,
            device: self.device.id,
            label: &self.label,
            stream_key: self.key,
            kind: command.kind(),
            bytes: command.bytes(),
            caller: caller.clone(),
        }
    }

    /// Drops the work in the owner's `batch` and releases what the timeline keeps. Work that was
    /// queued meanwhile is handled at the owner's next look.
    #[cold]
    fn purge(&self, batch: &mut VecDeque<Submission>, cause: &Error) {
        drop_quietly(std::mem::take(batch));
        self.bury(cause);
    }

    /// Fails the device after a panic of the owner's run, and purges the strand. Called by that
    /// owner.
    ///
    /// The panic is not one of a twin or host function, which is caught where that runs. It may be
    /// that of a `tracing` subscriber, for example. The effects of the op are unknown, so its
    /// device cannot continue. The thread and the other devices can.
    #[cold]
    pub(super) fn end_after_panic(&self, batch: &mut VecDeque<Submission>) {
        self.device.fail(self.broken());
        let _ = catch_unwind(AssertUnwindSafe(|| self.give_up(batch)));
        batch.clear();
    }

    fn give_up(&self, batch: &mut VecDeque<Submission>) {
        let cause = self.device.health.fault().expect("a panic of a run fails the device");
        self.purge(batch, cause);
        while !self.strand.rest_if_empty() {
            drop_quietly(self.strand.pop_all());
        }
    }

    /// Notes that the stream is dead, releases what the timeline keeps and wakes its waiters.
    /// Called by the owner, after the queued work was dropped.
    pub(super) fn bury(&self, cause: &Error) {
        self.timeline.abandon();
        self.device.backend.timelines.note_dead(&self.timeline, cause);
        self.timeline.wake_all();
    }

    /// Returns the stream's own handle, for one atomic addition. `Weak::upgrade` reads first, and
    /// so fetches the cache line twice.
    #[inline]
    fn me(&self) -> Arc<Self> {
        let me = self.me.as_ptr();
        // SAFETY: `new` alone makes a `CpuStream`, in the `Arc` that `me` refers to. Every borrower
        // of the stream holds a reference to that `Arc`.
        unsafe { Arc::increment_strong_count(me) };
        // SAFETY: `me` is of that `Arc`, and the count that this one gives back was just added.
        unsafe { Arc::from_raw(me) }
    }

    /// Sends the strand, which has just become ready, to a run queue.
    fn schedule(self: &Arc<Self>) {
        self.device.backend.schedule(self.clone());
    }
}

/// Returns true for a host function. None has operands, so none has memory to claim.
#[inline]
fn is_host_function(work: &Submission) -> bool {
    matches!(work.command, Command::Call(_)) && work.claims.as_ref().is_none_or(|claims| claims.is_empty())
}

/// Wakes the strand when its wait ends: the strand becomes ready and goes to a run queue.
impl Wake for CpuStream {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.strand.wake() {
            self.schedule();
        }
    }
}

// SAFETY: the strand has one owner, which runs ops in submission order and completes each after it
// has run.
unsafe impl DriverStream for CpuStream {
    unsafe fn submit(&self, work: Submission) -> Result<(), DriverError> {
        if let Err(error) = self.device.accepts_work() {
            work.command.drop_elsewhere();
            return Err(error);
        }
        if let Command::Launch(launch) = &work.command {
            self.device.kernels.prepare(launch.kernel, Some(&launch.config))?;
        }
        let is_host_function = is_host_function(&work);
        if self.strand.push(work) {
            // The strand was empty, so `work` is its next op.
            match &self.device.backend.runner {
                Runner::Threads(pool) if is_host_function && self.device.host_line.is_served() => {
                    self.device.send_to_host_thread(pool, self.me());
                }
                _ => self.device.backend.schedule(self.me()),
            }
        }
        Ok(())
    }

    fn signal(&self, _ticket: Ticket) {}

    fn wait_briefly(&self, ticket: Ticket) -> bool {
        match &self.device.backend.runner {
            Runner::Threads(pool) => {
                self.awake.wait(&self.timeline, ticket, pool.rest(), &self.device.yields)
            }
            Runner::Seeded(_) => false,
        }
    }

    fn record(&self) -> Result<Option<DriverEvent>, DriverError> {
        Ok(None)
    }
}

impl Drop for CpuStream {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        self.device.backend.timelines.leave(&self.timeline);
    }
}

impl fmt::Debug for CpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuStream")
            .field("device", &self.device.id)
            .field("label", &self.label)
            .field("timeline", &self.timeline)
            .finish_non_exhaustive()
    }
}
