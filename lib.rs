//! CUDA streams and events as Rust futures.
//!
//! A service written in `async fn` enqueues copies and kernels on streams, states the order between
//! streams, and awaits the results that the host needs. A call enqueues its work and returns;
//! awaiting its result waits for the work. A wait of one stream for another is an *edge*. An op is
//! refused if no edge orders it after an earlier conflicting use of its memory, and the error names
//! both source lines. The same program runs on the CPU device, with nothing installed.
//!
//! The CUDA backend has run on one kind of GPU, an H100. Its tests run on a software stand-in for
//! NVIDIA's driver library.
//!
//! # A tour
//!
//! ## Run work
//!
//! [`Device::best`] returns `cuda:0`, or `cpu:0` where there is no GPU. A [`Tensor`] has ops as
//! methods ([`TensorOps`], [`NnOps`]); the functions in [`ops`] take buffers. Each call returns a
//! [`Pending`], a future of its result. Ops chain without waiting.
//!
//! ```
//! use warpline::prelude::*;
//!
//! # fn main() -> warpline::Result<()> {
//! # futures::executor::block_on(async {
//! let device = Device::best()?;
//! let x = Tensor::ones([2, 3], &device);
//! // Awaiting waits until the device reaches this point.
//! let total: f32 = x.sum().item().await?;
//! assert_eq!(total, 6.0);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! ## Copy, order and await
//!
//! A [`Stream`] is a queue of work on a device. A copy takes its [`Pinned`] buffer by value and
//! returns it when the copy has finished. [`Stream::wait_stream`] adds an edge: the device runs
//! later work of one stream after the work of another. An [`Event`] marks a point on a stream.
//! [`Stream::enter`] makes a stream *current*: ops are enqueued on the current stream.
//! [`OrderMode`] lists the reactions to a missing edge.
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
//! // `sent` owns `host` until the copy has finished.
//! let (x, sent) = copy.copy_to_device(host)?;
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
//! A [`Loader`](ops::data::Loader) reads a dataset ahead of the computation. It enqueues the copy
//! of each batch before it yields the batch.
//!
//! ```
//! use warpline::ops::data::InMemory;
//! use warpline::prelude::*;
//!
//! # fn main() -> warpline::Result<()> {
//! # futures::executor::block_on(async {
//! let device = Device::best()?;
//! let (copy, compute) = (device.new_stream()?, device.new_stream()?);
//! let dataset = InMemory::new(2, vec![0.5; 2000], vec![1; 1000])?;
//! let mut batches = Loader::new(dataset).batch_size(32).on(&copy).build()?;
//! let total = compute.enter(|| Tensor::zeros([], &device)).queued()?;
//! while let Some(batch) = batches.next().await.transpose()? {
//!     compute.wait_event(&batch.copied); // this batch's copy, not the later ones
//!     compute.enter(|| total.add_(batch.tensors().0.sum())).queued()?;
//! }
//! let total: f32 = compute.enter(|| total.item()).await?;
//! assert_eq!(total, 1000.0);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! ## Test
//!
//! With the feature `test-util`, [`testing::for_each_seed`] runs a pipeline once for each seed. A
//! seed selects one interleaving of the streams, the same every time. `stream.hold()` stops a
//! stream until the test opens the returned gate.
//!
//! ```
//! use warpline::ops::{fill_, sum};
//! use warpline::testing::for_each_seed;
//!
//! for_each_seed(0..32, |device| async move {
//!     let side = device.new_stream()?;
//!     let x = device.alloc::<f32>(1000)?;
//!     let gate = device.default_stream()?.hold()?; // the fill has to wait
//!     fill_(&x, 2.0).queued()?;
//!     side.wait_for(&x); // without this edge, the sum is refused
//!     let total = side.enter(|| sum(&x));
//!     gate.open();
//!     assert_eq!(total.await?, 2000.0);
//!     Ok(())
//! });
//! ```
//!
//! ## Trace
//!
//! With the feature `trace`, [`trace::Recorder`] listens to `tracing` events. It writes Perfetto
//! JSON, and draws a picture with a row for each stream.
//!
//! ```
//! use warpline::prelude::*;
//! use warpline::trace::Recorder;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # futures::executor::block_on(async {
//! let recorder = Recorder::install()?;
//! let device = Device::best()?;
//! let x = Tensor::randn([64, 128], &device);
//! let total: f32 = x.relu().sum().item().await?;
//! assert!(total > 0.0);
//!
//! device.synchronize().await?; // the ops' times are known after this
//! let file = std::env::temp_dir().join("warpline-tour.html");
//! recorder.write_picture_file(&file)?; // or "….svg"
//! # assert!(!recorder.is_empty());
//! # std::fs::remove_file(&file).ok(); // another run may have removed it
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! ## Write a kernel
//!
//! [`kernel!`] declares a kernel: its parameters, its device code, and its CPU form for the CPU
//! device. [`Stream::launch`] launches it.
//!
//! ```
//! use warpline::prelude::*;
//!
//! # fn main() -> warpline::Result<()> {
//! # futures::executor::block_on(async {
//! warpline::kernel! {
//!     unsafe fn add(n: u32, a: f32, y: &mut [f32]) where n as usize == y.len() {
//!         cuda: r#"extern "C" __global__ void add(unsigned n, float a, float* y) {
//!             unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
//!             if (i < n) y[i] += a;
//!         }"#,
//!         cpu: |_n, a, y| y.iter_mut().for_each(|y| *y += a),
//!     }
//! }
//! let stream = Device::best()?.new_stream()?;
//! let y = stream.alloc_zeroed::<f32>(4)?;
//! stream.launch(add(4, 1.5, &y), LaunchConfig::linear(1, 32)).queued()?;
//! assert_eq!(stream.read(&y).await?, [1.5; 4]);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! ## Serve
//!
//! [`Device::stream_pool`] leases streams, one for each request. [`Stream::room`] provides
//! back-pressure: it waits until the stream has room for another op. Dropping a future cancels
//! nothing and frees nothing that the device still uses, so timeouts and aborted tasks are safe.
//!
//! ```
//! use std::time::Duration;
//! use warpline::prelude::*;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! async fn answer(pool: &StreamPool, data: &[f32]) -> warpline::Result<f32> {
//!     let stream = pool.lease().await?; // waits for a free stream
//!     let x = stream.alloc(data.len())?;
//!     stream.write(&x, data).queued()?;
//!     stream.enter(|| warpline::ops::sum(&x)).await
//! } // dropping the lease closes the stream and never blocks
//!
//! let pool = Device::best()?.stream_pool(8)?;
//! let reply = answer(&pool, &[1.0, 2.0, 3.5]);
//! let total = tokio::time::timeout(Duration::from_secs(5), reply).await??;
//! assert_eq!(total, 6.5);
//! # Ok(())
//! # }
//! ```
//!
//! ## Repeat work cheaply
//!
//! [`Stream::capture`] records work as a [`Graph`], and [`Graph::launch`] runs all of it as one op.
//!
//! ```
//! use warpline::prelude::*;
//!
//! # fn main() -> warpline::Result<()> {
//! # futures::executor::block_on(async {
//! let device = Device::best()?;
//! let stream = device.new_stream()?;
//! let x = stream.enter(|| Tensor::zeros([32, 64], &device)).queued()?;
//! let (graph, y) = stream.capture(|_| x.relu().sum())?; // recorded, not run
//! for step in 1..4 {
//!     // This writes new contents to that memory.
//!     stream.enter(|| x.fill_(step as f32)).queued()?;
//!     graph.launch(&stream).queued()?;
//!     let total: f32 = stream.enter(|| y.item()).await?;
//!     assert_eq!(total, 2048.0 * step as f32);
//! }
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # Errors
//!
//! The message of an [`Error`] says which call failed, which values do not fit, and what to do.
//! [`Error::kind`] returns the kind of failure. [`Error::cuda_code`] returns the number of the CUDA
//! error that caused it, if there is one.
//!
//! # Features
//!
//! * `cuda` (default): CUDA devices. NVIDIA's driver library is loaded when the program first asks
//!   for one.
//! * `clap`: [`DeviceArgs`], the arguments `--device` and `--disable-cuda`.
//! * `csv`: [`ops::data::Csv`], a dataset in a CSV file, compressed or not.
//! * `metrics`: [`serve::Batcher::record_metrics`] and [`serve::record_device_metrics`], for the
//!   exporters of the crate `metrics`.
//! * `ptx`: CPU devices run and check the device code of kernels. Switch it on to test kernels
//!   without a GPU: for kernels that have no CPU form, and for [`KernelForm`] and
//!   [`KernelChecks`]. A build then takes half as long again, and a release build nearly twice as
//!   long.
//! * `safetensors`: `nn::load_safetensors` and `nn::to_safetensors`, for the state of modules.
//! * `serve`: [`serve::Batcher`], which gathers the requests of a service into batches.
//! * `serde`: [`MemorySnapshot`] serializes, for JSON.
//! * `tower`: [`serve::BatcherService`], a batcher behind the middleware of `tower`.
//! * `test-util`: gates, planned faults and seeded runs, for tests.
//! * `trace`: [`trace::Recorder`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub use warpline_kernels as kernels;
#[doc(inline)]
pub use warpline_ops as ops;
#[doc(inline)]
pub use warpline_ops::nn;
pub use warpline_ops::{
    DType, DTypeScope, NestedArray, NnOps, Scalar, Shape, Tensor, TensorDisplay, TensorElement, TensorOps,
    TensorOptions,
};
#[cfg(feature = "clap")]
pub use warpline_runtime::DeviceArgs;
#[cfg(feature = "cuda")]
pub use warpline_runtime::cuda;
#[cfg(feature = "test-util")]
pub use warpline_runtime::testing;
pub use warpline_runtime::{
    BlockState, Budget, Buffer, CaptureOutput, Conflict, Declared, Device, DeviceId, DeviceProperties,
    DeviceValue, Draw, Edge, Element, Error, ErrorKind, Event, Generator, Graph, HealthState, HealthWatch,
    HoldsMemory, InCurrentStream, KernelChecks, KernelForm, MadeInScope, MemoryBlock, MemoryHolder,
    MemoryRef, MemorySegment, MemoryShortage, MemorySnapshot, MemoryStats, MemoryWaiters, OpStats, OrderMode,
    OutOfMemory, Pending, Permit, Pinned, PinnedPart, PinnedStats, Priority, RawStream, Result, Runtime,
    RuntimeBuilder, Schedule, Scope, Served, Stream, StreamBuilder, StreamId, StreamLease, StreamPool,
    SyncMode, Ticket, WakeUp, kernel, reads, trace, writes,
};
#[doc(hidden)]
pub use warpline_runtime::{Bookkeeping, HistorySizes};
#[cfg(feature = "serve")]
#[doc(inline)]
pub use warpline_serve as serve;

