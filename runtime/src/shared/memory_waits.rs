//! Waiting for device memory that unfinished work still uses.
//!
//! The rules are in the queue's file (`memory/queue.rs`). A waiter holds no lock of the runtime.
//! Waiting observes nothing, and runs turns of devices that run in turns.
// Decision: docs/decisions/0065-memory-waits.md

use super::stream::{StreamCore, watching};
use crate::background::{self, Duty};
use crate::block_on::block_on;
use crate::memory::{Grant, MemoryCall, SharedOrder};
use crate::order::{StreamId, Use};
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::{Registration, Ticket, Timeline};
use warpline_driver::{Error, ErrorKind, MemoryShortage, Result, process, reentry};

/// A request for memory that was refused for want of memory.
pub(crate) struct Short {
    pub(crate) call: MemoryCall,
    pub(crate) order: SharedOrder,
    pub(crate) refusal: Error,
}

/// A request's place in the queue, until it is dropped.
struct Queued<'a> {
    core: &'a Arc<StreamCore>,
    number: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.core.device.memory.leave(self.number);
        }
    }
}

/// Waits on the calling thread until there is memory, if there will be.
///
/// # Errors
/// The refusal, if there will be none or this thread must not wait; `Reentrant` in a task with
/// [`SyncMode::Error`](crate::SyncMode::Error); the error of the device.
#[cold]
pub(crate) fn wait_for_memory(core: &Arc<StreamCore>, short: Short) -> Result<Grant> {
    if !is_worth_waiting(&short.refusal) {
        return Err(short.refusal);
    }
    if !may_wait() {
        let text = format!("{}; this thread must not wait for memory", short.refusal);
        return Err(Error::new(ErrorKind::OutOfMemory, text).caused_like(&short.refusal));
    }
    let site = short.call.site;
    let queued = join(core, short)?;
    core.device.runtime.sync.may_block(site, "await alloc_async(len) instead")?;
    block_on(granted(queued))
}

/// Waits like [`wait_for_memory`], without a thread.
pub(crate) async fn await_memory(core: &Arc<StreamCore>, short: Short) -> Result<Grant> {
    if !is_worth_waiting(&short.refusal) || reentry::holds_a_device() {
        return Err(short.refusal);
    }
    granted(join(core, short)?).await
}

/// Returns true if the memory that unfinished work uses may help.
fn is_worth_waiting(refusal: &Error) -> bool {
    let is_final = |shortage| {
        use MemoryShortage::{Budget, Planned, Unaddressable};
        matches!(shortage, Planned | Unaddressable | Budget { .. })
    };
    refusal.out_of_memory().is_some_and(|details| !is_final(details.shortage))
}

/// Returns true if this thread may wait for other work: it is a thread of the program, outside a
/// waker, and the process continues.
pub(super) fn may_wait() -> bool {
    reentry::may_block() && background::duty() == Duty::None && !process::is_ending() && !process::is_forked()
}

fn join<'a>(core: &'a Arc<StreamCore>, short: Short) -> Result<Queued<'a>> {
    let Short { call, order, refusal } = short;
    let number = core.device.memory.join(call, order, refusal)?;
    Ok(Queued { core, number })
}

/// Waits until a request that has joined the queue has an outcome.
async fn granted(queued: Queued<'_>) -> Result<Grant> {
    let Queued { core, number } = &queued;
    let (core, memory) = (*core, &core.device.memory);
    loop {
        // Registered before the queue is looked at, so that no change is missed.
        let mut changed = pin!(memory.changed());
        let mut added = pin!(core.device.runtime.host_code.next_added());
        changed.as_mut().enable();
        added.as_mut().enable();
        let may_serve = !background::duty().is_barred();
        if !may_serve {
            // This thread must not call the driver, and an executor polls the task here. If it did
            // not wait for the queue to be served, a use that has ended would wake it again and
            // again until then.
            let served = background::run({
                let core = core.clone();
                move || core.device.memory.serve()
            });
            watching(core, pin!(served)).await?; // weaken: serve-then-look
        }
        let seen = memory.look(*number, may_serve); // weaken: changed-then-look
        let awaited = match seen {
            Ok(outcome) => return outcome,
            Err(awaited) => awaited,
        };
        let mut ended = pin!(ended(core, awaited));
        let next = poll_fn(|cx| {
            let is_ready = changed.as_mut().poll(cx).is_ready()
                || added.as_mut().poll(cx).is_ready()
                || ended.as_mut().poll(cx).is_ready();
            if is_ready { Poll::Ready(()) } else { Poll::Pending }
        });
        watching(core, pin!(next)).await?;
    }
}

/// A waker's place in the waiting list of a stream that memory is waited for on.
struct Listed {
    timeline: Arc<Timeline>,
    registration: Option<Registration>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.timeline.deregister(&mut self.registration);
    }
}

/// Waits until a use has ended, or until its stream fails. Never ends without a use.
async fn ended(core: &Arc<StreamCore>, used: Option<Use>) {
    let Some(Use { stream, ticket }) = used else { return pending().await };
    let runtime = &core.device.runtime;
    let Some(timeline) = runtime.timeline(stream) else { return };
    want_marker(core, stream, ticket);
    let mut listed = Listed { timeline, registration: None };
    poll_fn(|cx| {
        let Listed { timeline, registration } = &mut listed;
        // Registered first. A failure wakes the list, and the queue is then looked at again.
        let reached = timeline.register(ticket, cx.waker(), registration).is_ready();
        let has_failed = || runtime.stream(stream).is_none_or(|other| other.fault().is_some());
        if reached || timeline.is_abandoned() || has_failed() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn want_marker(core: &StreamCore, stream: StreamId, ticket: Ticket) {
    if let Some(other) = core.device.runtime.stream(stream) {
        other.want_marker(ticket);
    }
}
