//! The rules for code that the runtime calls: what it may ask of the runtime.
//!
//! A device waits for a host function or a kernel's CPU form to return, and the CUDA driver takes
//! no calls from a host function. So neither may wait for a device, nor call anything that might. A
//! waker runs where progress is noticed: on the reactor, on a worker, in a poll. It may enqueue,
//! but must not block that thread. The rules are the same on every device, although the CPU device
//! could allow more: what works on one works on all.
//!
//! | called by the runtime | enqueue, allocate, make streams, ask a stream | block on a `Pending` | poll, drop |
//! |---|---|---|---|
//! | host function, and the drop of what it captured | refused | refused | yes |
//! | kernel's CPU form | refused | refused | yes |
//! | waker, or other code on a thread of the runtime | yes | refused | yes |
//! | drop of the owner of lent memory | yes | yes | yes |
//!
//! A refusal is an error of kind `Reentrant`, whatever stream, device or runtime the call is about.
//! `tests/contract/reentry.rs` holds every public method against this table.

use crate::error::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::fmt::Display;
use std::task::Waker;

/// Which code a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Code that the runtime did not call.
    User,
    /// A waker, or any code on a thread that others wait for.
    Waker,
    /// A host function.
    HostFunction,
    /// A kernel's CPU form.
    Twin,
}

impl Caller {
    /// Returns whether a device waits for it to return.
    #[inline]
    fn holds_a_device(self) -> bool {
        matches!(self, Caller::HostFunction | Caller::Twin)
    }
}

thread_local! {
    static CALLER: Cell<Caller> = const { Cell::new(Caller::User) };
}

/// Puts the earlier mark back when it is dropped.
pub struct Calling(Caller);

impl Drop for Calling {
    #[inline]
    fn drop(&mut self) {
        CALLER.set(self.0);
    }
}

/// Marks what this thread is about to call, until the returned value is dropped. A waker that is
/// called by what a host function does is still part of the function.
#[inline]
pub fn calling(caller: Caller) -> Calling {
    let before = CALLER.get();
    if !(caller == Caller::Waker && before.holds_a_device()) {
        CALLER.set(caller);
    }
    Calling(before)
}

/// Wakes a task from inside its poll.
pub fn wake(waker: &Waker) {
    let _calling = calling(Caller::Waker);
    waker.wake_by_ref();
}

/// Marks the calling thread for good as one that others wait for.
pub fn become_awaited() {
    CALLER.set(Caller::Waker);
}

/// Returns which code the calling thread runs.
#[inline]
pub fn caller() -> Caller {
    CALLER.get()
}

/// Returns whether a device waits for the code that the calling thread runs.
#[inline]
pub fn holds_a_device() -> bool {
    caller().holds_a_device()
}

/// Refuses `what`, which a device may have to answer, to code that a device waits for.
pub fn may_ask(what: &dyn Display) -> Result<()> {
    if holds_a_device() { Err(refused(what)) } else { Ok(()) }
}

/// Returns whether the calling thread may block: the runtime did not call what it runs.
pub fn may_block() -> bool {
    caller() == Caller::User
}

/// The refusal of `what`, for what the thread is running.
#[cold]
pub fn refused(what: &dyn Display) -> Error {
    let why = match caller() {
        Caller::HostFunction => {
            "a host function called it, and the device waits for that; do it before the function is enqueued, or after awaiting it"
        }
        Caller::Twin => {
            "a kernel's CPU form called it, and the device waits for that; do it before the launch, or after awaiting it"
        }
        Caller::Waker | Caller::User => {
            "a waker called it, or other code on a thread that must not block; await it in a task instead"
        }
    };
    Error::new(ErrorKind::Reentrant, format!("{what}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waker_that_a_host_function_calls_is_part_of_it() {
        assert!(may_ask(&"x").is_ok() && may_block());
        let function = calling(Caller::HostFunction);
        let waker = calling(Caller::Waker);
        assert_eq!(caller(), Caller::HostFunction);
        drop(waker);
        assert_eq!(caller(), Caller::HostFunction);
        drop(function);
        let waker = calling(Caller::Waker);
        assert!(may_ask(&"x").is_ok());
        assert!(!may_block());
        let error = refused(&"wait");
        assert_eq!(error.kind(), ErrorKind::Reentrant);
        assert!(error.to_string().starts_with("wait: a waker called it"), "{error}");
        drop(calling(Caller::Twin));
        assert_eq!(caller(), Caller::Waker);
        drop(waker);
        assert_eq!(caller(), Caller::User);
    }

    #[test]
    fn the_thread_is_a_users_again_after_a_panic() {
        let panicked = std::panic::catch_unwind(|| {
            let _function = calling(Caller::HostFunction);
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(caller(), Caller::User);
    }
}
