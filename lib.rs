//! CUDA streams and events as Rust futures.
//!
//! A service written in `async fn` enqueues copies and kernels on streams, states the order between streams, and awaits what the
//! host has to see. Calling enqueues, awaiting observes; a forgotten edge between streams is an error that names both
//! lines. The same program runs with nothing installed, on the CPU device.
//!
//! ```
//! use warpline::prelude::*;
//!
//! # fn main() -> warpline::Result<()> {
//! # futures::executor::block_on(async {
//! let device = Device::best()?;
//! let (copy, compute) = (device.new_stream()?, device.new_stream()?);
//!
//! let mut host = device.pinned::<f32>(4).await?; // page-locked, derefs to [f32]
//! host.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
//! let (x, sent) = copy.copy_to_device(host)?; // enqueued; the buffer is inside `sent` until the copy is done
//!
//! compute.wait_stream(&copy); // an edge on the device; the host does not wait
//! let total = compute.enter(|| warpline::ops::sum(&x)).await?;
//! let host = sent.await?; // the buffer comes back for the next batch
//! assert_eq!((total, host.len()), (10.0, 4));
//! # Ok(())
//! # })
//! # }
//! ```
#![forbid(unsafe_code)]

pub use warpline_kernels as kernels;
pub use warpline_ops as ops;
pub use warpline_ops::{DType, Shape, Tensor, TensorElement, TensorOps};
#[cfg(feature = "cuda")]
pub use warpline_runtime::cuda;
#[cfg(feature = "test-util")]
pub use warpline_runtime::testing;
#[doc(hidden)]
pub use warpline_runtime::{Bookkeeping, HistorySizes};
pub use warpline_runtime::{
    Buffer, CaptureOutput, Conflict, Declared, Device, DeviceId, DeviceProperties, DeviceValue, Draw, Edge,
    Element, Error, ErrorKind, Event, Generator, Graph, HoldsMemory, InCurrentStream, MadeInScope, MemoryRef,
    MemoryStats, OrderMode, Pending, Permit, Pinned, PinnedStats, Priority, RawStream, Result, Runtime,
    RuntimeBuilder, Schedule, Scope, Served, Stream, StreamBuilder, StreamId, StreamLease, StreamPool,
    Ticket, WakeUp, kernel, reads, trace, writes,
};

/// Types for authors of backends and of ops.
///
/// Unstable: they may change in any release. Programs that use streams, buffers, tensors and kernels
/// need none of them.
pub mod backend {
    pub use warpline_runtime::driver::*;
    pub use warpline_runtime::{At, ByteRange, Keep, Refusal, Site, Timeline};
}

/// What most programs need.
pub mod prelude {
    pub use warpline_ops::data::Loader;
    pub use warpline_ops::{DType, Tensor, TensorOps};
    pub use warpline_runtime::kernel::LaunchConfig;
    pub use warpline_runtime::{
        Buffer, Device, DeviceId, Edge, Error, ErrorKind, Event, Graph, InCurrentStream, OrderMode, Pending,
        Pinned, Runtime, Schedule, Stream, StreamLease, StreamPool,
    };
}

/// Runs the programs of the README and of the guide as tests.
#[cfg(doctest)]
mod programs {
    #[doc = include_str!("README.md")]
    struct Readme;
    #[doc = include_str!("docs/guide/overlap.md")]
    struct Overlap;
    #[doc = include_str!("docs/guide/graphs.md")]
    struct Graphs;
    #[doc = include_str!("docs/guide/testing.md")]
    struct Testing;
    #[doc = include_str!("docs/guide/gpu.md")]
    struct Gpu;
    #[doc = include_str!("docs/guide/order.md")]
    struct Order;
    #[doc = include_str!("docs/guide/services.md")]
    struct Services;
}