/// Types for authors of backends and of ops.
///
/// They are unstable and may change in any release. Programs that use streams, buffers, tensors and
/// kernels need none of them.
pub mod backend {
    pub use warpline_runtime::driver::{
        Claim, Command, Completion, Copy, CopyKind, DevicePtr, Driver, DriverError, DriverEvent,
        DriverFailure, DriverGraph, DriverStream, Fill, FreeMemory, Health, HostFn, Launch, Plan, PlanStream,
        Point, RawHandle, StagedCopy, StagedStep, Stamp, Step, StreamOptions, Submission, Work, copy_rows,
    };
    pub use warpline_runtime::{At, ByteRange, Keep, PinnedRoom, Refusal, Site, Timeline};
}

/// The names that most programs need.
pub mod prelude {
    pub use warpline_ops::data::Loader;
    pub use warpline_ops::nn::{Apply, Module};
    pub use warpline_ops::{DType, NnOps, Tensor, TensorOps};
    pub use warpline_runtime::kernel::LaunchConfig;
    pub use warpline_runtime::{
        Budget, Buffer, Device, DeviceId, Edge, Error, ErrorKind, Event, Graph, InCurrentStream, OrderMode,
        Pending, Pinned, Runtime, Schedule, Stream, StreamLease, StreamPool,
    };
}

