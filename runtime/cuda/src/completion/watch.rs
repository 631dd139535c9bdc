//! The flag that says whether the reactor watches a stream.
//!
//! # The protocol
//! A waiter **registers its interest** in the stream's timeline, **fences, and reads the flag**. If
//! the flag is not set, the waiter sets it and hands the stream over. When the reactor finds no
//! interest, it **clears the flag, fences, and reads the interest**. One of the two fences comes
//! first: either the reactor sees the interest, or the waiter sees the cleared flag. If both
//! happen, the first to set the flag decides: the waiter hands the stream over, or the reactor
//! keeps it.

use crate::sync::{AtomicBool, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Watch {
    watched: AtomicBool,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Watch { watched: AtomicBool::new(false) }
    }

    /// Returns true if the caller has to hand the stream over. Called after registering interest
    /// and a sequentially consistent fence.
    #[inline]
    pub(crate) fn want(&self) -> bool {
        !self.watched.load(Ordering::Relaxed) && !self.watched.swap(true, Ordering::AcqRel)
    }

    /// Returns true if the reactor may stop watching the stream. Called by the reactor. If there is
    /// new interest, the reactor may stop only if the stream was handed over again.
    pub(crate) fn rest(&self, wanted: impl Fn() -> bool) -> bool {
        if wanted() {
            return false;
        }
        self.watched.store(false, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: clear-then-look
        !wanted() || self.watched.swap(true, Ordering::AcqRel)
    }
}
