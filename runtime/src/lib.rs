//! Devices, streams, events, the order check and memory behind `warpline`.
//!
//! Users see this crate through the `warpline` facade. Data flows one way: user code → op (states its accesses) → stream
//! (ticket) → order check → driver → timeline → waker → [`Pending`].
#![cfg_attr(docsrs, feature(doc_cfg))]

mod background;
mod block_on;
mod byte_size;
#[cfg(feature = "cuda")]
pub mod cuda;
mod delegation;
mod device;
mod device_id;
mod device_ptr;
pub mod driver;
mod element;
mod error;
mod event;
mod exit;
mod graph;
pub mod kernel;
mod memory;
mod order;
mod panics;
mod pending;
mod process;
mod reentry;
mod report;
mod runtime;
mod scope;
mod stream;
mod sync;
#[cfg(feature = "test-util")]
pub mod testing;
mod timeline;
pub mod trace;
mod unwind;

#[doc(hidden)]
pub use device::Bookkeeping;
pub use device::{Device, DeviceId, Draw, Generator};
pub use driver::cpu::Schedule;
pub use driver::{DeviceProperties, Priority, WakeUp};
pub use element::Element;
pub use error::{Error, ErrorKind, Result};
pub use event::Event;
pub use graph::{CaptureOutput, Graph};
#[doc(hidden)]
pub use memory::HistorySizes;
pub use memory::{Buffer, MemoryStats, Pinned, PinnedStats, Served};
pub use order::{ByteRange, Conflict, OrderMode, Site, StreamId};
pub use pending::{DeviceValue, Pending, Refusal};
pub use runtime::{Runtime, RuntimeBuilder};
pub use scope::{InCurrentStream, Scope};
pub use stream::{
    Declared, HoldsMemory, MemoryRef, Permit, RawStream, Stream, StreamBuilder, StreamLease, StreamPool,
    reads, writes,
};
pub use timeline::{Keep, Ticket, Timeline};
