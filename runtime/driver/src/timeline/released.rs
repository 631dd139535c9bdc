//! What finished work lets go of, and how that is done so that no panic of one keeps another from it.

use super::Keep;
use crate::reentry::{self, Caller};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// What a finished ticket lets go of: dropped and woken by [`run`](Self::run), outside every lock.
#[derive(Default)]
pub struct Released {
    pub(super) keeps: Vec<Keep>,
    pub(super) wakers: Vec<Waker>,
}

impl Released {
    /// Whether somebody is waiting.
    pub fn wakes(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Whether all that running it does is to wake wakers made as `waker` was. May say no where they are.
    pub fn only_wakes(&self, waker: &Waker) -> bool {
        let is_alike = |other: &Waker| std::ptr::eq(other.vtable(), waker.vtable());
        self.keeps.is_empty() && self.wakers.iter().all(is_alike)
    }

    /// Drops what was kept, then wakes each waiter; a panic in one does not keep the others asleep.
    pub fn run(self) {
        let _calling = reentry::calling(Caller::Waker);
        // Kept values first: who is woken may look whether its buffer has been let go.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self.keeps)));
        for waker in self.wakers {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                // Who is told of it may panic too, and the others are to be woken.
                let _ = catch_unwind(crate::report::waker_panicked);
            }
        }
    }
}
