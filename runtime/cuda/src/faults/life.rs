//! The life and death of a context: the checks, the verdict, and the failure of the runtimes and
//! streams that use it.
//!
//! # Rules
//! 1. A fault ends the context for the process: each runtime's [`Health`] is notified, and all
//!    waiters are woken. A call that touches two devices answers with the error of either, and many
//!    codes are ambiguous ([`diagnosis`](super::faults::diagnosis)). In these cases the context is
//!    queried on a stream of its own before it is declared dead.
//! 2. Everything that a dead device may still be using is kept for good: nothing reports when a
//!    copy that had begun has ended.

use super::dependents::Dependent;
use super::diagnosis::{ASKED_EVERY, Doubt, LONGEST_DOUBT, Meaning};
use super::fault;
use crate::api::{Answer, Api, CUevent, CUstream, Failed, opened};
use crate::completion::events::DISABLE_TIMING;
use crate::completion::reactor;
use crate::completion::track::Track;
use crate::context::{Context, NON_BLOCKING};
use parking_lot::Mutex;
use std::fmt::Display;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use warpline_driver::timeline::{Keep, Ticket};
use warpline_driver::{Error, Health, Site};

/// The verdict on a context after a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Alive,
    Unclear,
    Dead,
}

/// An op that a caller waits for, recorded until this is dropped.
struct WaitedFor<'a> {
    context: &'a Context,
    op: (Arc<str>, Ticket, Site),
}

impl Drop for WaitedFor<'_> {
    fn drop(&mut self) {
        self.context.faults.life.waited_for.lock().retain(|op| *op != self.op);
    }
}

/// The record of a context's life and death.
#[derive(Debug)]
pub(crate) struct Life {
    /// A stream that never captures and never gets work, queried to learn whether the context
    /// lives.
    pub(crate) stream: CUstream,
    /// The event that checks record on that stream.
    event: CUevent,
    doubt: Mutex<Doubt>,
    dead: OnceLock<Failed>,
    dying: Mutex<()>,
    /// The error that reports the death, set after `dead`.
    fault: OnceLock<Error>,
    /// Set once the waiters on the context have been woken.
    has_woken: OnceLock<()>,
    healths: Mutex<Vec<Weak<Health>>>,
    /// The values that were in use when the context died.
    never_freed: Mutex<Vec<Keep>>,
    /// Streams of other devices that wait for work of this one.
    dependents: Mutex<Vec<Dependent>>,
    /// Its own streams that stand at a wait for a device that failed, with the tickets of those
    /// waits.
    standing: Mutex<Vec<(Arc<Track>, Ticket)>>,
    /// The ops that callers wait for at this moment, where every op is waited for.
    waited_for: Mutex<Vec<(Arc<str>, Ticket, Site)>>,
}

impl Life {
    /// Creates the stream and the event that checks use. The context is current.
    pub(crate) fn begin() -> Answer<Life> {
        let api = opened();
        let mut stream = std::ptr::null_mut();
        // SAFETY: cuStreamCreateWithPriority writes a stream.
        unsafe { api.cuStreamCreateWithPriority(&raw mut stream, NON_BLOCKING, 0) }?;
        let mut event = std::ptr::null_mut();
        // SAFETY: cuEventCreate writes an event.
        unsafe { api.cuEventCreate(&raw mut event, DISABLE_TIMING) }?;
        Ok(Life {
            stream,
            event,
            doubt: Mutex::default(),
            dead: OnceLock::new(),
            dying: Mutex::new(()),
            fault: OnceLock::new(),
            has_woken: OnceLock::new(),
            healths: Mutex::default(),
            never_freed: Mutex::default(),
            dependents: Mutex::default(),
            standing: Mutex::default(),
            waited_for: Mutex::default(),
        })
    }
}

impl Context {
    /// Registers a runtime's health, which is notified when the context dies, or immediately if it
    /// has died.
    pub(crate) fn watch(&self, health: &Arc<Health>) {
        let mut healths = self.faults.life.healths.lock();
        healths.retain(|health| health.strong_count() > 0);
        healths.push(Arc::downgrade(health));
        drop(healths);
        if let Some(fault) = self.faults.life.fault.get() {
            health.note(fault.clone());
        }
    }

    /// Returns the error that killed the context, if it is dead.
    pub(crate) fn death(&self) -> Option<Failed> {
        self.faults.life.dead.get().copied()
    }

