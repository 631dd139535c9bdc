//! CUDA devices: the driver API through cudarc's bindings, loaded when the first device is asked for.
//!
//! Nothing of CUDA is needed to build. Streams are non-blocking and pooled; the null stream is never used; the caller's current
//! context is put back. Order on the device is events, never waits for values in memory.
//!
//! # How a ticket completes
//! Ops are numbered as on every device, and nothing tells when one is over. Where somebody has to know, a **marker** is put behind
//! it: the device writes the ticket's number to a word in host memory (`completion/words.rs`). Pollers look at the word themselves; who
//! registers is woken by the reactor, a thread that reads words (`completion/reactor.rs`). Where the device cannot write words, or the word
//! fails its test at the start, markers are events that the reactor asks (`completion/track.rs`).
//!
//! # Faults
//! After a sticky error words stand still. The reactor has each device that it waits for asked
//! whether its context lives (`faults/checks.rs`); each call that fails says so too (`context.rs`). What an
//! answer means is decided in one place (`faults/diagnosis.rs`). A dead context ends the device for the
//! process (`faults/fault.rs`).
//!
//! # Tracing
//! While somebody listens, each op stands between two timed events and is told of when it is over (`profiling/spans.rs`). A profiler is told
//! of each op while it is enqueued (`profiling/nvtx.rs`).
//!
//! # Lock order
//! stream's lock → `modules`, `shared`, `peers`, `HELD`, pools, `tracks` (each alone); `HELD` →
//! those of `handles`. The driver is called under a stream's lock, under `modules`, `shared` and `peers`,
//! which only first uses take, under `HELD` while memory is freed, for which only gates wait, and
//! under `draining`, whose query does not block.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod completion;
mod context;
mod device;
mod faults;
mod loader;
mod modules;
mod profiling;
mod report;
mod stream;
mod versions;
mod work;

pub use device::{CudaDevice, CudaOptions, device_count, is_absent, is_available};
pub use modules::nvrtc::compile_for_newest;
use warpline_driver::sync;
