//! What can be observed of a running program through `tracing`, and a recorder that draws it.

pub(crate) mod event;
#[cfg(feature = "trace")]
mod recorder;

#[cfg(feature = "trace")]
pub use recorder::Recorder;
