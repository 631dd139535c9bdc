//! Batches of a dataset, read and copied to a device while it computes.
//!
//! ```text
//!   blocking thread                                 copy stream                   compute stream
//!   rows → shuffle buffer → pinned ───────────────→ copy_to_device ─ wait_event ─→ step(batch)
//!                             ↑ the copy's Pending ───────┘
//! ```
//!
//! A [`Dataset`] is read again for every epoch, row by row, as if it were too large for memory. A [`Loader`] says how; what it
//! builds is a `futures::Stream` of [`Batch`]es.
//!
//! # Why a batch is freshly allocated
//! Fixed device buffers that batches take turns in would need an edge from each batch's last use to the copy that overwrites
//! it, which the program would have to state and could forget. A batch here is an allocation of the copy stream like any
//! other: the caching allocator hands its memory on to a later copy only when that is ordered after the batch's last use, so a
//! batch is simply dropped. After the first few batches no memory comes from the driver.
//!
//! # Who holds what
//! `prefetch + 1` pinned buffers go round: from the reader to the consumer, whose poll puts them into copies, and back to the reader
//! in a poll after the copy. They alone bound how far the reader is ahead; there is no other limit and no queue that could
//! fill. Nothing is enqueued but in the consumer's polls, and that a copy was seen to be over does not count as observed: so
//! with `wait_event(&batch.copied)` as the edge, which uses are refused does not depend on how fast the reader is. With
//! `wait_stream` it does: that orders after every copy enqueued by then, and a poll enqueues those of all batches read so far.

mod ahead;
mod batch;
mod batches;
mod csv;
mod dataset;
mod epoch;
mod in_memory;
mod loader;
mod reader;
mod shuffle;

pub use self::csv::Csv;
pub use batch::Batch;
pub use batches::{Batches, LoadStats};
pub use dataset::{Dataset, Rows};
pub use in_memory::InMemory;
pub use loader::Loader;