    /// Like [`death`](Self::death), but returns the error that reports the fault.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.faults.life.fault.get()
    }

    /// Asks whether the context lives, and notes the error if it does not.
    pub(crate) fn look_after(&'static self) -> Answer {
        self.ask().inspect_err(|failed| {
            self.believe(*failed, None);
        })
    }

    /// Asks CUDA whether the context lives, on a stream that never gets work. An error that
    /// says nothing about the device is no answer, and so is not returned.
    ///
    /// Does not touch a stream that might be capturing, and does not wait for a stream. But calls
    /// of a context may wait for each other, and this call for a launch that waits for room.
    pub(crate) fn ask(&'static self) -> Answer {
        self.ask_by(|api| {
            // SAFETY: cuStreamQuery takes a live stream: this one is never destroyed.
            unsafe { api.cuStreamQuery(self.faults.life.stream) }?;
            // Nothing guarantees that a query of an empty stream looks for faults; work that is
            // enqueued there does. The event is not recorded again while its last record is
            // pending: the stream may share a hardware queue with a stream that is held. This entry
            // point lets code that counts or traces calls distinguish a check from the program's
            // events.
            // SAFETY: cuEventRecordWithFlags takes a live event and a live stream of one context:
            // neither is ever destroyed.
            unsafe { api.cuEventRecordWithFlags(self.faults.life.event, self.faults.life.stream, 0) }
        })
    }

    /// Asks only the cheap half of [`ask`](Self::ask), for a caller whose own work has completed.
    pub(crate) fn query(&self) -> Answer {
        // SAFETY: cuStreamQuery takes a live stream: this one is never destroyed.
        self.ask_by(|api| unsafe { api.cuStreamQuery(self.faults.life.stream) })
    }

    fn ask_by(&self, question: impl FnOnce(&Api) -> Answer) -> Answer {
        if let Some(failed) = self.death() {
            return Err(failed);
        }
        match self.enter_relaxed().and_then(|_entered| question(opened())) {
            Err(failed) if failed.meaning() != Meaning::Innocent => Err(failed),
            answer => {
                if answer.is_ok() {
                    self.faults.life.doubt.lock().ends();
                }
                Ok(())
            }
        }
    }

    /// Notes a failed call, and asks the context if the failure leaves it in doubt. Returns true if
    /// the context is known to be dead. Does not wait for a doubt to end.
    #[cold]
    pub(crate) fn note_failure(&'static self, failed: Failed) -> bool {
        self.judge(failed, None) == Verdict::Dead
    }

    /// Like [`note_failure`](Self::note_failure), but waits for a doubt to end, a quarter of a
    /// second at most. `culprit` is the op that failed, if it is known.
    #[cold]
    pub(crate) fn is_killed_by(&'static self, failed: Failed, culprit: Option<&dyn Display>) -> bool {
        let since = Instant::now();
        loop {
            match self.judge(failed, culprit) {
                Verdict::Dead => return true,
                // This is the pause between two questions to a device that may be dead. A call to a
                // healthy device never gets here.
                Verdict::Unclear if since.elapsed() < LONGEST_DOUBT => std::thread::sleep(ASKED_EVERY),
                _ => return false,
            }
        }
    }

    fn judge(&'static self, failed: Failed, culprit: Option<&dyn Display>) -> Verdict {
        if self.is_dead() {
            return Verdict::Dead;
        }
        match failed.meaning() {
            Meaning::Innocent => Verdict::Alive,
            Meaning::Fault if !failed.may_be_anothers() => self.believe(failed, culprit),
            _ => self.ask().map_or_else(|answer| self.believe(answer, culprit), |()| Verdict::Alive),
        }
    }

    /// Notes an error that can only be this context's own.
    fn believe(&'static self, failed: Failed, culprit: Option<&dyn Display>) -> Verdict {
        if self.is_dead() {
            return Verdict::Dead;
        }
        let is_dead = match failed.meaning() {
            Meaning::Innocent => return Verdict::Alive,
            Meaning::Fault => true,
            Meaning::Unclear => {
                self.faults.life.doubt.lock().deepens(Instant::now(), self.completion.completed())
            }
        };
        if !is_dead {
            return Verdict::Unclear;
        }
        self.note_death(failed, culprit);
        Verdict::Dead
    }

    /// Returns true if the context is known to be dead, once every runtime has been notified.
    fn is_dead(&self) -> bool {
        self.death().is_some() && {
            drop(self.faults.life.dying.lock());
            true
        }
    }

    /// Notes that the context is dead and notifies every runtime's health. Wakes no waiter, since
    /// the caller may hold a lock; the reactor wakes them.
    #[cold]
    fn note_death(&'static self, failed: Failed, culprit: Option<&dyn Display>) {
        let _dying = self.faults.life.dying.lock();
        if self.faults.life.dead.set(failed).is_err() {
            return;
        }
        let waited_for = self.only_waited_for();
        let culprit = culprit.or(waited_for.as_ref().map(|op| op as &dyn Display));
        let fault = fault::error(self.ordinal, failed, culprit, &self.completion.live_tracks());
        let fault = self.faults.life.fault.get_or_init(|| fault);
        // This comes first: a thread that learns of the error may free memory.
        self.note_waiting_as_standing();
        for health in self.faults.life.healths.lock().iter().filter_map(Weak::upgrade) {
            health.note(fault.clone());
        }
        reactor::bury(self);
    }

    /// Records that the caller waits for this op, until the returned value is dropped. Called where
    /// every op is waited for.
    #[cold]
    pub(crate) fn wait_for(&self, label: &str, ticket: Ticket, site: Site) -> impl Drop {
        let op = (Arc::from(label), ticket, site);
        self.faults.life.waited_for.lock().push(Clone::clone(&op));
        WaitedFor { context: self, op }
    }

    /// Returns the op that a caller waits for, where every op is waited for. `None` if there are
    /// several.
    fn only_waited_for(&self) -> Option<String> {
        match &self.faults.life.waited_for.lock()[..] {
            [(label, ticket, site)] => Some(fault::named(*site, label, *ticket)),
            _ => None,
        }
    }

    /// Abandons the context's streams and wakes its waiters. Called by the reactor after
    /// [`note_death`](Self::note_death): nothing of the context starts any more.
    pub(crate) fn fail_and_wake(&self) {
        for track in self.completion.live_tracks() {
            let kept = track.abandon();
            self.faults.life.never_freed.lock().extend(kept);
        }
        let healths: Vec<_> = self.faults.life.healths.lock().iter().filter_map(Weak::upgrade).collect();
        for health in healths {
            health.wake_everybody();
        }
        let _ = self.faults.life.has_woken.set(());
        // The device's thread queries the streams that wait for this context, which the reactor
        // does not.
        self.faults.checks.lives(None);
    }

    /// Handles the streams that wait for this dead device. Called repeatedly while something waits
    /// for them. Calls CUDA.
    pub(crate) fn settle_dependents(&self) {
        let (Some(fault), Some(())) = (self.faults.life.fault.get(), self.faults.life.has_woken.get()) else {
            return;
        };
        let mut dependents = std::mem::take(&mut *self.faults.life.dependents.lock());
        dependents.retain_mut(|dependent| !dependent.settle(fault));
        if !dependents.is_empty() {
            self.faults.life.dependents.lock().append(&mut dependents);
        }
    }

    /// Fails the streams that wait for this device, which has failed in the runtime of `health`.
    pub(crate) fn fail_dependents(&self, health: &Arc<Health>, why: &Error) {
        let theirs = |dependent: &mut Dependent| Arc::ptr_eq(&dependent.health, health);
        let dependents: Vec<_> = self.faults.life.dependents.lock().extract_if(.., theirs).collect();
        dependents.iter().for_each(|dependent| dependent.fail_if_it_waits(why));
    }

    /// Records that `dependent` waits for work of this device.
    pub(crate) fn add_dependent(&self, dependent: Dependent) {
        let mut dependents = self.faults.life.dependents.lock();
        if dependents.len() == dependents.capacity() {
            dependents.retain(Dependent::still_waits);
        }
        dependents.push(dependent);
        drop(dependents);
        if self.death().is_some() {
            self.note_waiting_as_standing();
        }
    }

    /// Notes that the streams that wait for this dead device may stand for ever. This holds even
    /// before it is settled what becomes of them.
    fn note_waiting_as_standing(&self) {
        let waiting = |dependent: &Dependent| Some((dependent.waiting.upgrade()?, dependent.ticket));
        let waiting: Vec<_> = self.faults.life.dependents.lock().iter().filter_map(waiting).collect();
        for (track, ticket) in waiting {
            track.context.note_standing(track.clone(), ticket);
        }
    }

    /// Notes that `track`, of this device, stands at the wait with that ticket, perhaps for ever.
    pub(crate) fn note_standing(&self, track: Arc<Track>, ticket: Ticket) {
        self.faults.life.standing.lock().push((track, ticket));
    }

    /// Returns true if a stream of this device stands at a wait for a device that failed. Then a
    /// call that waits for everything on the device would not return, whichever runtime makes it.
    pub(crate) fn has_standing_stream(&self) -> bool {
        let mut standing = self.faults.life.standing.lock();
        let over: Vec<_> = standing.extract_if(.., |(track, ticket)| track.passed() >= *ticket).collect();
        let some = !standing.is_empty();
        drop(standing);
        drop(over);
        some
    }
}
