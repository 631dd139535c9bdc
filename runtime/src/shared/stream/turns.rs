//! Waiting for something that is not a ticket: a place in a pool, room on a stream, the hand-over
//! of held-back work.
//!
//! It becomes available when other work finishes, so two things have to be watched meanwhile. The
//! device may fail, and a schedule without threads makes progress only at polls. For both, the
//! waiter sleeps in a stream's waiting list, for a ticket that is never reached. A failure wakes
//! all waiters there, and so does such a schedule when something can run again. Nothing is observed
//! by this wait.

use super::core::StreamCore;
use crate::block_on::block_on;
use crate::order::MAX_TICKET;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use warpline_driver::timeline::{Registration, Ticket, Timeline};
use warpline_driver::{Result, reentry};

struct Sleeper<'a> {
    timeline: &'a Timeline,
    registration: Option<Registration>,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.timeline.deregister(&mut self.registration);
    }
}

/// Awaits `future`, or the failure of `core`'s device. Meanwhile it runs turns of a device that
/// runs in turns.
pub(crate) async fn watching<F: Future>(
    core: &Arc<StreamCore>,
    mut future: Pin<&mut F>,
) -> Result<F::Output> {
    let mut sleeper = Sleeper { timeline: &core.progress.timeline, registration: None };
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        let Sleeper { timeline, registration } = &mut sleeper;
        // Register first, then check the device's health and run what can run.
        let _ = timeline.register(MAX_TICKET, cx.waker(), registration);
        core.device.ensure_open()?;
        if core.device.runtime.turn() {
            reentry::wake(cx.waker());
        }
        Poll::Pending
    })
    .await
}

/// Blocks this thread until `is_over` returns true. It is called again when `ticket` of `core` is
/// reached, and when the waiters of `core` are woken. If the ticket is reached before the call,
/// `is_over` has to return true then. Observes nothing.
pub(super) fn block_until(core: &StreamCore, ticket: Ticket, is_over: impl Fn() -> bool) {
    let mut sleeper = Sleeper { timeline: &core.progress.timeline, registration: None };
    block_on(poll_fn(|cx| {
        let Sleeper { timeline, registration } = &mut sleeper;
        // Register first, then look, as in `watching`.
        let _ = timeline.register(ticket, cx.waker(), registration);
        if is_over() {
            return Poll::Ready(());
        }
        if core.device.runtime.turn() {
            reentry::wake(cx.waker());
        }
        Poll::Pending
    }));
}
