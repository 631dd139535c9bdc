//! Edges between streams, as the calls that state them return them.

use crate::pending::Pending;
use std::fmt;
use std::future::IntoFuture;
use warpline_driver::Result;
use warpline_driver::timeline::Ticket;

/// An edge that [`Stream::wait_stream`](crate::Stream::wait_stream),
/// [`wait_event`](crate::Stream::wait_event) or [`wait_for`](crate::Stream::wait_for) stated.
///
/// The edge holds when the call has returned, and the device keeps it. The host has nothing to wait
/// for, so this value may be dropped. Awaiting it waits until the stream has passed the edge.
///
/// # Errors
/// A refused edge resolves to its error. The error of an edge that is dropped is reported and
/// returned as that of a [`Pending`]. The later ops that needed the edge are refused as well.
///
/// # Cancel safety
/// Dropping it removes no edge.
pub struct Edge(Pending<()>);

impl Edge {
    pub(crate) fn new(stated: Pending<()>) -> Self {
        Edge(stated)
    }

    /// Returns whether the edge was stated, without waiting for it.
    ///
    /// # Errors
    /// The refusal, if the call was refused.
    pub fn queued(self) -> Result<()> {
        self.0.queued()
    }

    /// Blocks the calling thread until the stream has passed the edge.
    ///
    /// # Errors
    /// As [`Pending::blocking_wait`].
    pub fn blocking_wait(self) -> Result<()> {
        self.0.blocking_wait()
    }

    /// The ticket of the edge. `None` if the call was refused.
    pub fn ticket(&self) -> Option<Ticket> {
        self.0.ticket()
    }
}

impl IntoFuture for Edge {
    type Output = Result<()>;
    type IntoFuture = Pending<()>;

    fn into_future(self) -> Pending<()> {
        self.0
    }
}

impl fmt::Debug for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Edge").field(&self.0).finish()
    }
}
