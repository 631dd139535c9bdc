//! A thread's own place to sleep, built on the standard library: one word, and one system call on
//! either side.

use std::marker::PhantomData;
use std::thread::{self, Thread};

/// The place where the thread that made it sleeps.
#[derive(Debug)]
pub struct Parker {
    unparker: Unparker,
    /// Another thread would sleep in a different place.
    _here: PhantomData<*const ()>,
}

/// A handle that wakes the thread of a [`Parker`].
#[derive(Clone, Debug)]
pub struct Unparker(Thread);

impl Parker {
    /// Returns the parker of the calling thread.
    pub fn here() -> Self {
        Parker { unparker: Unparker(thread::current()), _here: PhantomData }
    }

    /// Returns the handle that wakes the thread.
    pub fn unparker(&self) -> &Unparker {
        &self.unparker
    }

    /// Sleeps until the thread is woken, or not at all if it was woken since it last slept. May
    /// also return without a wake-up: other code on this thread may sleep in the same place.
    pub fn park(&self) {
        thread::park();
    }
}

impl Unparker {
    /// Wakes the thread, or keeps it from sleeping the next time.
    pub fn unpark(&self) {
        self.0.unpark();
    }
}
