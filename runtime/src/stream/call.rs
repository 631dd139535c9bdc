//! Host functions in stream order, and what becomes of their results and panics.
//!
//! The result goes through a slot that the function and the `Pending` share. Whoever comes second
//! finds what the first left: a `Pending` that is dropped leaves word that nobody will look, so
//! that a panic is told in another way.

use crate::order::Site;
use crate::pending::Pending;
use crate::shared::{Stream, StreamCore, panics};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use warpline_driver::internal::ErrorParts;
use warpline_driver::{Command, HostFn, Result, message_of};

/// The outcome of a host function.
enum Outcome<R> {
    Unknown,
    Known(Result<R>),
    /// Not known yet, and nobody will look.
    Abandoned,
}

type Slot<R> = Arc<Mutex<Outcome<R>>>;

/// The half of the slot that the `Pending` has.
struct Looks<R> {
    slot: Slot<R>,
    core: Arc<StreamCore>,
}

impl<R> Looks<R> {
    fn look(self) -> Result<R> {
        match std::mem::replace(&mut *self.slot.lock(), Outcome::Abandoned) {
            Outcome::Known(result) => result,
            Outcome::Unknown | Outcome::Abandoned => {
                unreachable!(
                    "a host function whose ticket is reached has come to an end, and is looked at once"
                )
            }
        }
    }
}

impl<R> Drop for Looks<R> {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut *self.slot.lock(), Outcome::Abandoned);
        if let Outcome::Known(Err(error)) = outcome {
            self.core.note_unseen(&error);
        }
    }
}

/// The `Pending` was dropped before the function came to an end.
fn nobody_looks<R>(result: Result<R>, core: &Weak<StreamCore>) {
    match result {
        // The value is its user's, and so is a panic of its drop.
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
    /// after.
    ///
    /// It runs on a thread of the driver and holds up what is behind it on this stream, and may
    /// hold up host functions of other streams.
    ///
    /// Inside, whatever may need the device is refused as `Reentrant`: enqueuing, allocating,
    /// page-locking, making streams, asking a stream where it stands, and blocking on a `Pending`,
    /// of any device. The CUDA driver takes no calls from there, and the other devices go by the
    /// same rule. Send what follows to a task, or await this and enqueue it then. It may drop
    /// streams, buffers, `Pending`s and the rest, poll, and look at what asks nobody. Another
    /// executor's `block_on` is a poll to this library: it is not noticed there, and may wait for
    /// ever.
    ///
    /// # Cancel safety
    /// Dropping the `Pending` drops the result; `f` is called all the same.
    ///
    /// # Errors
    /// `Panicked` if `f` panics. The device is still usable, and what is behind `f` on the stream
    /// runs. Awaiting that fails as well, with an inherited error, and so does awaiting work of
    /// streams that waited for it, as far as it was enqueued before this `Pending` was awaited or a
    /// `synchronize` of this stream returned the panic. So a function that may panic is better off
    /// on a lease than on a stream that clients share.
    #[track_caller]
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> Pending<R> {
        let (site, core) = (Site::here(&"call"), self.core());
        let slot: Slot<R> = Arc::new(Mutex::new(Outcome::Unknown));
        let looks = Looks { slot: slot.clone(), core: core.clone() };
        let place = core.enqueue_plain("call", site, |ticket| {
            let (weak, id, label, runtime) =
                (Arc::downgrade(core), core.id, core.label.clone(), core.device.runtime.clone());
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
        Pending::of_call(core, place, move || looks.look())
    }
}
