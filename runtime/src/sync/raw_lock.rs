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
//! # Fairness
//! A woken sleeper takes its chance with everybody else, which serves locks that are held for well under a microsecond. A lock that
//! is held for a driver call, and taken again at once by who enqueues in a loop, would be gone each time. So whoever was woken in vain says
//! that it **starves**, and the next holder hands the lock to a sleeper instead of releasing it.

use crate::sync::{AtomicBool, AtomicU32, Ordering, Parking, Woken, heavy_fence, light_fence, spin_until};

#[derive(Debug, Default)]
pub(crate) struct RawLock {
    pub(super) held: AtomicBool,
    /// How many sleep or are about to.
    pub(super) waiting: AtomicU32,
    /// A hint: somebody was woken in vain.
    pub(super) starving: AtomicBool,
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
        let mut woken = false;
        while !taken() {
            if woken {
                self.starving.store(true, Ordering::Relaxed);
            }
            if self.parking.sleep_if(|| !self.is_free()) == Woken::WithLock {
                break;
            }
            woken = true;
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
        if self.starving.load(Ordering::Relaxed) && self.hand_over() {
            return;
        }
        self.held.store(false, Ordering::Release);
        light_fence(); // weaken: release-then-look
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.wake_one();
        }
    }

    #[cold]
    fn wake_one(&self) {
        self.parking.wake_one(Woken::ToTry);
    }

    /// Gives the lock, still held, to a sleeper, if there is one.
    #[cold]
    fn hand_over(&self) -> bool {
        self.starving.store(false, Ordering::Relaxed);
        self.parking.wake_one(Woken::WithLock)
    }
}
