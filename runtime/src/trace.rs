//! What can be observed of a running program through `tracing`, and a recorder that draws it.
//!
//! Each op is three events of the target `warpline::op` at level `TRACE`, with the fields `phase`
//! (`enqueue`, `start`, `end`), `runtime` (its number in the process), `device`, `stream`,
//! `stream_key`, `ticket`, `op`, `kind` (`kernel`, `copy`, `fill`, `wait`, `call`, `stamp`,
//! `foreign`), `file`, `line` and `bytes`. A wait for another stream has one more, of the phase
//! `edge`, with `runtime`, `stream_key`, `ticket`, `from_stream_key` and `from_ticket`. A wait that
//! reaches no driver, because its order holds already, has no events, and neither has an edge that
//! the runtime adds to an op. Work of the host ([`HostTrack`]) is a `start` and an `end` of the
//! kind `host`, with the runtime 0.
//!
//! On CUDA devices `start` and `end` are told once the op is over, by the reactor or by who synchronizes, with one field more:
//! `ago_ns`, how long ago it was in nanoseconds.
//!
//! `enqueue` and `edge` are emitted by the enqueuing call once the op is on its stream, with no lock held: the device may have
//! started it by then.

pub use warpline_driver::op_events::{HostSpan, HostTrack};
#[cfg(feature = "trace")]
pub use warpline_trace::{Recorder, Timeline};
