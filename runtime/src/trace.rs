//! Trace events of a running program through `tracing`, and a recorder that draws them.
//!
//! Each op emits three events with the target `warpline::op` at level `TRACE`. Their fields are
//! `phase` (`enqueue`, `start`, `end`), `runtime` (its number in the process), `device`, `stream`,
//! `stream_key`, `ticket`, `op`, `kind` (`kernel`, `copy`, `fill`, `graph`, `wait`, `call`,
//! `stamp`, `foreign`), `file`, `line` and `bytes`.
//!
//! A wait for another stream emits one more event, with the phase `edge` and the fields `runtime`,
//! `stream_key`, `ticket`, `from_stream_key` and `from_ticket`. Two kinds of waits emit no events:
//! a wait that is not submitted to the driver because its order holds already, and an edge that the
//! runtime adds to an op. Work of the host ([`HostTrack`]) emits a `start` and an `end` of the kind
//! `host`, with the runtime 0.
//!
//! All events of an op are in the span of the call that enqueued it, whichever thread emits them,
//! if that span is still open. A CUDA device may report the last ops of a span after it has
//! closed. The span's number means nothing to another subscriber. `end` has the field `took_ns`:
//! how long the device ran the op, in nanoseconds.
//!
//! On CUDA devices `start` and `end` are emitted once the op has finished, by a thread of the
//! runtime before it wakes the tasks that await the op, or by a thread that synchronizes. A task
//! that finds the op finished without being woken may go on before. They have one more field,
//! `ago_ns`: how long ago the op started or ended, in nanoseconds.
//!
//! The enqueuing call emits `enqueue` and `edge` once the op is on its stream, with no lock held.
//! The device may have started the op by then.

pub use warpline_driver::op_events::{HostSpan, HostTrack};
#[cfg(feature = "trace")]
pub use warpline_trace::{Picture, Recorder};
