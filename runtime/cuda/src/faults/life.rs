//! The life of a context: who asks whether it lives, what is believed, and what becomes of who used it.
//!
//! # Rules
//! 1. A fault ends the context for the process: each runtime's [`Health`] learns of it, and all
//!    waiters are woken. A call that touches two devices answers with the error of either, and many
//!    codes may mean anything ([`diagnosis`](super::faults::diagnosis)): then the context is asked, on a
//!    stream of its own, before it is given up.
//! 2. What a dead device may still be using is kept for good: nobody says when a copy that had begun has ended.

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

/// The state of a context as far as a failed call tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Alive,
    Unclear,
    Dead,
}

/// An op that is waited for, until this is dropped.
struct WaitedFor<'a> {
    context: &'a Context,
    op: (Arc<str>, Ticket, Site),
}

impl Drop for WaitedFor<'_> {
    fn drop(&mut self) {
        self.context.faults.life.waited_for.lock().retain(|op| *op != self.op);
    }
}

/// What is known of a context's life.
#[derive(Debug)]
pub(crate) struct Life {
    /// A stream that never captures and never gets work: asked whether the context lives.
    pub(crate) stream: CUstream,
    /// The event that is recorded there.
    event: CUevent,
    doubt: Mutex<Doubt>,
    dead: OnceLock<Failed>,
    dying: Mutex<()>,
    /// The error that says so, set after `dead`.
    fault: OnceLock<Error>,
    /// Set when who waits on it was woken.
    has_woken: OnceLock<()>,
    healths: Mutex<Vec<Weak<Health>>>,
    /// What was in use when it died.
    never_freed: Mutex<Vec<Keep>>,
    /// Streams of other devices that wait for work of this one.
    dependents: Mutex<Vec<Dependent>>,
    /// Its own streams that stand at a wait for a device that failed, and the tickets of those waits.
    standing: Mutex<Vec<(Arc<Track>, Ticket)>>,
    /// The ops that are waited for just now, where each is.
    waited_for: Mutex<Vec<(Arc<str>, Ticket, Site)>>,
}

impl Life {
    /// Makes what is asked. The context is current.
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
    /// A runtime wants to know when the context dies, or that it has.
    pub(crate) fn watch(&self, health: &Arc<Health>) {
        let mut healths = self.faults.life.healths.lock();
        healths.retain(|health| health.strong_count() > 0);
        healths.push(Arc::downgrade(health));
        drop(healths);
        if let Some(fault) = self.faults.life.fault.get() {
            health.note(fault.clone());
        }
    }

    /// The error that killed it.
    pub(crate) fn death(&self) -> Option<Failed> {
        self.faults.life.dead.get().copied()
    }

