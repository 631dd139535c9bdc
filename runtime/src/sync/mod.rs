//! The one door to atomics and locks.
//!
//! `timeline.rs`, `desk.rs`, `sync/raw_lock.rs`, `driver/health.rs`, `driver/cpu/strand.rs`, `driver/cpu/idle.rs` and
//! `driver/cuda/watch.rs` name their primitives only through this module, so that `ci/loom-models` can compile the same files
//! against loom's.

mod asymmetric;
mod parker;
mod parking;
mod prefetch;
mod raw_lock;

pub(crate) use asymmetric::{heavy_fence, light_fence, make_light};
pub(crate) use parker::{Parker, Unparker};
pub(crate) use parking::{Parking, Woken, spin_until};
pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use prefetch::Lines;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use parking_lot::lock_api::{self, GuardNoSend, RawMutex};
use raw_lock::RawLock;

/// A lock for what every op goes through: the same as [`Mutex`], but unlocking is a plain store (`raw_lock.rs`).
pub(crate) type Lock<T> = lock_api::Mutex<RawLock, T>;
/// A [`Lock`] that is held.
pub(crate) type LockGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;

// SAFETY: `lock` and a `try_lock` that says `true` take the lock, which nobody else then has before `unlock` (the protocol in
// `raw_lock.rs`).
unsafe impl RawMutex for RawLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait has it so")]
    const INIT: RawLock = RawLock {
        held: AtomicBool::new(false),
        waiting: AtomicU32::new(0),
        starving: AtomicBool::new(false),
        parking: Parking::new(),
    };
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        RawLock::lock(self);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        RawLock::try_lock(self)
    }

    #[inline]
    unsafe fn unlock(&self) {
        RawLock::unlock(self);
    }
}

/// A sequentially consistent fence where, since this thread's last store that others look at, there was an atomic read-modify-write or
/// another such fence. On x86 either has been the fence already, and this keeps the compiler alone from moving things.
#[inline]
pub(crate) fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn threads_that_fight_for_a_lock_lose_no_increment_and_none_stays_asleep() {
        for registered in [false, true] {
            if registered {
                make_light();
            }
            let count = Lock::new(0u64);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for round in 0..20_000 {
                            let mut count = count.lock();
                            *count += 1;
                            if round % 500 == 0 {
                                // Held long enough for the others to go to sleep.
                                (0..40).for_each(|_| thread::yield_now());
                            }
                        }
                    });
                }
            });
            assert_eq!(*count.lock(), 80_000);
        }
    }

    #[test]
    fn who_takes_it_again_at_once_leaves_some_to_others() {
        // Without handing over the other gets it a few times in as many rounds, if at all.
        let (lock, ended) = (Lock::new(0u32), AtomicBool::new(false));
        let began = std::sync::Barrier::new(2);
        let mut rounds = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                began.wait();
                (0..50).for_each(|_| *lock.lock() += 1);
                ended.store(true, Ordering::Relaxed);
            });
            began.wait();
            while !ended.load(Ordering::Relaxed) && rounds < 100_000 {
                let _held = lock.lock();
                (0..100).for_each(|_| thread::yield_now());
                rounds += 1;
            }
        });
        assert_eq!(*lock.lock(), 50);
        assert!(rounds < 10_000, "{rounds} rounds until the other had it 50 times");
    }

    #[test]
    fn a_held_lock_is_not_taken() {
        let lock = Lock::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
