//! The rules for code that the runtime calls, such as host functions and wakers: which calls to the
//! runtime it may make.
//!
//! A device waits until a host function or a kernel's CPU form returns, and the CUDA driver accepts
//! no calls from a host function. Neither may therefore wait for a device, nor make a call that
//! might. A waker runs where progress is noticed: on the reactor, on a worker, or in a poll. It may
//! enqueue, but must not block that thread.
//!
//! The rules are the same on every device, although the CPU device could allow more. Code that
//! works on one device works on all.
//!
//! | code | enqueue, allocate, make streams, query a stream | block on a `Pending` | poll, drop |
//! |---|---|---|---|
//! | host function, and the drop of what it captured | refused | refused | yes |
//! | kernel's CPU form | refused | refused | yes |
//! | waker, or other code on a thread of the runtime | yes | refused | yes |
//! | drop of the owner of lent memory | yes | yes | yes |
//!
//! The function of `RuntimeBuilder::on_out_of_memory` runs within the call that allocates, and is
//! part of the code that made that call.
//!
//! A refusal is an error of kind `Reentrant`, for any stream, device or runtime.
//! `tests/contract/reentry.rs` checks every public method against this table.
// Decision: docs/decisions/0021-one-reentrancy-rule-for-all-devices.md

use crate::error::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::fmt::Display;
use std::task::Waker;

/// The kind of code that a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Code that the runtime did not call.
    User,
    /// A waker, or any code on a thread that other threads wait for.
    Waker,
    /// A host function.
    HostFunction,
    /// A kernel's CPU form.
    Twin,
}

impl Caller {
    /// Returns true if a device waits for this code to return.
    #[inline]
    fn holds_a_device(self) -> bool {
        matches!(self, Caller::HostFunction | Caller::Twin)
    }
}

thread_local! {
    static CALLER: Cell<Caller> = const { Cell::new(Caller::User) };
}

/// Restores the earlier state when it is dropped.
pub struct Calling(Caller);

impl Drop for Calling {
    #[inline]
    fn drop(&mut self) {
        CALLER.set(self.0);
    }
}

/// Notes the kind of code that this thread is about to call, until the returned value is dropped. A
/// waker that a host function causes to be called is still part of the function.
#[inline]
pub fn calling(caller: Caller) -> Calling {
    let before = CALLER.get();
    if !(caller == Caller::Waker && before.holds_a_device()) {
        CALLER.set(caller);
    }
    Calling(before)
}

/// Wakes a task from inside its own poll.
pub fn wake(waker: &Waker) {
    let _calling = calling(Caller::Waker);
    waker.wake_by_ref();
}

/// Notes permanently that the calling thread is one that other threads wait for.
pub fn become_awaited() {
    CALLER.set(Caller::Waker);
}

/// Returns the kind of code that the calling thread runs.
#[inline]
pub fn caller() -> Caller {
    CALLER.get()
}

/// Returns true if a device waits for the code that the calling thread runs.
#[inline]
pub fn holds_a_device() -> bool {
    caller().holds_a_device()
}

/// Returns an error if a device waits for the calling code. `what` names the refused call in the
/// error.
pub fn may_ask(what: &dyn Display) -> Result<()> {
    if holds_a_device() { Err(refused(what)) } else { Ok(()) }
}

/// Returns true if the calling thread may block, because it runs code that the runtime did not
/// call.
pub fn may_block() -> bool {
    caller() == Caller::User
}

/// Returns the error that refuses `what` to the code that the thread runs.
#[cold]
pub fn refused(what: &dyn Display) -> Error {
    let why = match caller() {
        Caller::HostFunction => {
            "a host function called it while the device waits for that function; do it before the \
             function is enqueued, or after awaiting it"
        }
        Caller::Twin => {
            "a kernel's CPU form called it while the device waits for that kernel; do it before \
             the launch, or after awaiting it"
        }
        Caller::Waker | Caller::User => {
            "it was called by a waker, or by other code on a thread that must not block; await it \
             in a task instead"
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
        assert!(error.to_string().starts_with("wait: it was called by a waker"), "{error}");
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
