//! Where those sleep who wait for a lock.

use crossbeam_utils::Backoff;
use parking_lot_core::{DEFAULT_PARK_TOKEN, ParkResult, UnparkToken};

/// A place to sleep, known by its address: that of a byte, since what has no size may share its own with something else.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    _address: u8,
}

impl Parking {
    pub(crate) const fn new() -> Self {
        Parking { _address: 0 }
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Sleeps until woken, unless `still` says no. Nobody is woken between its answer and the sleep.
    pub(crate) fn sleep_if(&self, still: impl Fn() -> bool) -> Woken {
        // SAFETY: the key is an address of this module's own; `still` neither parks nor panics.
        let result =
            unsafe { parking_lot_core::park(self.key(), still, || {}, |_, _| {}, DEFAULT_PARK_TOKEN, None) };
        match result {
            ParkResult::Unparked(WITH_LOCK) => Woken::WithLock,
            _ => Woken::ToTry,
        }
    }

    /// Wakes one sleeper, if there is one, and tells it so much. Whether there was one.
    pub(crate) fn wake_one(&self, woken: Woken) -> bool {
        let token = if woken == Woken::WithLock { WITH_LOCK } else { TO_TRY };
        // SAFETY: as above; the callback does nothing.
        unsafe { parking_lot_core::unpark_one(self.key(), |_| token) }.unparked_threads > 0
    }
}

const TO_TRY: UnparkToken = UnparkToken(0);
const WITH_LOCK: UnparkToken = UnparkToken(1);

/// What a sleeper is woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The lock was released, or never was there to wait for.
    ToTry,
    /// The lock is the sleeper's.
    WithLock,
}

/// Tries for a moment, first spinning, then yielding. Whether it came to be.
pub(crate) fn spin_until(done: impl Fn() -> bool) -> bool {
    let backoff = Backoff::new();
    while !backoff.is_completed() {
        if done() {
            return true;
        }
        backoff.snooze();
    }
    done()
}
