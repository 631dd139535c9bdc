//! When a marker is put behind what a stream has: who asks, and whether somebody still needs it.

use super::core::{State, StreamCore};
use crate::background;
use crate::delegation::Serve;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use warpline_driver::timeline::Ticket;

impl Serve for State {
    fn serve(&mut self, ticket: Ticket) {
        // Foreign work in the making belongs to the newest ticket: its turn ends with a marker.
        if ticket > self.marked && self.marked < self.issued && self.foreign.is_none() {
            self.mark();
        }
    }
}

impl State {
    /// Makes sure that everything so far has a marker.
    pub(crate) fn mark_newest(&mut self) {
        if self.marked < self.issued {
            self.mark();
        }
    }

    pub(crate) fn mark(&mut self) {
        // Ops that were never enqueued would count as reached.
        if self.lost.is_some() {
            return;
        }
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
    /// The `Pending` of this ticket is held by somebody.
    #[inline]
    pub(crate) fn hold(&self, ticket: Ticket) {
        if self.device.signalled {
            self.held.store(ticket, Ordering::Relaxed);
        }
    }

    /// An event or a `synchronize` stands for everything up to this ticket, and is not to wait for what comes after it.
    pub(super) fn stand_at(&self, ticket: Ticket) {
        if self.device.signalled {
            self.stood_at.store(ticket, Ordering::Relaxed);
        }
    }

    /// The `Pending` of this ticket was dropped or passed on.
    ///
    /// A mark of its own, which nobody has to exchange: should it name another ticket because two threads come here at once, a
    /// marker is written that nobody needs, and none is left out.
    #[inline]
    pub(crate) fn let_go(&self, ticket: Ticket) {
        if self.device.signalled && self.held.load(Ordering::Relaxed) == ticket {
            self.let_go.store(ticket, Ordering::Relaxed);
        }
    }

    /// Whether the `Pending` of this ticket, the newest, is held.
    #[inline]
    pub(super) fn is_held(&self, ticket: Ticket) -> bool {
        self.held.load(Ordering::Relaxed) == ticket && self.let_go.load(Ordering::Relaxed) != ticket
    }

    /// Makes sure that a marker for `ticket` will be written, without waiting for the stream's lock.
    #[inline]
    pub(crate) fn want_marker(self: &Arc<Self>, ticket: Ticket) {
        if self.device.signalled && background::duty().is_barred() {
            let core = self.clone();
            return background::run_where_it_may_block(move || core.state.delegate(ticket));
        }
        self.state.delegate(ticket);
    }
}
