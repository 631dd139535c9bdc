//! The one door to atomics and locks.
//!
//! `timeline/`, `delegation.rs`, `exit.rs`, `driver/health.rs`,
//! `driver/cpu/strand.rs`, `driver/cpu/idle.rs` and `driver/cuda/completion/watch.rs` name their primitives
//! only through this module, so that `ci/loom-models` can compile the same files against loom's.

mod parker;

pub(crate) use parker::{Parker, Unparker};
pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// A sequentially consistent fence where, since this thread's last store that others look at, there was an atomic read-modify-write or
/// another such fence. On x86 either has been the fence already, and this keeps the compiler alone from moving things.
#[inline]
pub(crate) fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fence(Ordering::SeqCst);
}
