//! A thread's own place to sleep: the standard library's, one word and one system call on either side.

use std::marker::PhantomData;
use std::thread::{self, Thread};

/// Where the thread that made it sleeps.
#[derive(Debug)]
pub struct Parker {
    unparker: Unparker,
    /// Another thread would sleep in a place of its own.
    _here: PhantomData<*const ()>,
}

/// Wakes that thread.
#[derive(Clone, Debug)]
pub struct Unparker(Thread);

impl Parker {
    /// The calling thread's.
    pub fn here() -> Self {
        Parker { unparker: Unparker(thread::current()), _here: PhantomData }
    }

    /// What wakes it.
    pub fn unparker(&self) -> &Unparker {
        &self.unparker
    }

    /// Sleeps until it is woken, or not at all if it was woken since it slept last. May also end for nothing: what else runs on
    /// this thread may sleep in the same place.
    pub fn park(&self) {
        thread::park();
    }
}

impl Unparker {
    /// Wakes it, or keeps it from sleeping the next time.
    pub fn unpark(&self) {
        self.0.unpark();
    }
}
