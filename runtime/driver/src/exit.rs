//! The end of the process, and threads of ours that are calling the driver then.
//!
//! The driver tears itself down in an exit handler while the other threads still run, and a call
//! that meets it may crash (ucx #11275, rmm #2366). An exit handler of ours runs before it and
//! keeps our threads out.
//!
//! # The protocol
//! A thread of ours that wants to call the driver **counts itself in, fences, and looks whether the
//! process is ending**. If it is, the thread counts itself out again and does not call. The handler
//! **says that the process is ending, fences, and looks whether anybody is in**. Of the two fences
//! one comes first: either the thread sees that the process is ending, or the handler sees the
//! thread. The handler then waits until all threads are out, and no longer than a bound: a call may
//! wait for a device that never answers.
//!
//! Threads of the program do not take part, since no exit handler should wait for what they do.
//! They look whether the process is ending, and a call that they are in at that moment is theirs.

use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence};

/// The process's end: the flag that says so, and the number of our threads that are calling the
/// driver.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) ending: AtomicBool,
    pub(crate) inside: AtomicUsize,
}

/// A thread of ours that may call the driver, until this is dropped.
pub struct Inside<'a>(&'a Exit);

impl Exit {
    /// Lets a thread of ours call the driver. None if the process is ending.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        self.inside.fetch_add(1, Ordering::Relaxed);
        let inside = Inside(self);
        fence(Ordering::SeqCst); // weaken: count-then-look
        (!self.ending.load(Ordering::Acquire)).then_some(inside)
    }

    /// Lets no more threads in.
    pub(crate) fn begin(&self) {
        self.ending.store(true, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: end-then-look
    }

    /// Returns true if no thread is inside, after [`begin`](Self::begin).
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
