//! The state of a stream, and the path by which every op gets onto it.
//!
//! | file | idea |
//! |---|---|
//! The parts of a stream, each with a struct of its own that knows nothing of the stream:
//!
//! | file | part |
//! |---|---|
//! | `core` | what a stream is: its parts and its one lock; opening and closing it |
//! | `line` | tickets and clocks |
//! | `progress`, `markers` | how far the device is, and the markers that make it say so |
//! | `admission`, `permits`, `foreign_turns` | whether the stream takes work: closed, captured, room, foreign work |
//! | `backlog`, `coming`, `unwritten` | work that waits on the host, events behind it, and bytes that it did not write |
//! | `refusals`, `late` | errors that the program has to hear of, and the marks that they leave |
//!
//! What is done with them:
//!
//! | file | idea |
//! |---|---|
//! | `request`, `shape` | an op that is about to be enqueued |
//! | `enqueue`, `added_edges` | from a request to a ticket: admit, check, put |
//! | `edges`, `place` | waits on the device, and points on the timeline |
//! | `hand_over`, `host_waits` | from the backlog to the driver, and waiting for that |
//! | `captured` | streams that a capture records |
//! | `launch_blocking` | waiting for each op, for debugging |

mod added_edges;
mod admission;
pub(crate) mod backlog;
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
pub(crate) use foreign_turns::ForeignTurns;
pub(crate) use hand_over::hand_over;
pub use handle::Stream;
pub(crate) use host_waits::{wait_until_handed_over, watching};
pub(crate) use permits::with_permit;
pub(crate) use place::{Place, Snapshot};
pub(crate) use request::{Effect, Reach, Request, Terms};
