//! Markers behind the work on a stream: requests for them, and which tickets still need one.

use super::core::{State, StreamCore};
use crate::background;
use crate::delegation::Serve;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use warpline_driver::timeline::Ticket;

impl Serve for State {
    fn serve(&mut self, ticket: Ticket) {
        // Foreign work that is being enqueued belongs to the newest ticket: its turn ends with a
        // marker.
        if ticket > self.marker_at && self.marker_at < self.issued && self.foreign.is_none() {
            self.write_marker();
        }
    }
}

impl State {
    /// Makes sure that all work so far has a marker.
    pub(crate) fn write_newest_marker(&mut self) {
        if self.marker_at < self.issued {
            self.write_marker();
        }
    }

    pub(crate) fn write_marker(&mut self) {
        if !self.puts_marker_off() {
            if !self.raw.may_signal() {
                return self.have_marker_written();
            }
            self.raw.signal(self.issued);
        }
        self.marker_at = self.issued;
    }

    /// Leaves the marker to a thread that may write it.
    #[cold]
    fn have_marker_written(&self) {
        let (core, ticket) = (self.core.clone(), self.issued);
        background::detach(move || {
            if let Some(core) = core.upgrade() {
                core.want_marker(ticket);
            }
        });
    }
}

impl StreamCore {
    /// Notes that a `Pending` was made for this ticket.
    #[inline]
    pub(crate) fn note_awaited(&self, ticket: Ticket) {
        if self.device.signalled {
            self.awaited.store(ticket, Ordering::Relaxed);
        }
    }

    /// Notes that an event or a `synchronize` stands at this ticket. It must not wait for later
    /// work.
    pub(super) fn stand_at(&self, ticket: Ticket) {
        if self.device.signalled {
            self.stood_at.store(ticket, Ordering::Relaxed);
        }
    }

    /// Notes that the `Pending` of this ticket was dropped or passed on.
    ///
    /// The note is a word of its own, so that no thread needs an atomic exchange. If two threads
    /// call this at the same time, it may name another ticket. Then an unneeded marker is written,
    /// and none is left out.
    #[inline]
    pub(crate) fn note_passed_on(&self, ticket: Ticket) {
        if self.device.signalled && self.awaited.load(Ordering::Relaxed) == ticket {
            self.passed_on.store(ticket, Ordering::Relaxed);
        }
    }

    /// Returns whether this ticket, the newest, has a `Pending`.
    #[inline]
    pub(super) fn is_awaited(&self, ticket: Ticket) -> bool {
        self.awaited.load(Ordering::Relaxed) == ticket && self.passed_on.load(Ordering::Relaxed) != ticket
    }

    /// Makes sure that a marker for `ticket` will be written, without waiting for the stream's
    /// lock.
    #[inline]
    pub(crate) fn want_marker(self: &Arc<Self>, ticket: Ticket) {
        if self.device.signalled && background::duty().is_barred() {
            let core = self.clone();
            return background::run_where_it_may_block(move || core.state.delegate(ticket));
        }
        self.state.delegate(ticket);
    }
}
