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
        if ticket > self.marked && self.marked < self.issued && self.foreign.is_none() {
            self.mark();
        }
    }
}

impl State {
    /// Makes sure that all work so far has a marker.
    pub(crate) fn mark_newest(&mut self) {
        if self.marked < self.issued {
            self.mark();
        }
    }

    pub(crate) fn mark(&mut self) {
        if !self.puts_marker_off() {
            if !self.raw.may_signal() {
                return self.have_marked();
            }
            self.raw.signal(self.issued);
        }
        self.marked = self.issued;
    }

    /// Leaves the marker to a thread that may write it.
    #[cold]
    fn have_marked(&self) {
        let (core, ticket) = (self.core.clone(), self.issued);
        background::detach(move || {
            if let Some(core) = core.upgrade() {
                core.want_marker(ticket);
            }
        });
    }
}

impl StreamCore {
    /// Notes that a `Pending` of this ticket is held.
    #[inline]
    pub(crate) fn hold(&self, ticket: Ticket) {
        if self.device.signalled {
            self.held.store(ticket, Ordering::Relaxed);
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
    pub(crate) fn let_go(&self, ticket: Ticket) {
        if self.device.signalled && self.held.load(Ordering::Relaxed) == ticket {
            self.let_go.store(ticket, Ordering::Relaxed);
        }
    }

    /// Returns whether the `Pending` of this ticket, the newest, is held.
    #[inline]
    pub(super) fn is_held(&self, ticket: Ticket) -> bool {
        self.held.load(Ordering::Relaxed) == ticket && self.let_go.load(Ordering::Relaxed) != ticket
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
