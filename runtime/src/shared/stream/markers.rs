//! Markers behind the work on a stream: requests for them, and writing them.

use super::core::{State, StreamCore};
use crate::background;
use crate::delegation::Serve;
use std::sync::Arc;
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

    /// Writes a marker of the newest ticket before the next one is submitted, if it is awaited or
    /// an event or a `synchronize` stands there.
    #[inline]
    pub(super) fn before_submit(&self, state: &mut State) {
        if state.marker_at < state.issued
            && self.progress.needs_marker(state.issued)
            && state.foreign.is_none()
        {
            state.write_marker();
        }
    }
}
