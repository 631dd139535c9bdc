//! CUDA streams and events as Rust futures.
//!
//! A service written in `async fn` enqueues copies and kernels on streams, states the order between
//! streams, and awaits the results that the host needs. A call enqueues its work and returns; awaiting
//! waits for it. A forgotten edge between streams is an error that names both lines. The same program
//! runs on the CPU device, with nothing installed.
//!
//! Warpline has not run on a GPU yet: its CUDA driver has run on a software stand-in alone.
//!
//! # A tour
//!
//! ## Run work
//!
//! [`Device::best`] is `cuda:0`, or `cpu:0` where there is no GPU. A [`Tensor`] has ops as methods
//! ([`TensorOps`]); [`ops`] has functions on buffers. Each call returns a [`Pending`], a future of its
//! result. Ops chain without waiting.
//!
//! ```
//! use warpline::prelude::*;
//!
//! # fn main() -> warpline::Result<()> {
//! # futures::executor::block_on(async {
//! let device = Device::best()?;
//! let x = Tensor::ones([2, 3], &device);
//! let total: f32 = x.sum().item().await?; // waits until the device reaches this point
//! assert_eq!(total, 6.0);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! ## Copy, order and await
//!
//! A [`Stream`] is a queue of work on a device. A copy takes its [`Pinned`] buffer by value and returns
//! it when the copy has finished. [`Stream::wait_stream`] orders one stream after another, on the
//! device; [`Event`]s mark places. [`Stream::enter`] makes a stream current.
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
//! let (x, sent) = copy.copy_to_device(host)?; // `sent` owns `host` until the copy ends
//!
//! compute.wait_stream(&copy); // an edge on the device; the host does not wait
//! let total = compute.enter(|| warpline::ops::sum(&x)).await?;
//! let host = sent.await?; // the buffer, for the next batch
//! assert_eq!((total, host.len()), (10.0, 4));
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! ## Overlap loading with compute
//!
//! A [`Loader`](ops::data::Loader) reads a dataset ahead of the computation, and enqueues the copy of
//! each batch before it yields the batch.
//!
//! ## Test
//!
//! With the feature `test-util`, [`testing::for_each_seed`] runs a pipeline once for each seed. A seed is
//! one interleaving of the streams, the same every time. `stream.hold()` closes a gate on a stream.
//!
//! ## Trace
//!
//! [`trace::Recorder`] listens to `tracing` events. It writes Perfetto JSON and draws a picture with a
//! row for each stream.
//!
//! ## Write a kernel
//!
//! [`kernel!`] declares a kernel: its parameters, its device code and its CPU form, which every test
//! machine can run. [`Stream::launch`] takes the call.
//!
//! ## Serve
//!
//! [`Device::stream_pool`] leases streams, one for each request. [`Stream::room`] is back-pressure.
//! Dropping a future cancels nothing and frees nothing that the device still uses, so timeouts and
//! aborted tasks are safe.
//!
//! ## Repeat work cheaply
//!
//! [`Stream::capture`] writes work down as a [`Graph`], and [`Graph::launch`] runs it as one op.
//!
//! # When something is refused
//!
//! Every [`Error`] says what failed, why with both numbers, and what to do. [`Error::kind`] tells kinds
//! apart, [`Error::cuda_code`] is the number of a CUDA error.
//!
//! # Features
//!
//! * `cuda` (default): CUDA devices, through a driver that is loaded when the first is requested.
//! * `trace` (default): the recorder.
//! * `test-util`: gates, planned faults and seeded runs.
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
