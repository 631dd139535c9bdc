//! The identity of a capture, for the streams and the places in it.

use crate::order::{Site, StreamId};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use warpline_driver::timeline::Ticket;

/// Finds the site of the step with a number on a member stream.
type FindSite = dyn Fn(StreamId, Ticket) -> Option<Site> + Send + Sync;

/// The identity of a capture. The capture itself is known to its own thread only
/// ([`Capture::of`](super::Capture::of)).
pub(crate) struct CaptureToken {
    thread: ThreadId,
    ended: AtomicBool,
    find_site: Box<FindSite>,
}

impl CaptureToken {
    /// Creates the identity of a capture by this thread.
    pub(crate) fn new(find_site: impl Fn(StreamId, Ticket) -> Option<Site> + Send + Sync + 'static) -> Self {
        let thread = std::thread::current().id();
        CaptureToken { thread, ended: AtomicBool::new(false), find_site: Box::new(find_site) }
    }

    /// Returns whether the calling thread is the one that captures.
    pub(crate) fn is_here(&self) -> bool {
        self.thread == std::thread::current().id()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Returns the site of the op or wait with this number on a member, for errors.
    pub(crate) fn site_of(&self, stream: StreamId, number: Ticket) -> Option<Site> {
        (self.find_site)(stream, number)
    }
}

impl fmt::Debug for CaptureToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaptureToken({:?})", self.thread)
    }
}
