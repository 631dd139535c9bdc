//! A place on a stream that somebody waits for.

use crate::driver::Linger;
use crate::error::{Error, Result};
use crate::hope::Hope;
use crate::panics::{Concern, Epoch};
use crate::reentry;
use crate::stream::{Place, StreamCore};
use crate::timeline::Registration;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::task::coop;

/// What is waited for.
pub(super) struct Flight {
    pub(super) core: Arc<StreamCore>,
    pub(super) place: Place,
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

impl Flight {
    /// Done, failed, or `false`.
    #[inline]
    fn look(&self) -> Result<bool> {
        if self.core.timeline.settle(self.place.ticket) {
            return self.is_done();
        }
        if crate::process::is_forked() {
            return Err(crate::process::forked());
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
        let Flight { observes, panics, epoch, .. } = *self;
        Flight { core, place, registration: None, observes, panics, epoch, has_yielded: false }
    }

    /// Whether nothing is ahead of it, so that it runs now or soon.
    #[inline]
    fn is_next(&self) -> bool {
        self.core.timeline.newest() + 1 >= self.place.ticket
    }

    /// Looks again, since the device may have been through before the marker was asked for, and for as long as the driver says that it is
    /// worth: always where the runtime was told so, else for what comes next, as long as that mostly succeeds.
    fn look_a_while(&self) -> Result<bool> {
        let device = &*self.core.device;
        if device.signalled {
            return Ok(match device.driver.lingers() {
                _ if self.look()? => true,
                Linger::Spin(limit) => self.linger(limit, std::hint::spin_loop)?.0,
                Linger::No | Linger::LetRun(_) => false,
            });
        }
        if !self.is_next() {
            return Ok(false);
        }
        match device.driver.lingers() {
            Linger::No => Ok(false),
            Linger::Spin(limit) => self.linger_in(&self.core.spins, limit, std::hint::spin_loop),
            Linger::LetRun(limit) => self.linger_in(&device.lets_run, limit, std::thread::yield_now),
        }
    }

    fn linger_in<const ATTEMPTS: i16, const PAUSE: i16>(
        &self,
        hope: &Hope<ATTEMPTS, PAUSE>,
        limit: Duration,
        pause: fn(),
    ) -> Result<bool> {
        if !hope.tries() {
            return Ok(false);
        }
        self.core.timeline.await_awake(self.place.ticket);
        let (done, took) = self.linger(limit, pause)?;
        hope.learn(match done {
            // Somebody else had the processor.
            _ if took > limit * 4 => -3,
            true => 1,
            false => -1,
        });
        Ok(done)
    }

    /// Pauses until it is done or `limit` is over; how long that took.
    fn linger(&self, limit: Duration, pause: fn()) -> Result<(bool, Duration)> {
        let since = Instant::now();
        loop {
            pause();
            let took = since.elapsed();
            let done = self.look()?;
            if done || took >= limit {
                return Ok((done, took));
            }
        }
    }

    /// Has its end made known, unless it is over or never comes, and on a device that does not tell of it by itself has it looked
    /// after, for who will poll later: what the stream waits for may die, and its end may have to be asked for.
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
        if self.look_a_while()? {
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

impl Drop for Flight {
    #[inline]
    fn drop(&mut self) {
        if self.registration.is_some() {
            self.core.timeline.deregister(&mut self.registration);
        }
        if self.place.holds {
            self.core.let_go(self.place.ticket);
        }
    }
}