    /// As [`death`](Self::death), in the words of the fault.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.faults.life.fault.get()
    }

    /// Asks whether the context lives, and notes it if it does not.
    pub(crate) fn look_after(&'static self) -> Answer {
        self.ask().inspect_err(|failed| {
            self.believe(*failed, None);
        })
    }

    /// Asks the driver whether the context lives, on a stream that never gets work. An error that
    /// says nothing about the device is no answer, and so no error here.
    ///
    /// Does not touch a stream that might capture, nor wait for one; but calls of a context may
    /// wait for each other, and this one for a launch that waits for room.
    pub(crate) fn ask(&'static self) -> Answer {
        self.ask_by(|api| {
            // SAFETY: cuStreamQuery takes a live stream: this one is never destroyed.
            unsafe { api.cuStreamQuery(self.faults.life.stream) }?;
            // Nothing says that a query of an empty stream looks for faults; work that is put there
            // does. Not again while the last one is on its way: the stream may share a hardware
            // queue with one that is held. SAFETY: cuEventRecordWithFlags takes a live event and a
            // live stream of one context: neither is ever destroyed. By this entry point, so that
            // who counts or traces calls can tell a question from the program's events.
            unsafe { api.cuEventRecordWithFlags(self.faults.life.event, self.faults.life.stream, 0) }
        })
    }

    /// The cheap half of [`ask`](Self::ask), for a caller whose own work has completed.
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

    /// Takes note of a call that failed, and asks the context if that leaves it in doubt. Returns
    /// whether it is known to be dead. Does not wait for a doubt to end.
    #[cold]
    pub(crate) fn note_failure(&'static self, failed: Failed) -> bool {
        self.judge(failed, None) == Verdict::Dead
    }

    /// Like [`note_failure`](Self::note_failure), but waits for a doubt to end, a quarter of a
    /// second at most. `culprit`: the op, if it is known which.
    #[cold]
    pub(crate) fn is_killed_by(&'static self, failed: Failed, culprit: Option<&dyn Display>) -> bool {
        let since = Instant::now();
        loop {
            match self.judge(failed, culprit) {
                Verdict::Dead => return true,
                // Between two questions to a device that may be dead; a call to a healthy one never
                // comes here.
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

    /// Takes note of an error that can only be this context's own.
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

    /// Notes that the context is dead: every runtime's health is told, and nobody is woken yet,
    /// since the caller may hold a lock; the reactor wakes them.
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
        // First: who learns of the error may free memory.
        self.note_waiting_as_standing();
        for health in self.faults.life.healths.lock().iter().filter_map(Weak::upgrade) {
            health.note(fault.clone());
        }
        reactor::bury(self);
    }

    /// Where each op is waited for: this one is, until the returned value is dropped.
    #[cold]
    pub(crate) fn wait_for(&self, label: &str, ticket: Ticket, site: Site) -> impl Drop {
        let op = (Arc::from(label), ticket, site);
        self.faults.life.waited_for.lock().push(Clone::clone(&op));
        WaitedFor { context: self, op }
    }

    /// Where each op is waited for, the one that is, unless there are several.
    fn only_waited_for(&self) -> Option<String> {
        match &self.faults.life.waited_for.lock()[..] {
            [(label, ticket, site)] => Some(fault::named(*site, label, *ticket)),
            _ => None,
        }
    }

    /// By the reactor, after [`note_death`](Self::note_death): nothing of the context starts any more.
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
        // Asks the streams that wait for it, which the reactor does not.
        self.faults.checks.lives(None);
    }

    /// Sees to the streams that wait for this dead device. Again and again, while somebody waits for them. Calls the driver.
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

    /// This device has failed in the runtime whose health that is.
    pub(crate) fn fail_dependents(&self, health: &Arc<Health>, why: &Error) {
        let theirs = |dependent: &mut Dependent| Arc::ptr_eq(&dependent.health, health);
        let dependents: Vec<_> = self.faults.life.dependents.lock().extract_if(.., theirs).collect();
        dependents.iter().for_each(|dependent| dependent.fail_if_it_waits(why));
    }

    /// `dependent` waits for work of this device.
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

    /// This device has died: what waits for it may stand for ever, also before anybody has settled
    /// what becomes of it.
    fn note_waiting_as_standing(&self) {
        let waiting = |dependent: &Dependent| Some((dependent.waiting.upgrade()?, dependent.ticket));
        let waiting: Vec<_> = self.faults.life.dependents.lock().iter().filter_map(waiting).collect();
        for (track, ticket) in waiting {
            track.context.note_standing(track.clone(), ticket);
        }
    }

    /// `track`, of this device, stands at the wait with that ticket, perhaps for ever.
    pub(crate) fn note_standing(&self, track: Arc<Track>, ticket: Ticket) {
        self.faults.life.standing.lock().push((track, ticket));
    }

    /// Returns true if a stream of it stands at a wait for a device that failed. Then a call that
    /// waits for everything on the device would not return, whichever runtime makes it.
    pub(crate) fn has_standing_stream(&self) -> bool {
        let mut standing = self.faults.life.standing.lock();
        let over: Vec<_> = standing.extract_if(.., |(track, ticket)| track.passed() >= *ticket).collect();
        let some = !standing.is_empty();
        drop(standing);
        drop(over);
        some
    }
}
