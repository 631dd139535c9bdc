//! Waiting for something that is not a ticket: a place in a pool, room on a stream, the hand-over
//! of held-back work.
//!
//! It becomes available when other work finishes, so two things have to be watched meanwhile. The
//! device may fail, and a schedule without threads makes progress only at polls. For both, the
//! waiter sleeps in a stream's waiting list, for a ticket that is never reached. A failure wakes
//! all waiters there, and so does such a schedule when something can run again. Nothing is observed
//! by this wait.

use super::core::StreamCore;
use super::place::Snapshot;
use crate::block_on::block_on;
use crate::order::{MAX_TICKET, Site};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use warpline_driver::timeline::{Registration, Ticket, Timeline};
use warpline_driver::{Error, ErrorKind, Result, reentry};

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

/// Blocks this thread until `is_over` returns true. It is called again when `ticket` of `timeline`
/// is reached, and when the waiters there are woken. If the ticket is reached before the call,
/// `is_over` has to return true then. `core` is a stream of the same runtime. Observes nothing.
pub(super) fn block_until(
    core: &StreamCore,
    timeline: &Timeline,
    ticket: Ticket,
    is_over: impl Fn() -> bool,
) {
    let mut sleeper = Sleeper { timeline, registration: None };
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

/// Waits until nothing is held back on this stream, for a call that enqueues on the driver's
/// stream directly. Called while no stream's lock is held.
///
/// # Errors
/// `Reentrant` if this thread must not wait.
pub(crate) fn wait_until_handed_over(core: &StreamCore, site: Site) -> Result<()> {
    if !core.state.lock().has_backlog() {
        return Ok(());
    }
    may_block(core, site)?;
    block_until(core, &core.progress.timeline, MAX_TICKET, || {
        !core.state.lock().has_backlog() || core.device.health.fault().is_some()
    });
    Ok(())
}

/// Waits on the host until the driver can wait for `from` itself, if this stream is borrowed
/// and so cannot hold the wait back. Called while no stream's lock is held.
///
/// # Errors
/// `Reentrant` if this thread must not wait.
#[inline]
pub(super) fn wait_if_borrowed(core: &StreamCore, site: Site, from: &Snapshot) -> Result<()> {
    if core.admission.is_borrowed() && (from.coming.is_some() || core.is_elsewhere(from)) {
        wait_on_the_host(core, site, from)?;
    }
    Ok(())
}

/// Waits until the driver can wait for `from` itself: until its event was recorded or, on
/// another backend, until it is reached. Also returns if that will never happen. Called while
/// no stream's lock is held.
///
/// # Errors
/// `Reentrant` if this thread must not wait.
#[cold]
pub(super) fn wait_on_the_host(core: &StreamCore, site: Site, from: &Snapshot) -> Result<()> {
    let Some(stream) = core.watched(from) else { return Ok(()) };
    let (timeline, ticket) = (&from.timeline, from.used.ticket);
    let is_told = || from.is_told() || stream.fault().is_some();
    let is_over = || !core.is_elsewhere(from) || timeline.reached(ticket) || stream.fault().is_some();
    if is_told() && is_over() {
        return Ok(());
    }
    may_block(core, site)?;
    core.want_marker_at(from);
    // All waiters of a stream are woken after an event was recorded there. A waiter at `ticket`
    // would not be registered if that is reached already, and so never woken.
    block_until(core, timeline, MAX_TICKET, is_told);
    block_until(core, timeline, ticket, is_over);
    Ok(())
}

#[cold]
fn may_block(core: &StreamCore, site: Site) -> Result<()> {
    if reentry::may_block() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Reentrant,
        format!(
            "{}: earlier work on the stream waits on the host, for page-locked memory or for \
             another device, and a waker must not wait for that; enqueue in a task",
            site.on(&core.label)
        ),
    ))
}
