//! The one door to atomics and locks.
//!
//! `timeline/`, `exit.rs` and `health.rs` here, `delegation.rs` of the runtime, `strand.rs` and `idle.rs` of the CPU device, and
//! `completion/watch.rs` of CUDA devices name their primitives only through this module, so that `ci/loom-models` can compile
//! the same files against loom's.

mod parker;

pub use parker::{Parker, Unparker};
pub use parking_lot::{Mutex, MutexGuard};
pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// A sequentially consistent fence where, since this thread's last store that others look at, there was an atomic read-modify-write or
/// another such fence. On x86 either has been the fence already, and this keeps the compiler alone from moving things.
#[inline]
pub fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fence(Ordering::SeqCst);
}
