//! Host functions in stream order, and the delivery of their results and panics.
//!
//! The function and the `Pending` share a slot for the result. The second of the two to access it
//! finds the value that the first left. A `Pending` that is dropped first notes that the slot is
//! abandoned, so that a panic is reported in another way.

use crate::order::Site;
use crate::pending::Pending;
use crate::shared::{HostCode, Stream, StreamCore, panics};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use warpline_driver::internal::ErrorParts;
use warpline_driver::{Command, HostFn, Result, message_of};

/// The outcome of a host function.
enum Outcome<R> {
    Unknown,
    Known(Result<R>),
    /// Not known yet, and the `Pending` is gone.
    Abandoned,
}

type Slot<R> = Arc<Mutex<Outcome<R>>>;

/// The half of the slot that the `Pending` owns.
struct Looks<R> {
    slot: Slot<R>,
    core: Arc<StreamCore>,
}

impl<R> Looks<R> {
    fn look(self) -> Result<R> {
        let outcome = std::mem::replace(&mut *self.slot.lock(), Outcome::Abandoned);
        let Outcome::Known(result) = outcome else {
            unreachable!(
                "a host function has returned when its ticket is reached, and its outcome is taken once"
            )
        };
        result
    }
}

impl<R> Drop for Looks<R> {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        let outcome = std::mem::replace(&mut *self.slot.lock(), Outcome::Abandoned);
        if let Outcome::Known(Err(error)) = outcome {
            self.core.note_unseen(&error);
        }
    }
}

/// Handles the result of a function whose `Pending` was dropped before the function ended.
fn nobody_looks<R>(result: Result<R>, core: &Weak<StreamCore>) {
    match result {
        // The value belongs to the caller, and so does a panic in its drop.
        Ok(value) => {
            if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
                warpline_driver::report::drop_panicked();
            }
        }
        Err(error) => {
            if let Some(core) = core.upgrade() {
                core.note_unseen(&error);
            }
        }
    }
}

impl Stream {
    /// Calls `f` in stream order: after everything enqueued before, before everything enqueued
    /// after. To run it after the work of another stream, let this one wait for that one first
    /// ([`wait_stream`](Self::wait_stream)). The order check does not see what `f` uses.
    ///
    /// `f` runs on a thread of the driver. It may wait: that delays later work on this stream, and
    /// host functions of other streams of the device, but no kernels or copies of those. A function
    /// must not wait for another one of the same device, which may be behind it. With a
    /// [seed](crate::Schedule::Seeded), it runs on a thread that polls, and delays all work.
    ///
    /// Inside `f`, every call that may need the device is refused as `Reentrant`, for any device:
    /// enqueuing, allocating, page-locking, making streams, querying a stream's progress, and
    /// blocking on a `Pending`. The CUDA driver accepts no calls from there, and the other devices
    /// follow the same rule. To enqueue more work, send it to a task, or await this `Pending`
    /// first.
    ///
    /// `f` may drop streams, buffers, `Pending`s and other handles, poll, and read values that need
    /// no device. The runtime cannot tell the `block_on` of an executor from a poll: such a call is
    /// not refused, and may never return.
    ///
    /// # Cancel safety
    /// Dropping the `Pending` drops the result; `f` is still called.
    ///
    /// # Errors
    /// In the `Pending`: the errors of any op, as in [`launch`](Self::launch); `Captured` in a
    /// capture; `Panicked` if `f` panics. After a panic, the device is still usable, and later work
    /// on the stream runs.
    ///
    /// Awaiting that later work returns an inherited error
    /// ([`Error::is_inherited`](crate::Error::is_inherited)), and so does awaiting work of streams
    /// that waited for it. Once this `Pending` has been awaited, or a `synchronize` of this stream
    /// has returned the panic, newly enqueued work is not affected. So put a function that may
    /// panic on a leased stream rather than on one that clients share.
    #[track_caller]
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> Pending<R> {
        let (site, core) = (Site::here(&"call"), self.core());
        let slot: Slot<R> = Arc::new(Mutex::new(Outcome::Unknown));
        let looks = Looks { slot: slot.clone(), core: core.clone() };
        let place = core.enqueue_plain("call", site, |ticket| {
            core.note_host_code(HostCode::Function, site, ticket);
            let (weak, id, label) = (Arc::downgrade(core), (core.device.id, core.id), core.label.clone());
            let runtime = core.device.runtime.clone();
            Command::Call(HostFn(Box::new(move || {
                let result = catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
                    let error = panics::error_of(&site.on(&label), ticket, &message_of(panic));
                    runtime.panics.note(id, ticket, error.at(site))
                });
                let mut outcome = slot.lock();
                if !matches!(*outcome, Outcome::Abandoned) {
                    *outcome = Outcome::Known(result);
                    return;
                }
                drop(outcome);
                nobody_looks(result, &weak);
            })))
        });
        core.device.runtime.host_code.added();
        Pending::of_call(core, place, move || looks.look())
    }
}
