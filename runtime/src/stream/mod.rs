//! Streams: linear sequences of work on one device.

mod alloc;
mod at;
mod call;
mod copy;
mod foreign;
mod handle;
mod lease;
mod lend;
mod library;
mod room;
mod rows;
mod staged;
mod wait;

pub(crate) use alloc::alloc_outside;
pub use at::At;
pub use foreign::{Declared, RawStream, reads, writes};
pub use handle::StreamBuilder;
use handle::error;
pub use lease::{StreamLease, StreamPool};
pub use room::Permit;
pub(crate) use wait::synchronize;
pub use wait::{HoldsMemory, MemoryRef};
