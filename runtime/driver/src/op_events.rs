//! `tracing` events for the steps in an op's life: enqueued, started, finished, and for a wait what it waits for.
//!
//! Target `warpline::op`, level `TRACE`. Where nobody listens at that level, a step costs one load and one branch; the
//! event itself is made in a cold function.

mod host;

pub use host::{HostSpan, HostTrack};

use crate::DeviceId;
use crate::timeline::Ticket;
use std::cell::Cell;
use std::time::Instant;
use tracing::level_filters::LevelFilter;
use warpline_order::{Site, Use};

/// Which op an event is of, and what it moves. Made only if somebody listens.
pub struct Traced<'a> {
    /// The number of the runtime in this process.
    pub runtime: u64,
    /// Whose stream it is on.
    pub device: DeviceId,
    /// The stream's label.
    pub label: &'a str,
    /// The stream's number in its runtime.
    pub stream_key: u64,
    /// `Command::kind`.
    pub kind: &'static str,
    /// Bytes it moves or touches.
    pub bytes: u64,
}

/// Returns whether somebody may listen at that level.
#[inline]
pub fn listened_to() -> bool {
    LevelFilter::current() >= LevelFilter::TRACE
}

/// Emits the step of an op, with the fields that all steps have and those given besides.
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

/// Events that this thread emits of one moment, until this is dropped.
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

/// The moment of the event that this thread is emitting: what its `ago_ns` counts from, however long it took to get here.
pub fn moment() -> Instant {
    TOLD_AT.get().unwrap_or_else(Instant::now)
}

/// The op has run on a device that says so afterwards, from one time to another.
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
    /// The op has been put on its stream.
    op_enqueued, "enqueue"
);
phase!(
    /// The op begins on the device.
    op_started, "start"
);
phase!(
    /// The op has ended on the device.
    op_finished, "end"
);

/// The op with this ticket is a wait for `from`, a place on another stream of the same runtime.
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
