//! `tracing` events for the steps of an op: enqueued, started, finished, and for a wait the point
//! it waits for.
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
}

/// Returns true if a subscriber may listen at level `TRACE`.
#[inline]
pub fn listened_to() -> bool {
    LevelFilter::current() >= LevelFilter::TRACE
}

/// Emits a step of an op, with the fields that all steps have and the given ones.
macro_rules! emit_step {
    ($phase:literal, $ticket:expr, $site:expr, $op:expr $(, $field:ident = $value:expr)?) => {
        tracing::trace!(
            target: "warpline::op",
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
            $($field = $value,)?
        )
    };
}

macro_rules! phase {
    ($(#[$doc:meta])* $name:ident, $phase:literal) => {
        $(#[$doc])*
        #[inline]
        pub fn $name<'a>(ticket: Ticket, site: &Site, op: impl FnOnce() -> Traced<'a>) {
            if listened_to() {
                emit(ticket, site, &op());
            }

            #[cold]
            fn emit(ticket: Ticket, site: &Site, op: &Traced<'_>) {
                emit_step!($phase, ticket, site, op);
            }
        }
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
        let ago_ns = |at: Instant| told.at.saturating_duration_since(at).as_nanos() as u64;
        emit_step!("start", ticket, site, op, ago_ns = ago_ns(begin));
        emit_step!("end", ticket, site, op, ago_ns = ago_ns(end));
    }
}

phase!(
    /// Emits the `enqueue` event: the op has been put on its stream.
    op_enqueued, "enqueue"
);
phase!(
    /// Emits the `start` event: the op begins on the device.
    op_started, "start"
);
phase!(
    /// Emits the `end` event: the op has ended on the device.
    op_finished, "end"
);

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
