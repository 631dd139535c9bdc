//! The progress of a stream, for threads that do not have its lock, and the tickets that need a
//! marker of their own.

use crate::sync::{Arc, AtomicU64, Ordering};
use warpline_driver::DriverStream;
use warpline_driver::timeline::{Ticket, Timeline};

/// The progress of a stream, for threads that do not have its lock.
#[repr(C)]
pub(crate) struct Progress {
    /// The stream at the driver.
    driver: Arc<dyn DriverStream>,
    pub(crate) timeline: Arc<Timeline>,
    /// The newest ticket. Written under the stream's lock.
    issued: AtomicU64,
    /// True on a device that needs markers. The tickets below are kept only there.
    is_signalled: bool,
    /// The newest ticket whose call returns a `Pending`.
    awaited: AtomicU64,
    /// The ticket in `awaited`, if its `Pending` was dropped or passed on.
    passed_on: AtomicU64,
    /// The newest ticket that an event or a `synchronize` stands at.
    stood_at: AtomicU64,
}

impl Progress {
    pub(super) fn new(driver: Arc<dyn DriverStream>, timeline: Arc<Timeline>, is_signalled: bool) -> Self {
        let [issued, awaited, passed_on, stood_at] = [(); 4].map(|()| AtomicU64::new(0));
        Progress { driver, timeline, issued, is_signalled, awaited, passed_on, stood_at }
    }

    /// Returns the stream at the driver, which takes work only under the stream's lock.
    #[inline]
    pub(super) fn driver(&self) -> &dyn DriverStream {
        &*self.driver
    }

    #[inline]
    pub(super) fn issued(&self) -> Ticket {
        self.issued.load(Ordering::Acquire)
    }

    /// Notes that this ticket was issued. The caller has the stream's lock.
    #[inline]
    pub(super) fn note_issued(&self, ticket: Ticket) {
        self.issued.store(ticket, Ordering::Release);
    }

    /// Waits busily for a ticket, for as long as the driver finds that worth its while. Returns
    /// whether the ticket may be reached now.
    #[inline]
    pub(crate) fn wait_briefly(&self, ticket: Ticket) -> bool {
        self.driver.wait_briefly(ticket)
    }

    /// Notes that a `Pending` is made for this ticket. The caller has the stream's lock.
    #[inline]
    pub(super) fn note_awaited(&self, ticket: Ticket) {
        if self.is_signalled {
            self.awaited.store(ticket, Ordering::Relaxed); // weaken: note-then-submit
        }
    }

    /// Notes that an event or a `synchronize` stands at this ticket. It must not wait for later
    /// work.
    pub(super) fn stand_at(&self, ticket: Ticket) {
        if self.is_signalled {
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
        if self.is_signalled && self.awaited.load(Ordering::Relaxed) == ticket {
            self.passed_on.store(ticket, Ordering::Relaxed); // weaken: pass-on-then-submit
        }
    }

    /// Returns whether something may wait for this ticket, the newest, and for no later one: it
    /// then needs a marker of its own.
    #[inline]
    pub(super) fn needs_marker(&self, newest: Ticket) -> bool {
        if !self.is_signalled {
            return false;
        }
        let is_awaited = self.awaited.load(Ordering::Relaxed) == newest
            && self.passed_on.load(Ordering::Relaxed) != newest;
        is_awaited || self.stood_at.load(Ordering::Relaxed) == newest
    }
}
