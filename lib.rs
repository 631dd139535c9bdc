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
//! let _ = compute.wait_stream(&copy); // an edge on the device; the host goes on
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
pub use warpline_runtime::*;

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

/// Runs the README's programs as tests.
#[cfg(doctest)]
#[doc = include_str!("README.md")]
struct Readme;
