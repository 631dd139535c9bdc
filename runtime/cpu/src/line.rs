//! The line in which strands wait for the thread that calls host functions.
//!
//! A host function may wait, for the host or for another stream. On a worker it would keep the
//! kernels and copies of other streams from running. So each device has one thread for its
//! functions, as a GPU has: they may delay each other, and nothing else.
//!
//! # Rules
//! 1. A ready strand whose next op is a host function is in the line, instead of in a run queue.
//!    The thread takes it from there, begins it as a worker would, calls its functions up to the
//!    first op that is something else, and sends it to a run queue.
//! 2. Who serves the line changes under its lock, together with what waits in it. [`Line::put`]
//!    thus tells exactly one caller to start a thread, and [`Line::next`] never parks or ends while
//!    a strand waits.
//! 3. The thread is started for the first strand and parks when the line is empty, after a while in
//!    which it looks for more, because waking it up would take longer than most functions. Once the
//!    line is closed, it ends instead. A strand that is put after that starts another thread.
//! 4. If no thread can be started, the line is given up for good. The workers call the functions
//!    themselves then.
//! 5. When the device fails, what waits in the line goes to the run queues, where workers purge it:
//!    the function that runs may never return. The thread that puts a strand into the line **looks
//!    at the device's health afterwards**, and the thread that notes the failure **empties the line
//!    afterwards**. So one of the two finds the strand.
//! 6. A shutdown may only report strands as stuck while no function runs or waits here: it might
//!    bring about what they wait for. [`idle`](super::idle) counts the strands that are here.
//!
//! # Lock order
//! The lock is a leaf: nothing is run, dropped or unparked under it.

use crate::sync::{AtomicBool, Mutex, Ordering, Parker, Unparker};
use std::collections::VecDeque;

/// A queue that one thread serves.
pub(crate) struct Line<T> {
    state: Mutex<State<T>>,
    /// Set once no thread could be started. A hint when read without the lock.
    given_up: AtomicBool,
}

struct State<T> {
    waiting: VecDeque<T>,
    server: Server,
    closed: bool,
}

/// The thread that serves a line.
enum Server {
    Absent,
    /// It runs, or was told to start or to wake up.
    Up,
    Parked(Unparker),
}

/// The outcome of putting an entry into a line.
#[must_use]
#[derive(Debug)]
pub(crate) enum Put<T> {
    /// The thread comes for it.
    Seen,
    /// The caller has to start the thread.
    Start,
    /// There is no thread and will be none.
    Back(T),
}

impl<T> Line<T> {
    pub(crate) fn new() -> Self {
        let state = State { waiting: VecDeque::new(), server: Server::Absent, closed: false };
        Line { state: Mutex::new(state), given_up: AtomicBool::new(false) }
    }

    /// Returns false if the line was given up.
    #[inline]
    pub(crate) fn is_served(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed)
    }

    /// Puts `entry` at the end.
    pub(crate) fn put(&self, entry: T) -> Put<T> {
        let mut state = self.state.lock();
        if !self.is_served() {
            return Put::Back(entry);
        }
        state.waiting.push_back(entry);
        let server = std::mem::replace(&mut state.server, Server::Up);
        drop(state);
        match server {
            Server::Absent => return Put::Start,
            Server::Up => {}
            Server::Parked(unparker) => unparker.unpark(),
        }
        Put::Seen
    }

    /// Returns true if an entry waits.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }

    /// Returns the next entry. Keeps the calling thread, which serves the line, until there is one:
    /// awake while `stays_awake` returns true, and then parked. Returns `None` if the line is
    /// closed and empty. The thread then no longer serves it.
    pub(crate) fn next(&self, parker: &Parker, mut stays_awake: impl FnMut() -> bool) -> Option<T> {
        let mut is_awake = true;
        loop {
            let mut state = self.state.lock();
            if let Some(entry) = state.waiting.pop_front() {
                return Some(entry);
            }
            if state.closed {
                state.server = Server::Absent; // weaken: absent-once-ended
                return None;
            }
            if is_awake {
                drop(state);
                is_awake = stays_awake();
                continue;
            }
            state.server = Server::Parked(parker.unparker().clone());
            drop(state);
            parker.park();
        }
    }

    /// Lets the thread end once the line is empty.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        if !matches!(state.server, Server::Parked(_)) {
            return;
        }
        let server = std::mem::replace(&mut state.server, Server::Up);
        drop(state);
        if let Server::Parked(unparker) = server {
            unparker.unpark();
        }
    }

    /// Takes all entries that wait.
    #[must_use]
    pub(crate) fn take_all(&self) -> VecDeque<T> {
        std::mem::take(&mut self.state.lock().waiting)
    }

    /// Gives the line up, because the thread that [`put`](Self::put) asked for could not be
    /// started. Returns the entries that wait in it.
    #[must_use]
    pub(crate) fn give_up(&self) -> VecDeque<T> {
        let mut state = self.state.lock();
        self.given_up.store(true, Ordering::Relaxed);
        state.server = Server::Absent;
        std::mem::take(&mut state.waiting)
    }
}
