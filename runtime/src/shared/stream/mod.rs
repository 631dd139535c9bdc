//! The state of a stream, and the path by which every op gets onto it.
//!
//! ARCHITECTURE.md lists the files, and where an addition belongs ("The parts of a stream").

mod added_edges;
mod admission;
mod backlog;
mod captured;
mod coming;
mod core;
mod edges;
mod enqueue;
mod foreign_turns;
mod hand_over;
mod handle;
mod host_waits;
mod late;
mod launch_blocking;
mod line;
mod markers;
mod permits;
mod place;
mod progress;
mod refusals;
mod request;
mod shape;
#[cfg(test)]
mod tests;
mod unwritten;

pub(crate) use self::core::{Settings, StreamCore};
pub(crate) use backlog::Staging;
pub(crate) use foreign_turns::ForeignTurns;
pub(crate) use hand_over::hand_over;
pub use handle::Stream;
pub(crate) use host_waits::{wait_until_handed_over, watching};
pub(crate) use permits::with_permit;
pub(crate) use place::{Place, Snapshot};
pub(crate) use request::{Effect, HostMemory, Reach, Request, Terms, Wanted};
