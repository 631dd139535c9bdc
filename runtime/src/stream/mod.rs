//! Streams: linear sequences of work on one device.

mod alloc;
mod call;
mod captured;
mod copy;
mod core;
mod edges;
mod enqueue;
mod foreign;
mod handle;
mod held;
mod late;
mod lease;
mod lend;
mod library;
mod markers;
mod place;
mod refusals;
mod room;
mod staged;
mod turns;
mod unwritten;
mod wait;

pub(crate) use self::core::{Settings, StreamCore};
pub(crate) use enqueue::Op;
pub(crate) use foreign::ForeignTurns;
pub use foreign::{Declared, RawStream, reads, writes};
pub use handle::{Stream, StreamBuilder};
pub use lease::{StreamLease, StreamPool};
pub(crate) use place::{Place, Snapshot};
pub use room::Permit;
pub use wait::{HoldsMemory, MemoryRef};
