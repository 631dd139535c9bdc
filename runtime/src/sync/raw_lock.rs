//! A lock whose release is a plain store.
//!
//! An op takes the lock of its stream and of each of its operands, and nearly always finds them free. Releasing an ordinary lock
//! costs as much as taking it: one atomic read-modify-write, which has to see whether somebody waits. Here the release stores,
//! then looks, with a fence between that costs nothing because whoever goes to sleep pays for both.
//!
//! # The protocol
//! The holder: **release, light fence, look whether anybody waits; if so, wake one**. Who waits, having spun in vain: **say that
//! it waits, heavy fence, then sleep if the lock is still held**, and again after each wake-up. Of the two fences one comes first. If the
//! holder's does, the sleeper's look finds the lock released, or held by a third party, of whom the same can be said. If the sleeper's does, the holder
//! sees that somebody waits. Looking and falling asleep is one step for whoever wakes (`Parking`), so the wake-up is not lost between the two.
//!
//! A woken sleeper takes its chance with everybody else: locks are held for well under a microsecond, or for a driver call.

use crate::sync::{AtomicBool, AtomicU32, Ordering, Parking, heavy_fence, light_fence, spin_until};

#[derive(Debug, Default)]
pub(crate) struct RawLock {
    pub(super) held: AtomicBool,
    /// How many sleep or are about to.
    pub(super) waiting: AtomicU32,
    pub(super) parking: Parking,
}

impl RawLock {
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub(crate) fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    #[cold]
    fn lock_contended(&self) {
        // Looking first: who only looks does not take the cache line from the holder.
        let taken = || spin_until(|| self.is_free() && self.try_lock());
        if taken() {
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        heavy_fence(); // weaken: say-then-look
        while !taken() {
            self.parking.sleep_if(|| !self.is_free());
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline]
    fn is_free(&self) -> bool {
        !self.held.load(Ordering::Relaxed)
    }

    /// By the holder.
    #[inline]
    pub(crate) fn unlock(&self) {
        self.held.store(false, Ordering::Release);
        light_fence(); // weaken: release-then-look
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.wake_one();
        }
    }

    #[cold]
    fn wake_one(&self) {
        self.parking.wake_one();
    }
}
