//! CUDA devices, through the functions of `libcuda` and cudarc's bindings, loaded on first use.
//!
//! No part of CUDA is needed to build. Streams are non-blocking and pooled; the null stream is
//! never used. The caller's current context is restored. Order on the device is made by events,
//! never by waits for values in memory.
//!
//! # How a ticket completes
//! Ops are numbered as on every device, and nothing reports when an op has finished. Where a waiter
//! needs to know, a **marker** is enqueued behind the op: the device writes the ticket's number to
//! a word in host memory (`completion/words.rs`). Pollers read the word themselves. A registered
//! waiter is woken by the reactor, a thread that reads words (`completion/reactor.rs`). Where the
//! device cannot write words, or the word fails its self-test, markers are events that the reactor
//! queries (`completion/track.rs`).
//!
//! # Faults
//! After a sticky error the words never change again. For each device that it waits for, the
//! reactor requests checks of the context (`faults/checks.rs`). Each CUDA call that fails is
//! evidence too (`context.rs`). The meaning of an answer is decided in one place
//! (`faults/diagnosis.rs`). A dead context ends the device for the process (`faults/fault.rs`).
//!
//! # Tracing
//! While a subscriber listens, each op stands between two timed events and is reported once it has
//! finished (`profiling/spans.rs`). A profiler is notified of each op while it is enqueued
//! (`profiling/nvtx.rs`).
//!
//! # Lock order
//! stream's lock → `modules`, `shared`, `peers`, `HELD`, pools, `tracks` (each alone); `HELD` →
//! those of `handles`; `HELD` and `peers` → `mappings`. CUDA is called under a stream's lock, and
//! under `modules`, `shared` and `peers`, which only first uses take. It is called under `HELD`
//! while memory is freed, for which only gates wait. It is also called under `draining`, whose
//! query does not block.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod completion;
mod context;
mod device;
mod faults;
mod loader;
mod machine;
mod modules;
mod profiling;
mod report;
mod stream;
mod versions;
mod visible;
mod work;

pub use device::{CudaDevice, CudaOptions, device_count, is_absent, is_available, likely_device_count};
pub use modules::nvrtc::{compile_for_cpu, compile_for_newest};
use warpline_driver::sync;
