//! Batches of a dataset, read and copied to a device while it computes.
//!
//! ```text
//! blocking threads                   copy stream                    compute stream
//! samples → collate → pinned ──────→ copy_to_device ─ wait_event ─→ step(batch)
//!                       ↑─ its Pendings ─┘
//! ```
//!
//! The *samples* of a dataset are tuples of fields, each with an element type and a shape: see
//! [`Sample`]. A [`Dataset`] is read by index, in the order of a [`Sampler`], by one or several
//! workers. A [`SequentialDataset`] is read sample by sample from its start. Either is read again
//! for every epoch, so it may be larger than the memory. A [`Loader`] holds the options and builds
//! a `futures::Stream` of [`Batch`]es.
//!
//! Samples are written straight into the pinned memory of their batch, which has one buffer per
//! field. A [`Collate`] function may change the batch there.
//!
//! # Why a batch is freshly allocated
//! Suppose that batches reused fixed device buffers. Each copy that overwrites a buffer would then
//! need an edge from the last use of the batch in it. The program would have to state this edge and
//! could forget it. Here, a batch is an allocation of the copy stream like any other. The caching
//! allocator reuses its memory for a later copy only if that copy is ordered after the batch's last
//! use. So the program simply drops a batch. After the first few batches no memory comes from the
//! driver.
//!
//! # Pinned buffers and polls
//! `prefetch + 1` pinned batches circulate. They go from the reader to the consumer, whose poll
//! enqueues their copies. A poll after the copy returns them to the reader. They alone limit how
//! far ahead the reader is.
//!
//! Work is enqueued only in the consumer's polls. A poll that finds a finished copy does not count
//! as [observing](warpline_runtime::Pending) it. So with `wait_event(&batch.copied)` as the edge,
//! the reader's speed does not change which uses are refused. With `wait_stream` the speed matters,
//! because a poll enqueues the copies of all batches read so far, and `wait_stream` orders after
//! all of them.

mod ahead;
mod batch;
mod batches;
mod caught;
mod collate;
#[cfg(feature = "csv")]
mod csv;
mod dataset;
mod draws;
mod in_memory;
mod indexed;
mod loader;
mod plan;
mod reader;
mod sample;
mod sampler;
mod sequential;
mod shuffle;
mod supply;
mod workers;

#[cfg(feature = "csv")]
pub use self::csv::Csv;
pub use batch::Batch;
pub use batches::{Batches, LoadStats};
pub use collate::{BatchPlace, Collate};
pub use dataset::{Dataset, Rows, SequentialDataset};
pub use in_memory::InMemory;
pub use loader::Loader;
pub use sample::{Sample, TensorSample};
pub use sampler::{InOrder, Indices, Sampler, Shuffled, Subset, Weighted, WithReplacement};
