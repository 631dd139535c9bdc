//! Devices, streams, events, the order check and memory behind `warpline`.
//!
//! Users see this crate through the `warpline` facade. Data flows one way: user code, an op that
//! states its accesses, a stream that issues a ticket, the order check, the driver, the timeline, a
//! waker, the [`Pending`].
#![cfg_attr(docsrs, feature(doc_cfg))]

mod background;
mod block_on;
mod buffer;
#[cfg(feature = "cuda")]
pub mod cuda;
mod delegation;
mod device;
#[cfg(feature = "clap")]
mod device_args;
pub mod driver;
mod edge;
mod event;
mod generator;
mod graph;
mod health;
pub mod kernel;
mod memory;
mod order;
mod pending;
mod report;
mod runtime;
mod scope;
mod shared;
mod stream;
mod sync_mode;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod trace;
mod unwind;

pub use buffer::Buffer;
#[doc(hidden)]
pub use buffer::HistorySizes;
#[doc(hidden)]
pub use device::Bookkeeping;
pub use device::PinnedRoom;
#[cfg(feature = "clap")]
pub use device_args::DeviceArgs;
pub use edge::Edge;
pub use event::Event;
pub use generator::{Draw, Generator};
pub use graph::{CaptureOutput, Graph};
pub use health::{HealthState, HealthWatch};
#[doc(hidden)]
pub use memory::pinned_len;
pub use memory::{
    BlockState, MemoryBlock, MemorySegment, MemorySnapshot, MemoryStats, MemoryWaiters, Pinned, PinnedPart,
    PinnedStats, Served,
};
pub use order::{ByteRange, Conflict, OrderMode, Site, StreamId};
#[doc(hidden)]
pub use pending::arithmetic;
pub use pending::{DeviceValue, Pending, Refusal};
pub use runtime::{Runtime, RuntimeBuilder};
pub use scope::{InCurrentStream, MadeInScope, Scope};
pub use shared::{Budget, Device, OpStats, Stream};
pub use stream::{
    At, Declared, HoldsMemory, MemoryRef, Permit, RawStream, StreamBuilder, StreamLease, StreamPool, reads,
    writes,
};
pub use sync_mode::SyncMode;
pub use warpline_cpu::{KernelChecks, KernelForm, Schedule};
#[doc(hidden)]
pub use warpline_driver::ByteSize;
#[doc(hidden)]
pub use warpline_driver::environment;
#[doc(hidden)]
pub use warpline_driver::process::is_forked;
use warpline_driver::sync;
pub use warpline_driver::timeline::Keep;
pub use warpline_driver::{
    DeviceId, DeviceProperties, Element, Error, ErrorKind, MemoryHolder, MemoryShortage, OutOfMemory,
    Priority, Result, Ticket, Timeline, WakeUp,
};
