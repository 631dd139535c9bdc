//! Markers behind the work on a stream: requests for them, and writing them.

use super::core::State;
use super::progress::Progress;
use crate::background;
use crate::delegation::Serve;
use warpline_driver::timeline::Ticket;

/// The number of tickets after which a marker is written at the latest. It serves what waits
/// silently: freed blocks and buffers.
const MARKER_EVERY: u64 = 64;

impl Serve for State {
    fn serve(&mut self, ticket: Ticket) {
        // Foreign work that is being enqueued belongs to the newest ticket: its turn ends with a
        // marker.
        if ticket > self.marker_at && self.marker_at < self.tip.issued && self.foreign.is_none() {
            self.write_marker(); // weaken: serve-by-marker
        }
    }
}

impl State {
    /// Makes sure that all work so far has a marker.
    pub(crate) fn write_newest_marker(&mut self) {
        if self.marker_at < self.tip.issued {
            self.write_marker();
        }
    }

    pub(crate) fn write_marker(&mut self) {
        if !self.puts_marker_off() {
            if !self.driver.may_signal() {
                return self.have_marker_written();
            }
            self.driver.signal(self.tip.issued);
        }
        self.marker_at = self.tip.issued;
    }

    /// Writes a marker of the newest ticket before the next one is submitted, if something waits
    /// for that ticket and for no later one.
    #[inline]
    pub(super) fn before_submit(&mut self, progress: &Progress) {
        if self.marker_at < self.tip.issued
            && progress.needs_marker(self.tip.issued)
            && self.foreign.is_none()
        {
            self.write_marker(); // weaken: marker-then-submit
        }
    }

    /// Writes a marker of the newest ticket if one is due. `kept`: true if something is kept for
    /// that ticket.
    #[inline]
    pub(super) fn after_submit(&mut self, kept: bool) {
        let is_due = kept || self.tip.issued - self.marker_at >= MARKER_EVERY;
        if is_due && self.foreign.is_none() {
            self.write_marker();
        }
    }

    /// Defers a marker of the newest ticket, if there is a backlog. Returns whether it did.
    #[inline]
    fn puts_marker_off(&mut self) -> bool {
        let Some(backlog) = &mut self.backlog else { return false };
        backlog.put_marker(self.tip.issued); // weaken: defer-the-marker
        true
    }

    /// Leaves the marker to a thread that may write it.
    #[cold]
    fn have_marker_written(&self) {
        let (core, ticket) = (self.core.clone(), self.tip.issued);
        background::detach(move || {
            if let Some(core) = core.upgrade() {
                core.want_marker(ticket);
            }
        });
    }
}
