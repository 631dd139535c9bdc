//! Batches of requests, for services that compute on a device.
//!
//! A [`Batcher`] gathers the rows of concurrent calls into batches for a model. Each caller writes
//! its row straight into the batch's pinned memory, and gets its row of the outputs back.
//!
//! ```
//! use std::time::Duration;
//! use warpline::prelude::*;
//! use warpline::serve::Batcher;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let device = Device::best()?;
//!     let doubled = Batcher::<(f32,), (f32,)>::builder(&device, [[3].into()], [[3].into()])
//!         .max_rows(64)
//!         .max_wait(Duration::from_millis(1))
//!         .build(|_stream, (x,), _calls| async move { Ok(((&x * 2.0).queued()?,)) })
//!         .await?;
//!     let answer = doubled.submit(|(row,)| Ok(row.copy_from_slice(&[1.0, 2.0, 3.0]))).await?;
//!     assert_eq!(answer.outputs().0, [2.0, 4.0, 6.0]);
//!     Ok(())
//! }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod answer;
mod batcher;
mod builder;
mod error;
#[cfg(feature = "metrics")]
mod histograms;
#[cfg(feature = "metrics")]
mod metrics;
mod model;
mod queue;
mod rows;
#[cfg(feature = "tower")]
mod service;
mod shared;
mod slot;
mod slots;
mod stats;
mod submit;

pub use answer::Answer;
pub use batcher::{Batcher, Drained};
pub use builder::BatcherBuilder;
pub use error::{ServeError, WriterError};
#[cfg(feature = "metrics")]
pub use metrics::record_device_metrics;
pub use rows::Rows;
#[cfg(feature = "tower")]
pub use service::BatcherService;
pub use slots::{SlotLease, Slots};
pub use stats::BatcherStats;
pub use submit::Submit;
