//! The one door to atomics and locks.
//!
//! `timeline.rs`, `desk.rs` and `driver/cpu/strand.rs` name their primitives only through this module, so that
//! `ci/loom-models` can compile the same files against loom's.

pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
