//! The state of a stream, and the path by which every op gets onto it.
//!
//! | file | idea |
//! |---|---|
//! | `core` | what a stream is; its lock |
//! | `enqueue`, `added_edges` | from an op with its accesses to a ticket, and the edges that it needs |
//! | `edges`, `place`, `progress` | waits on the device, points on the timeline, and their markers |
//! | `refusals`, `unwritten`, `late` | bytes whose write was refused, at the call or later |
//! | `backlog`, `coming` | work that waits on the host for page-locked memory, and events behind it
//! |
//! | `captured` | streams that a capture records |
//! | `foreign_turns`, `permits`, `turns` | waiting for something other than a ticket |
//! | `launch_blocking` | waiting for each op, for debugging |

mod added_edges;
pub(crate) mod backlog;
mod captured;
mod coming;
mod core;
mod edges;
mod enqueue;
mod foreign_turns;
mod hand_over;
mod handle;
mod late;
pub(crate) mod launch_blocking;
mod op;
mod permits;
mod place;
mod progress;
mod refusals;
mod turns;
mod unwritten;

pub(crate) use self::core::{Settings, StreamCore};
pub(crate) use foreign_turns::ForeignTurns;
pub(crate) use hand_over::hand_over;
pub use handle::Stream;
pub(crate) use op::{Build, Op, Peers};
pub(crate) use permits::with_permit;
pub(crate) use place::{Place, Snapshot};
pub(crate) use turns::watching;
