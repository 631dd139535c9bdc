//! A place on a stream that a `Pending` waits for.
// Decision: docs/decisions/0019-ready-awaits-consume-tokio-budget.md

use crate::shared::panics::{Concern, Epoch};
use crate::shared::{Place, StreamCore};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::task::coop;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Registration;
use warpline_driver::{Error, Result, reentry};

/// A place that a `Pending` waits for, with how its outcome is judged.
pub(super) struct Awaited {
    pub(super) core: Arc<StreamCore>,
    pub(super) place: Place,
    /// True for the place of a call, false for a view of one. A late refusal concerns only the
    /// call.
    pub(super) is_of_call: bool,
    pub(super) registration: Option<Registration>,
    /// True if seeing it done counts as observing.
    pub(super) observes: bool,
    /// The panics of host functions that fail this place.
    pub(super) panics: Concern,
    /// The epoch at the time of the call.
    pub(super) epoch: Epoch,
    /// True if it was done and has yielded to other tasks once.
    pub(super) has_yielded: bool,
}

impl Awaited {
    /// Returns `true` if done and `false` if not, or the error it failed with.
    #[inline]
    fn look(&self) -> Result<bool> {
        if self.core.progress.timeline.settle(self.place.ticket) {
            return self.is_done();
        }
        if warpline_driver::process::is_forked() {
            return Err(warpline_driver::process::forked());
        }
        match self.core.device.health.fault().or_else(|| self.core.progress.timeline.fault()) {
            Some(fault) => self.look_at_fault(fault),
            None => Ok(false),
        }
    }

    #[cold]
    fn look_at_fault(&self, fault: &Error) -> Result<bool> {
        // The place may have been reached just before the device failed.
        if self.core.progress.timeline.settle(self.place.ticket) {
            return self.is_done();
        }
        if self.core.progress.timeline.reached(self.place.ticket) {
            // Another thread is completing it. The failure concerns only later work.
            return Ok(false);
        }
        Err(fault.clone())
    }

    /// Observes the place, unless it comes after a panic. A `synchronize` reports that panic
    /// itself, after the errors of its own stream.
    #[inline]
    fn is_done(&self) -> Result<bool> {
        if self.is_of_call
            && let Some(error) = self.core.refusals.late.refusal(self.place.ticket)
        {
            return Err(error);
        }
        match self.place.panic_before(&self.core, self.epoch, self.panics) {
            Some(error) if self.panics != Concern::OfOthers => return Err(error),
            Some(_) => {}
            None if self.observes => self.place.observe(&self.core),
            None => {}
        }
        Ok(true)
    }

    /// Returns the same place for a view. The `Pending` that is viewed still holds it: dropping the
    /// view must not release its marker or a newer one.
    pub(super) fn looked_at(&self) -> Self {
        let place = Place { keeps_marker_due: false, ..self.place.clone() };
        let core = self.core.clone();
        let Awaited { is_of_call, observes, panics, epoch, .. } = *self;
        Awaited { core, place, is_of_call, registration: None, observes, panics, epoch, has_yielded: false }
    }

    /// Arranges for completion to be reported, unless the op has finished or failed. On a device
    /// that does not report by itself, the reactor watches the stream for a later poll: the work
    /// that the stream waits for may fail, and its completion may have to be queried.
    pub(super) fn ask(&mut self) {
        if !matches!(self.look(), Ok(false)) {
            return;
        }
        self.core.want_marker(self.place.ticket);
        if self.core.device.signalled {
            let nobody = Waker::noop();
            let _ = self.core.progress.timeline.register(self.place.ticket, nobody, &mut self.registration);
        }
    }

    pub(super) fn query(&mut self) -> Result<bool> {
        if self.look()? {
            return Ok(true);
        }
        self.core.want_marker(self.place.ticket);
        if self.core.device.signalled {
            // If there is no waiter, the reactor does not look either.
            self.core.progress.timeline.ask();
        }
        // The work may wait for a device of another backend, which runs in turns.
        self.core.device.runtime.turn();
        self.look()
    }

    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.look()? {
            return self.done(cx);
        }
        self.core.want_marker(self.place.ticket);
        if self.core.progress.wait_briefly(self.place.ticket) && self.look()? {
            return self.done(cx);
        }
        let registered =
            self.core.progress.timeline.register(self.place.ticket, cx.waker(), &mut self.registration);
        // Run after registering: if there is nothing to run now, the waker is called once there is.
        let ran = registered.is_pending() && self.core.device.runtime.turn();
        // The op may have finished, or the device failed, during registration: look again.
        if self.look()? {
            return self.done(cx);
        }
        if ran {
            reentry::wake(cx.waker());
        }
        Poll::Pending
    }

    /// Returns `Ready`, unless tokio's budget says that other tasks run first. Consuming budget
    /// costs as much as the rest of a poll, so only one poll in `FEW` does it.
    #[inline]
    fn done(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        const FEW: u8 = 8;
        thread_local!(static DONE: Cell<u8> = const { Cell::new(0) });
        let done = DONE.replace(DONE.get().wrapping_add(1));
        if done.is_multiple_of(FEW) && self.yields(cx) {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Returns true if other tasks run first. Yields once only, and wakes the task immediately: a
    /// caller that blocks inside a task polls again without a new budget.
    #[cold]
    fn yields(&mut self, cx: &mut Context<'_>) -> bool {
        if coop::has_budget_remaining() {
            let _ = pin!(coop::consume_budget()).poll(cx);
            return false;
        }
        if !self.has_yielded {
            reentry::wake(cx.waker());
        }
        !std::mem::replace(&mut self.has_yielded, true)
    }
}

impl Drop for Awaited {
    #[inline]
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        if self.registration.is_some() {
            self.core.progress.timeline.deregister(&mut self.registration);
        }
        if self.place.keeps_marker_due {
            self.core.progress.note_passed_on(self.place.ticket);
            let is_reached = || self.core.progress.timeline.reached(self.place.ticket);
            if let Some(error) = self.core.refusals.late.drop_pending(self.place.ticket, is_reached) {
                report_unless_seen(&self.core, &error);
            }
        }
    }
}

#[cold]
fn report_unless_seen(core: &StreamCore, error: &Error) {
    if !error.is_seen() {
        core.note_unseen(error);
    }
}
