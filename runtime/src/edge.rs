//! The edge between streams that the wait calls return.

use crate::pending::Pending;
use std::fmt;
use std::future::IntoFuture;
use warpline_driver::Result;
use warpline_driver::timeline::Ticket;

/// An edge from [`Stream::wait_stream`](crate::Stream::wait_stream),
/// [`wait_event`](crate::Stream::wait_event) or [`wait_for`](crate::Stream::wait_for).
///
/// The edge holds once the call has returned, and the device enforces it. The host need not wait,
/// so this value may be dropped. Awaiting it waits until the stream has passed the edge.
///
/// # Errors
/// A refused edge resolves to its error. If the `Edge` is dropped, its error is reported, and a
/// later `synchronize` returns it, as for a [`Pending`]. Later ops that need the edge are refused
/// as well.
///
/// # Cancel safety
/// Dropping it does not remove the edge.
pub struct Edge(pub(crate) Pending<()>);

impl Edge {
    /// Checks that the edge was accepted, without waiting until the stream passes it.
    ///
    /// # Errors
    /// The error of the call, if the edge was refused.
    pub fn queued(self) -> Result<()> {
        self.0.queued()
    }

    /// Blocks the calling thread until the stream has passed the edge.
    ///
    /// # Errors
    /// Returns the errors of [`Pending::blocking_wait`].
    #[track_caller]
    pub fn blocking_wait(self) -> Result<()> {
        self.0.blocking_wait()
    }

    /// Returns the ticket of the edge; `None` if the call was refused.
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
