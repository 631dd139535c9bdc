//! A place on a stream that somebody waits for.

use crate::shared::panics::{Concern, Epoch};
use crate::shared::{Place, StreamCore};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::task::coop;
use warpline_driver::timeline::Registration;
use warpline_driver::{Error, Result, reentry};

/// What is waited for.
pub(super) struct Awaited {
    pub(super) core: Arc<StreamCore>,
    pub(super) place: Place,
    /// True if the place is that of the call, false if of what it looks at: a refusal that comes late
    /// concerns it.
    pub(super) is_of_call: bool,
    pub(super) registration: Option<Registration>,
    /// Whether seeing it done counts as observing.
    pub(super) observes: bool,
    /// How panics of host functions concern it.
    pub(super) panics: Concern,
    /// When it was called.
    pub(super) epoch: Epoch,
    /// Whether it was done and let other tasks run first.
    pub(super) has_yielded: bool,
}

impl Awaited {
    /// Done, failed, or `false`.
    #[inline]
    fn look(&self) -> Result<bool> {
        if self.core.timeline.settle(self.place.ticket) {
            return self.is_done();
        }
        if warpline_driver::process::is_forked() {
            return Err(warpline_driver::process::forked());
        }
        match self.core.device.health.fault().or_else(|| self.core.timeline.fault()) {
            Some(fault) => self.look_at_fault(fault),
            None => Ok(false),
        }
    }

    #[cold]
    fn look_at_fault(&self, fault: &Error) -> Result<bool> {
        // It may have been reached just before the device failed.
        if self.core.timeline.settle(self.place.ticket) {
            return self.is_done();
        }
        Err(fault.clone())
    }

    /// Observes it, unless it comes after a panic. A `synchronize` says so itself, after its
    /// stream's own errors.
    #[inline]
    fn is_done(&self) -> Result<bool> {
        if self.is_of_call
            && let Some(error) = self.core.late_refusal(self.place.ticket)
        {
            return Err(error);
        }
        match self.core.panic_before(&self.place, self.epoch, self.panics) {
            Some(error) if self.panics != Concern::OfOthers => return Err(error),
            Some(_) => {}
            None if self.observes => self.core.observe(&self.place),
            None => {}
        }
        Ok(true)
    }

    /// The same place for a view. It is held by the `Pending` that is looked at: what becomes of the view must not take its
    /// marker, or that of a newer one, away.
    pub(super) fn looked_at(&self) -> Self {
        let place = Place { holds: false, ..self.place.clone() };
        let core = self.core.clone();
        let Awaited { is_of_call, observes, panics, epoch, .. } = *self;
        Awaited { core, place, is_of_call, registration: None, observes, panics, epoch, has_yielded: false }
    }

    /// Arranges for completion to be reported, unless the op has finished or failed. On a device that
    /// does not report by itself, the reactor watches the stream for a later poll: the work that the
    /// stream waits for may fail, and its completion may have to be queried.
    pub(super) fn ask(&mut self) {
        if !matches!(self.look(), Ok(false)) {
            return;
        }
        self.core.want_marker(self.place.ticket);
        if self.core.device.signalled {
            let nobody = Waker::noop();
            let _ = self.core.timeline.register(self.place.ticket, nobody, &mut self.registration);
        }
    }

    pub(super) fn query(&mut self) -> Result<bool> {
        if self.look()? {
            return Ok(true);
        }
        self.core.want_marker(self.place.ticket);
        if self.core.device.signalled {
            // Nobody may be waiting, so that nobody else looks.
            self.core.timeline.ask();
            return self.look();
        }
        if self.core.device.runs_in_turns {
            self.core.device.driver.turn();
            return self.look();
        }
        Ok(false)
    }

    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.look()? {
            return self.done(cx);
        }
        self.core.want_marker(self.place.ticket);
        if self.core.driver.wait_briefly(self.place.ticket) && self.look()? {
            return self.done(cx);
        }
        let registered = self.core.timeline.register(self.place.ticket, cx.waker(), &mut self.registration);
        // A turn comes after registering: who finds nothing to run is woken when there is something.
        let ran = self.core.device.runs_in_turns && registered.is_pending() && self.core.device.driver.turn();
        // Done, or the device failed while we registered: either way, look again.
        if self.look()? {
            return self.done(cx);
        }
        if ran {
            reentry::wake(cx.waker());
        }
        Poll::Pending
    }

    /// Ready, but that other tasks run first where tokio's budget says so. Taking of that costs as much as all else of a poll, so it
    /// is done for one in a few.
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

    /// Whether other tasks shall run first. Once only, and by a wake-up that comes at once: who blocks inside a task polls again
    /// without a new budget.
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
        if self.registration.is_some() {
            self.core.timeline.deregister(&mut self.registration);
        }
        if self.place.holds {
            self.core.let_go(self.place.ticket);
            self.core.drop_late(self.place.ticket);
        }
    }
}
