//! The values and wakers that finished work releases, each protected from panics of the others.

use super::Keep;
use crate::reentry::{self, Caller};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// The values and wakers that a finished ticket releases. [`run`](Self::run) drops the values and
/// wakes the wakers, outside every lock.
#[derive(Default)]
pub struct Released {
    pub(super) keeps: Vec<Keep>,
    pub(super) wakers: Vec<Waker>,
}

impl Released {
    /// Returns true if a waiter will be woken.
    pub fn wakes(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Returns true if running it only wakes wakers that were made like `waker`. May return false
    /// although it does.
    pub fn only_wakes(&self, waker: &Waker) -> bool {
        let is_alike = |other: &Waker| std::ptr::eq(other.vtable(), waker.vtable());
        self.keeps.is_empty() && self.wakers.iter().all(is_alike)
    }

    /// Drops the kept values, then wakes each waiter. A panic of one does not keep the others
    /// asleep.
    pub fn run(self) {
        let _calling = reentry::calling(Caller::Waker);
        // Kept values first: a woken task may check whether its buffer was released.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self.keeps)));
        for waker in self.wakers {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                // The subscriber of the report may panic too, and the other wakers still have to be
                // woken.
                let _ = catch_unwind(crate::report::waker_panicked);
            }
        }
    }
}
