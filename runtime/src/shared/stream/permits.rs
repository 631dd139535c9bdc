//! Permits for room on a stream that a caller has brought along for ops on this thread.

use crate::order::StreamId;
use std::cell::RefCell;
use tokio::sync::OwnedSemaphorePermit;

type Brought = (StreamId, Option<OwnedSemaphorePermit>);

thread_local! {
    /// The permits of this thread, innermost last.
    static PERMITS: RefCell<Vec<Brought>> = const { RefCell::new(Vec::new()) };
}

struct Installed;

impl Drop for Installed {
    fn drop(&mut self) {
        // Outside the borrow: a permit that is returned wakes the task that waits for one.
        drop(PERMITS.with_borrow_mut(Vec::pop));
    }
}

/// Calls `f`, in which the first op on that stream takes the permit.
pub(crate) fn with_permit<R>(stream: StreamId, permit: OwnedSemaphorePermit, f: impl FnOnce() -> R) -> R {
    PERMITS.with_borrow_mut(|permits| permits.push((stream, Some(permit))));
    let _installed = Installed;
    f()
}

/// Takes the innermost permit for that stream that has not been taken, if there is one.
pub(super) fn take_permit(stream: StreamId) -> Option<OwnedSemaphorePermit> {
    PERMITS.with_borrow_mut(|permits| {
        permits.iter_mut().rev().find_map(|(id, permit)| if *id == stream { permit.take() } else { None })
    })
}
