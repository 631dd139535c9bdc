//! The state of a stream, and the path by which every op gets onto it.
//!
//! | file | idea |
//! |---|---|
//! | `core` | what a stream is; its lock |
//! | `admission` | the conditions for enqueuing |
//! | `request`, `shape` | an op that is about to be enqueued |
//! | `enqueue`, `added_edges` | from a request to a ticket |
//! | `edges`, `place` | waits on the device, and points on the timeline |
//! | `progress`, `markers` | the progress of a stream, and the markers behind its work |
//! | `refusals`, `late` | errors that the program has to hear of |
//! | `backlog`, `hand_over`, `coming` | work that waits on the host, and events behind it |
//! | `unwritten` | bytes that work of the backlog did not write |
//! | `captured` | streams that a capture records |
//! | `foreign_turns`, `permits`, `turns` | waiting for something other than a ticket |
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
mod unwritten;

pub(crate) use self::core::{Settings, StreamCore};
pub(crate) use foreign_turns::ForeignTurns;
pub(crate) use hand_over::hand_over;
pub use handle::Stream;
pub(crate) use host_waits::{wait_until_handed_over, watching};
pub(crate) use permits::with_permit;
pub(crate) use place::{Place, Snapshot};
pub(crate) use request::{Effect, Reach, Request, Terms};
