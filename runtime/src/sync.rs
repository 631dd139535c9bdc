//! The one door to atomics and locks.
//!
//! `timeline.rs`, `desk.rs`, `driver/health.rs`, `driver/cpu/strand.rs`, `driver/cpu/idle.rs` and `driver/cuda/watch.rs` name
//! their primitives only through this module, so that `ci/loom-models` can compile the same files against loom's.

pub(crate) use crossbeam_utils::sync::{Parker, Unparker};
pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
