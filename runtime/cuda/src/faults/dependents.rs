//! Streams that wait for work of another device, and their failure when that device dies.
//!
//! Such a stream would wait for ever, or continue as if the work had been done. So its own device
//! fails too, in the runtime that stated the edge. The streams that wait for that device fail with
//! it.
//!
//! If the work was done, nothing fails: the wait ends as soon as the stream reaches it. Such a wait
//! stands between two markers. They distinguish a stream at its wait from a stream that is still
//! busy with earlier work, or already with later work.
// Decision: docs/decisions/0034-waiting-device-fails-with-the-awaited-one.md

use crate::completion::reactor;
use crate::completion::track::{IDLE_CHECK_AFTER, Track};
use crate::work::gate;
use std::sync::{Arc, Weak};
use std::time::Instant;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{Error, Health, Site};

/// A stream's wait for another device's work.
#[derive(Debug)]
pub(crate) struct Dependent {
    pub(crate) waiting: Weak<Track>,
    pub(crate) ticket: Ticket,
    pub(crate) site: Site,
    /// The health of the awaited device, in the same runtime.
    pub(crate) health: Arc<Health>,
    pub(crate) awaited: Weak<Timeline>,
    pub(crate) until: Ticket,
    /// Since when the stream has been known to stand at its wait, although the awaited work was
    /// done. Meanwhile nothing else on its device completed and no gate was closed.
    pub(crate) stands_since: Option<Instant>,
    /// How much the stream's device had completed at that time.
    pub(crate) completed: u64,
}

impl Dependent {
    /// Returns true unless the wait is known to have ended.
    pub(crate) fn still_waits(&self) -> bool {
        // The end of the awaited work proves nothing: its device may die before the wait observes
        // it.
        self.waiting.upgrade().is_some_and(|track| track.passed() < self.ticket)
    }

    /// Decides what becomes of the wait after the awaited device has died. Returns true once that
    /// is settled. May call CUDA.
    ///
    /// The awaited work may have finished although the wait has not: the device may have died
    /// between the two. So a stream that has reached its wait is given some time.
    pub(crate) fn settle(&mut self, why: &Error) -> bool {
        let Some(track) = self.waiting.upgrade() else { return true };
        if track.passed() >= self.ticket {
            return true;
        }
        let reached = self.awaited.upgrade().is_some_and(|awaited| awaited.reached(self.until));
        // Words report progress without a query. So if the work was not done, CUDA is not
        // called: the call might wait for a launch that waits for room behind this very wait.
        if (reached || track.has_event_markers())
            && (track.ask_events().is_err()
                || track.passed() >= self.ticket
                || !track.borrowed && track.is_idle().unwrap_or(true))
        {
            return true;
        }
        if reached {
            if track.passed() + 1 < self.ticket {
                // The stream has not reached its wait.
                return false;
            }
            // The stream may be in a hardware queue behind another stream, which is busy or held.
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

    /// Fails the stream if it still waits. The awaited device has failed, but continues with the
    /// work it has. Does not call CUDA.
    pub(crate) fn fail_if_it_waits(&self, why: &Error) {
        if let Some(track) = self.held() {
            self.fail(&track, why);
        }
    }

    fn fail(&self, track: &Arc<Track>, why: &Error) {
        // This comes first: a thread that learns of the error may free memory.
        track.context.note_standing(track.clone(), self.ticket);
        let error = Error::new(
            why.kind(),
            format!(
                "{}: it waits for work that will not run: {why}; cuda:{} accepts no more work in this runtime",
                super::fault::named(self.site, track.label(), self.ticket),
                track.context.ordinal
            ),
        );
        track.fail_device(self.ticket, error.caused_like(why));
        reactor::wake(track.health().clone());
    }
}
