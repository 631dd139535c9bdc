//! Whether the reactor looks after a stream.
//!
//! # The protocol
//! Who enters interest in a stream's timeline **enters, fences, looks at the mark**, and if it is not set, sets it and hands the
//! stream over. The reactor, which finds that nobody is interested, **clears the mark, fences, looks at the interest**. Of the two
//! fences one comes first: either the reactor sees the interest, or who entered it sees the cleared mark. If both see, one of
//! them sets the mark first, and it is that one's stream to look after.

use crate::sync::{AtomicBool, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Watch {
    watched: AtomicBool,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Watch { watched: AtomicBool::new(false) }
    }

    /// After interest was entered and a sequentially consistent fence: whether the caller has to hand the stream over.
    #[inline]
    pub(crate) fn want(&self) -> bool {
        !self.watched.load(Ordering::Relaxed) && !self.watched.swap(true, Ordering::AcqRel)
    }

    /// By the reactor: whether it may turn away from the stream. If somebody is interested again, it may because the stream was
    /// handed over again, or it may not.
    pub(crate) fn rest(&self, wanted: impl Fn() -> bool) -> bool {
        if wanted() {
            return false;
        }
        self.watched.store(false, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: clear-then-look
        !wanted() || self.watched.swap(true, Ordering::AcqRel)
    }
}
