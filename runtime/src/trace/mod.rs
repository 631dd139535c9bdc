//! What can be observed of a running program through `tracing`, and a recorder that draws it.
//!
//! Each op is three events of the target `warpline::op` at level `TRACE`, with the fields `phase` (`enqueue`, `start`, `end`),
//! `device`, `stream`, `stream_key`, `ticket`, `op`, `file`, `line` and `bytes`. The first is emitted by the enqueuing call once the op is on its
//! stream, with no lock held: the device may have started it by then.

pub(crate) mod event;
#[cfg(feature = "trace")]
mod recorder;

#[cfg(feature = "trace")]
pub use recorder::Recorder;
