//! The end of the process, while threads of Warpline may be calling the driver.
//!
//! The driver tears itself down in an exit handler while the other threads still run. A driver call
//! at that moment may crash (ucx #11275, rmm #2366). An exit handler of Warpline runs before it and
//! keeps Warpline's threads out.
//!
//! # The protocol
//! A thread of Warpline that wants to call the driver **counts itself in, fences, and reads whether
//! the process is ending**. If it is, the thread counts itself out again and does not call. The
//! handler **sets the flag that the process is ending, fences, and reads whether any thread is
//! in**. One of the two fences comes first: either the thread sees that the process is ending, or
//! the handler sees the thread. The handler then waits until all threads are out, but only for a
//! limited time, since a call may wait for a device that never answers.
//!
//! Threads of the program do not take part, since no exit handler should wait for them. They check
//! whether the process is ending. A call that they are making at that moment is their own
//! responsibility.

use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence};

/// The end of the process: the flag that announces it, and the number of Warpline's threads that
/// are calling the driver.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) ending: AtomicBool,
    pub(crate) inside: AtomicUsize,
}

/// A thread of Warpline that may call the driver, until this is dropped.
pub struct Inside<'a>(&'a Exit);

impl Exit {
    /// Lets a thread of Warpline call the driver. Returns `None` if the process is ending.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        self.inside.fetch_add(1, Ordering::Relaxed);
        let inside = Inside(self);
        fence(Ordering::SeqCst); // weaken: count-then-look
        (!self.ending.load(Ordering::Acquire)).then_some(inside)
    }

    /// Lets no more threads call the driver.
    pub(crate) fn begin(&self) {
        self.ending.store(true, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: end-then-look
    }

    /// Returns true if no thread is calling the driver. Used after [`begin`](Self::begin).
    pub(crate) fn is_clear(&self) -> bool {
        self.inside.load(Ordering::Acquire) == 0
    }

    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Release);
    }
}
