//! Trace events of a running program through `tracing`, and a recorder that draws them.
//!
//! Each op is three events of the target `warpline::op` at level `TRACE`, with the fields `phase`
//! (`enqueue`, `start`, `end`), `runtime` (its number in the process), `device`, `stream`,
//! `stream_key`, `ticket`, `op`, `kind` (`kernel`, `copy`, `fill`, `wait`, `call`, `stamp`,
//! `foreign`), `file`, `line` and `bytes`. A wait for another stream has one more, of the phase
//! `edge`, with `runtime`, `stream_key`, `ticket`, `from_stream_key` and `from_ticket`. A wait that
//! is not submitted to the driver, because its order holds already, has no events, and neither has
//! an edge that the runtime adds to an op. Work of the host ([`HostTrack`]) is a `start` and an
//! `end` of the kind `host`, with the runtime 0.
//!
//! On CUDA devices the reactor, or a thread that synchronizes, emits `start` and `end` once the op
//! has finished. They have one more field: `ago_ns`, the age in nanoseconds.
//!
//! The enqueuing call emits `enqueue` and `edge` once the op is on its stream, with no lock held:
//! the device may have started the op by then.

pub use warpline_driver::op_events::{HostSpan, HostTrack};
#[cfg(feature = "trace")]
pub use warpline_trace::{Picture, Recorder};
