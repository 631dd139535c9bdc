//! The program's function that is called when a device has no memory, before a second attempt.
//!
//! # Rules
//! 1. It runs on the thread that allocates, and under no lock of the runtime. So it may call
//!    whatever the code that allocates may call.
//! 2. It runs once for an allocation. An allocation within it that fails, on any device, does not
//!    call it again on that thread, so it never recurses.
//! 3. Its panic passes through the allocation to the caller. Nothing was allocated then.

use super::{Device, DeviceShared};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{Error, ErrorKind, MemoryShortage};

thread_local! {
    static OBSERVING: Cell<bool> = const { Cell::new(false) };
}

/// Notes that this thread runs the observer, until it is dropped.
struct Observing;

impl Observing {
    fn begin() -> Option<Self> {
        (!OBSERVING.replace(true)).then_some(Observing)
    }
}

impl Drop for Observing {
    fn drop(&mut self) {
        OBSERVING.set(false);
    }
}

impl DeviceShared {
    /// Calls the program's function about an allocation that was refused with `error`. Returns true
    /// if the allocation is to be tried again.
    #[cold]
    pub(crate) fn observe_out_of_memory(self: &Arc<Self>, error: &Error) -> bool {
        let Some(observer) = self.runtime.out_of_memory_observer() else { return false };
        let Some(details) = error.out_of_memory() else { return false };
        // No memory that the program frees would help, or only that of one budget.
        if matches!(details.shortage, MemoryShortage::Unaddressable | MemoryShortage::Budget { .. }) {
            return false;
        }
        let Some(_observing) = Observing::begin() else { return false };
        observer(&Device::of(self.clone()), details);
        true
    }
}

/// Adds the call's place to the error of an op that got no memory. The error of a device that
/// accepts no more work stays as it is.
#[cold]
pub(crate) fn unserved(call: &dyn fmt::Display, error: Error) -> Error {
    match error.kind() {
        ErrorKind::OutOfMemory | ErrorKind::Driver => {
            Error::new(error.kind(), format!("{call}: {error}")).caused_like(&error)
        }
        _ => error,
    }
}
