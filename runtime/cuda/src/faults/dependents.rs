//! A stream that waits for work of another device, and what becomes of it if that device dies: it would wait for ever, or go on
//! as if the work had been done. So its own device fails too, in the runtime that stated the edge, and with it who waits for
//! that.
//!
//! Not if the work was done: then the wait ends, as soon as the stream comes to it. Such a wait stands between two markers, so that
//! a stream which is still busy with what comes before, or already with what comes behind, is not taken for one that waits.

use crate::completion::reactor;
use crate::completion::track::{IDLE_CHECK_AFTER, Track};
use crate::work::gate;
use std::sync::{Arc, Weak};
use std::time::Instant;
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{Error, Health, Site};

/// A wait for another device's work.
#[derive(Debug)]
pub(crate) struct Dependent {
    pub(crate) waiting: Weak<Track>,
    pub(crate) ticket: Ticket,
    pub(crate) site: Site,
    /// Of the device that it waits for, in the same runtime.
    pub(crate) health: Arc<Health>,
    pub(crate) awaited: Weak<Timeline>,
    pub(crate) until: Ticket,
    /// Since when it is known to stand at its wait, although the work was done, with nothing else
    /// of its device completing and no gate closed.
    pub(crate) stands_since: Option<Instant>,
    /// How much its device had completed then.
    pub(crate) completed: u64,
}

impl Dependent {
    /// Whether the wait is not over, as far as that can be told.
    pub(crate) fn still_waits(&self) -> bool {
        // Not if the awaited work is over: the device may die before the wait hears of it.
        self.waiting.upgrade().is_some_and(|track| track.passed() < self.ticket)
    }

    /// Its device has died: whether it is settled what becomes of the wait. May call the driver. That the awaited work is known to be
    /// over does not mean that the wait is: the device may have died between the two. So a stream that has come to its wait has
    /// some patience.
    pub(crate) fn settle(&mut self, why: &Error) -> bool {
        let Some(track) = self.waiting.upgrade() else { return true };
        if track.passed() >= self.ticket {
            return true;
        }
        let reached = self.awaited.upgrade().is_some_and(|awaited| awaited.reached(self.until));
        // Words say by themselves how far a stream is. So if the work was not done nobody is asked: the call might wait for a launch
        // that waits for room behind this very wait.
        if (reached || track.is_marked_by_events())
            && (track.ask_events().is_err()
                || track.passed() >= self.ticket
                || !track.borrowed && track.is_idle().unwrap_or(true))
        {
            return true;
        }
        if reached {
            if track.passed() + 1 < self.ticket {
                // It is not there yet.
                return false;
            }
            // It may stand in a hardware queue behind another stream, which is busy or held.
            let completed = track.context.completion.completed();
            if completed != self.completed || gate::is_one_closed() {
                (self.completed, self.stands_since) = (completed, None);
            }
            if self.stands_since.get_or_insert_with(Instant::now).elapsed() < IDLE_CHECK_AFTER {
                return false;
            }
        }
        self.fail(&track, why);
        true
    }

    fn held(&self) -> Option<Arc<Track>> {
        let reached = self.awaited.upgrade().is_some_and(|awaited| awaited.reached(self.until));
        self.waiting.upgrade().filter(|track| !reached && track.passed() < self.ticket)
    }

    /// The device that it waits for has failed and goes on with what it has. Calls no driver.
    pub(crate) fn fail_if_it_waits(&self, why: &Error) {
        if let Some(track) = self.held() {
            self.fail(&track, why);
        }
    }

    fn fail(&self, track: &Arc<Track>, why: &Error) {
        // First: who learns of the error may free memory.
        track.context.note_standing(track.clone(), self.ticket);
        let error = Error::new(
            why.kind(),
            format!(
                "{}: it waits for work that will not run: {why}; cuda:{} accepts no more work in this runtime",
                super::fault::named(self.site, track.label(), self.ticket),
                track.context.ordinal
            ),
        );
        track.fail_device(self.ticket, error);
        reactor::wake(track.health().clone());
    }
}
