//! `tracing` events for the steps of an op: enqueued, started, finished, and for a wait the point
//! it waits for.
//!
//! A call emits `enqueue` in the span that it is made in. The later steps are emitted elsewhere,
//! and have that span as their explicit parent.
//!
//! The target is `warpline::op`, the level `TRACE`. Without a subscriber at that level, a step
//! costs one load and one branch. The event itself is made in a cold function.
// Decision: docs/decisions/0051-picture-is-drawn-from-tracing-events.md

mod host;

pub use host::{HostSpan, HostTrack};

use crate::DeviceId;
use crate::timeline::Ticket;
use std::cell::Cell;
use std::time::Instant;
use tracing::level_filters::LevelFilter;
use tracing::{Id, dispatcher};
use warpline_order::{Site, Use};

/// The op of an event, and the bytes that it moves. Made only if a subscriber listens.
pub struct Traced<'a> {
    /// The number of the runtime in this process.
    pub runtime: u64,
    /// The device of the op's stream.
    pub device: DeviceId,
    /// The stream's label.
    pub label: &'a str,
    /// The stream's number in its runtime.
    pub stream_key: u64,
    /// `Command::kind`.
    pub kind: &'static str,
    /// Bytes that the op moves or touches.
    pub bytes: u64,
    /// [`Submission::caller`](crate::Submission::caller).
    pub caller: Option<Id>,
}

/// Returns true if a subscriber may listen at level `TRACE`.
#[inline]
pub fn listened_to() -> bool {
    LevelFilter::current() >= LevelFilter::TRACE
}

/// Returns the span that this thread is in, if a subscriber may listen to ops. Call it while no
/// lock is held, since it asks the subscriber.
///
/// It is only the span's number, which may outlive the span: a handle would run the subscriber's
/// code wherever it is dropped. A subscriber gives an event no parent if the span has closed.
#[inline]
pub fn caller() -> Option<Id> {
    return if listened_to() { current() } else { None };

    #[cold]
    fn current() -> Option<Id> {
        dispatcher::get_default(|subscriber| subscriber.current_span().id().cloned())
    }
}

/// Emits a step of an op, with the fields that all steps have and the given ones.
macro_rules! emit_step {
    ($phase:literal $(in $span:expr)?, $ticket:expr, $site:expr, $op:expr $(, $field:ident = $value:expr)*) => {
        tracing::trace!(
            target: "warpline::op",
            $(parent: $span,)?
            phase = $phase,
            runtime = $op.runtime,
            device = %$op.device,
            stream = $op.label,
            stream_key = $op.stream_key,
            ticket = $ticket,
            op = $site.op(),
            kind = $op.kind,
            file = $site.location.file(),
            line = $site.location.line(),
            bytes = $op.bytes,
            $($field = $value,)*
        )
    };
}

thread_local! {
    static TOLD_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Makes all events that this thread emits refer to one moment, until it is dropped.
struct Told {
    at: Instant,
}
impl Told {
    fn now() -> Self {
        let at = Instant::now();
        TOLD_AT.set(Some(at));
        Told { at }
    }
}
impl Drop for Told {
    fn drop(&mut self) {
        TOLD_AT.set(None);
    }
}

/// Returns the moment of the event that this thread is emitting. Its `ago_ns` counts back from that
/// moment, however long the event took to get here.
pub fn moment() -> Instant {
    TOLD_AT.get().unwrap_or_else(Instant::now)
}

/// Emits the start and the end of an op that has run, for a device that reports them afterwards.
pub fn op_ran<'a>(
    ticket: Ticket,
    site: &Site,
    (begin, end): (Instant, Instant),
    op: impl FnOnce() -> Traced<'a>,
) {
    if listened_to() {
        let op = op();
        let told = Told::now();
        let ago_ns = |at| nanoseconds(at, told.at);
        emit_step!("start" in op.caller.clone(), ticket, site, op, ago_ns = ago_ns(begin));
        emit_step!(
            "end" in op.caller.clone(),
            ticket,
            site,
            op,
            ago_ns = ago_ns(end),
            took_ns = nanoseconds(begin, end)
        );
    }
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_nanos() as u64
}

/// Emits the `enqueue` event: the op has been put on its stream.
#[inline]
pub fn op_enqueued<'a>(ticket: Ticket, site: &Site, op: impl FnOnce() -> Traced<'a>) {
    if listened_to() {
        emit(ticket, site, &op());
    }

    #[cold]
    fn emit(ticket: Ticket, site: &Site, op: &Traced<'_>) {
        emit_step!("enqueue", ticket, site, op);
    }
}

/// Emits the `start` event: the op begins on the device. Returns when, for [`op_finished`].
#[inline]
pub fn op_started<'a>(ticket: Ticket, site: &Site, op: impl FnOnce() -> Traced<'a>) -> Option<Instant> {
    return if listened_to() { Some(emit(ticket, site, &op())) } else { None };

    #[cold]
    fn emit(ticket: Ticket, site: &Site, op: &Traced<'_>) -> Instant {
        emit_step!("start" in op.caller.clone(), ticket, site, op);
        Instant::now()
    }
}

/// Emits the `end` event: the op that began then has ended on the device.
#[inline]
pub fn op_finished<'a>(ticket: Ticket, site: &Site, begin: Option<Instant>, op: impl FnOnce() -> Traced<'a>) {
    if listened_to() {
        emit(ticket, site, begin, &op());
    }

    #[cold]
    fn emit(ticket: Ticket, site: &Site, begin: Option<Instant>, op: &Traced<'_>) {
        let took_ns = begin.map(|begin| nanoseconds(begin, Instant::now()));
        emit_step!("end" in op.caller.clone(), ticket, site, op, took_ns = took_ns);
    }
}

/// Emits the `edge` event: the op with this ticket waits for `from`, a point on another stream of
/// the same runtime.
#[inline]
pub fn op_waits(ticket: Ticket, from: Use, stream: impl FnOnce() -> (u64, u64)) {
    if listened_to() {
        let (runtime, stream_key) = stream();
        emit(runtime, stream_key, ticket, from);
    }

    #[cold]
    fn emit(runtime: u64, stream_key: u64, ticket: Ticket, from: Use) {
        tracing::trace!(
            target: "warpline::op",
            phase = "edge",
            runtime,
            stream_key,
            ticket,
            from_stream_key = from.stream.number(),
            from_ticket = from.ticket,
        );
    }
}
