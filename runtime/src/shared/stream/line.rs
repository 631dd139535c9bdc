//! The line of a stream: the newest ticket and the clocks there.
//!
//! # Who may touch what, when
//! * The [`Tip`] is under the stream's lock.
//! * Of the [`Line`], the known clock has a lock of its own, because the allocator reads it while
//!   it holds the pool's lock. It is written only while the stream's lock is held. Holders of that
//!   lock read the stated clock instead unless `Tip::knows_more`, since both are then one clock.
//! * `version` and `seen_at` are written under the stream's lock and read by any thread.
//! * `observed_at` is written by any thread. It only grows.

use crate::order::{Clock, StreamId, Use};
use parking_lot::Mutex;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use warpline_driver::timeline::Ticket;

/// The part of a line that threads without the stream's lock may read.
#[derive(Default)]
pub(crate) struct Line {
    /// The number of changes of a clock or a carried mark.
    version: AtomicU64,
    known: Mutex<Clock>,
    /// The newest ticket that a `Snapshot` stands at. No clock of another stream has a newer ticket
    /// of this one.
    seen_at: AtomicU64,
    /// The newest ticket whose clock the host has observed entirely.
    observed_at: AtomicU64,
}

/// The end of the line, which the stream's lock guards.
#[repr(C)]
pub(crate) struct Tip {
    pub(crate) issued: Ticket,
    pub(crate) stated: Clock,
    /// True if the runtime has added edges that the program did not state, so that the known clock
    /// is not the stated one.
    knows_more: bool,
    /// True if no more tickets are issued.
    pub(crate) closed: bool,
    /// The latest waits: stream, its ticket, its version. Repeating one of them does nothing.
    waited: [(StreamId, Ticket, u64); 4],
    waited_at: usize,
}

impl Tip {
    /// The bytes from its beginning to the end of the last field that every op touches.
    pub(super) const HOT_BYTES: usize = offset_of!(Tip, waited);

    /// Returns the tip of a new stream.
    pub(super) fn new(stream: StreamId) -> Self {
        let waited = [(stream, u64::MAX, 0); 4];
        Tip { issued: 0, stated: Clock::default(), knows_more: false, closed: false, waited, waited_at: 0 }
    }

    /// Returns whether a wait for exactly this place was made recently.
    #[inline]
    pub(super) fn waited_lately(&self, place: (StreamId, Ticket, u64)) -> bool {
        self.waited.contains(&place)
    }

    /// Notes that a wait for this place was made.
    pub(super) fn note_wait(&mut self, place: (StreamId, Ticket, u64)) {
        self.waited[self.waited_at] = place;
        self.waited_at = (self.waited_at + 1) % self.waited.len();
    }
}