/// Runs the programs of the README and of the guide as tests.
#[cfg(doctest)]
mod programs {
    #[doc = include_str!("README.md")]
    struct Readme;
    #[doc = include_str!("docs/guide/data.md")]
    struct Data;
    #[doc = include_str!("docs/guide/overlap.md")]
    struct Overlap;
    #[doc = include_str!("docs/guide/devices.md")]
    struct Devices;
    #[cfg(feature = "safetensors")]
    #[doc = include_str!("docs/guide/modules.md")]
    struct Modules;
    #[doc = include_str!("docs/guide/memory.md")]
    struct Memory;
    #[doc = include_str!("docs/guide/kernels.md")]
    struct Kernels;
    #[doc = include_str!("docs/kernels.md")]
    struct DeviceCode;
    #[doc = include_str!("docs/guide/graphs.md")]
    struct Graphs;
    #[doc = include_str!("docs/guide/testing.md")]
    struct Testing;
    #[doc = include_str!("docs/guide/gpu.md")]
    struct Gpu;
    #[doc = include_str!("docs/guide/order.md")]
    struct Order;
    #[cfg(feature = "clap")]
    #[doc = include_str!("docs/from-pytorch.md")]
    struct FromPyTorch;
    #[cfg(feature = "serve")]
    #[doc = include_str!("docs/guide/services.md")]
    struct Services;
    #[cfg(feature = "metrics")]
    #[doc = include_str!("docs/guide/inference.md")]
    struct Inference;
}
