//! The atomics and locks of the code that `ci/loom-models` checks.
//!
//! These files name their primitives only through this module: `timeline/`, `exit.rs` and
//! `health.rs` here, `delegation.rs`, `memory/pinned/`, and `coming.rs`, `late.rs` and
//! `progress.rs` of a stream in the runtime, `strand.rs`, `idle.rs` and `line.rs` of the CPU
//! device, and `completion/watch.rs` of CUDA devices. `ci/loom-models` can therefore compile the
//! same files against loom's primitives.

mod parker;

pub use parker::{Parker, Unparker};
pub use parking_lot::{Mutex, MutexGuard};
pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

/// A sequentially consistent fence for one situation: since this thread's last store that other
/// threads read, it has executed an atomic read-modify-write or another such fence.
///
/// On x86 either of these has been the fence already, so this one only keeps the compiler from
/// reordering.
#[inline]
pub fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fence(Ordering::SeqCst);
}