impl Line {
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Notes that a clock or a carried mark has changed.
    #[inline]
    pub(super) fn change_version(&self, _tip: &mut Tip) {
        // The lock that `_tip` stands for makes this thread the only writer.
        self.version.store(self.version.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Returns the newest ticket that a snapshot stands at. A thread that is not ordered after the
    /// newest snapshot may get an earlier one.
    #[inline]
    pub(super) fn seen_at(&self) -> Ticket {
        self.seen_at.load(Ordering::Relaxed)
    }

    /// Notes that a snapshot stands at this ticket. Returns whether it is the first one there.
    #[inline]
    pub(super) fn see(&self, ticket: Ticket, _tip: &mut Tip) -> bool {
        let is_new = self.seen_at() < ticket;
        if is_new {
            self.seen_at.store(ticket, Ordering::Relaxed);
        }
        is_new
    }

    /// Returns whether the stream's next work is after `used`, by stated or by added edges.
    #[inline]
    pub(super) fn knows(&self, used: Use) -> bool {
        self.known.lock().covers(used)
    }

    /// Returns whether an added edge makes the stream's next work be after `used`.
    #[inline]
    pub(super) fn knows_by_edges(&self, tip: &Tip, used: Use) -> bool {
        tip.knows_more && self.knows(used)
    }

    pub(super) fn known(&self) -> Clock {
        self.known.lock().clone()
    }

    /// Returns the known clock, if it is not the stated one.
    pub(super) fn known_beyond(&self, tip: &Tip) -> Option<Clock> {
        tip.knows_more.then(|| self.known())
    }

    /// Merges the clocks at `from` into those of `stream`, whose line this is, because the program
    /// has stated that order. It holds from the newest ticket on, which is that of the wait.
    /// `known`: the known clock at `from`, if it is not the stated one. Returns whether a clock
    /// changed.
    pub(super) fn add_wait(
        &self,
        tip: &mut Tip,
        stream: StreamId,
        from: Use,
        stated: &Clock,
        known: Option<&Clock>,
    ) -> bool {
        let now = Use { stream, ticket: tip.issued };
        let mut mine = self.known.lock();
        if tip.knows_more || known.is_some() {
            tip.knows_more = true;
            let changed = mine.merge(now, from, known.unwrap_or(stated));
            return tip.stated.merge(now, from, stated) || changed;
        }
        // Mostly the runtime has added no edge, and both clocks are one. It is shared by nothing
        // else while it changes, so it changes in place.
        *mine = Clock::default();
        let changed = tip.stated.merge(now, from, stated);
        *mine = tip.stated.clone();
        changed
    }

    /// Merges the known clock at `from` into that of `stream`, because the runtime has added an
    /// edge before the newest ticket's work.
    pub(super) fn add_edge(&self, tip: &mut Tip, stream: StreamId, from: Use, known: &Clock) {
        let now = Use { stream, ticket: tip.issued };
        if self.known.lock().merge(now, from, known) {
            tip.knows_more = true;
            self.change_version(tip);
        }
    }

    /// Returns true if the host has not observed all that `clock`, that of a place, covers.
    #[inline]
    pub(super) fn is_unobserved(&self, clock: &Clock) -> bool {
        clock.changed_at().is_some_and(|at| at > self.observed_at.load(Ordering::Relaxed))
    }

    /// Notes that the host has observed this ticket and all that its clock covers.
    #[inline]
    pub(super) fn note_observed(&self, ticket: Ticket) {
        self.observed_at.fetch_max(ticket, Ordering::Release);
    }

    /// Drops the clocks if everything in them is observed, and so before everything.
    pub(super) fn forget_observed(&self, tip: &mut Tip) {
        let observed_at = self.observed_at.load(Ordering::Acquire);
        if tip.stated.changed_at().is_some_and(|at| at <= observed_at) {
            tip.stated = Clock::default();
            let mut known = self.known.lock();
            tip.knows_more = known.changed_at().is_some_and(|at| at > observed_at);
            if !tip.knows_more {
                *known = Clock::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpline_order::Observed;

    /// The line of a stream of its own, and two further streams.
    fn line() -> (Line, Tip, [StreamId; 3]) {
        let observed = Observed::default();
        let streams = [(); 3].map(|()| observed.admit().expect("few streams are live"));
        (Line::default(), Tip::new(streams[0]), streams)
    }

    fn at(stream: StreamId, ticket: Ticket) -> Use {
        Use { stream, ticket }
    }

    #[test]
    fn a_stated_wait_is_stated_and_known_and_an_added_edge_is_only_known() {
        let (line, mut tip, [own, a, b]) = line();
        tip.issued = 1;
        assert!(line.add_wait(&mut tip, own, at(a, 3), &Clock::default(), None));
        assert!(tip.stated.covers(at(a, 3)) && line.knows(at(a, 3)) && line.known_beyond(&tip).is_none());
        assert!(!line.add_wait(&mut tip, own, at(a, 2), &Clock::default(), None), "it is implied");
        let before = line.version();
        tip.issued = 2;
        line.add_edge(&mut tip, own, at(b, 5), &Clock::default());
        assert!(line.version() > before);
        assert!(!tip.stated.covers(at(b, 5)) && line.knows_by_edges(&tip, at(b, 5)));
        assert!(line.known_beyond(&tip).is_some_and(|known| known.covers(at(b, 5))));
        tip.issued = 3;
        assert!(line.add_wait(&mut tip, own, at(a, 9), &Clock::default(), None));
        assert!(line.knows(at(b, 5)) && line.knows(at(a, 9)), "a stated wait keeps what was known");
    }

    #[test]
    fn only_clocks_that_were_observed_entirely_are_forgotten() {
        let (line, mut tip, [own, a, b]) = line();
        tip.issued = 1;
        line.add_wait(&mut tip, own, at(a, 3), &Clock::default(), None);
        tip.issued = 2;
        line.add_edge(&mut tip, own, at(b, 5), &Clock::default());
        line.forget_observed(&mut tip);
        assert!(tip.stated.covers(at(a, 3)));
        assert!(line.is_unobserved(&tip.stated));
        line.note_observed(1);
        line.forget_observed(&mut tip);
        assert!(!tip.stated.covers(at(a, 3)) && line.knows_by_edges(&tip, at(b, 5)));
        tip.issued = 3;
        line.add_wait(&mut tip, own, at(a, 4), &Clock::default(), None);
        line.note_observed(3);
        line.forget_observed(&mut tip);
        assert!(!line.knows(at(b, 5)) && line.known_beyond(&tip).is_none());
    }

    #[test]
    fn the_latest_four_waits_are_remembered() {
        let (_, mut tip, [_, a, b]) = line();
        tip.note_wait((a, 1, 0));
        (0..3).for_each(|version| tip.note_wait((b, 1, version)));
        assert!(tip.waited_lately((a, 1, 0)) && !tip.waited_lately((a, 1, 1)));
        tip.note_wait((b, 2, 0));
        assert!(!tip.waited_lately((a, 1, 0)) && tip.waited_lately((b, 1, 0)));
    }

    #[test]
    fn a_place_is_new_once() {
        let (line, mut tip, _) = line();
        assert!(!line.see(0, &mut tip), "nothing is on the stream");
        assert!(line.see(2, &mut tip) && !line.see(2, &mut tip) && !line.see(1, &mut tip));
        assert_eq!(line.seen_at(), 2);
    }
}
