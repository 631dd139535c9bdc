//! Back-pressure: an optional limit on the number of ops in flight on a stream.
//!
//! A permit is a semaphore's. An op takes one, and the timeline keeps it until the op's ticket is
//! reached, by the mechanism that also holds pinned buffers. So room is released exactly when work
//! is done, and goes to waiters in the order in which they asked for it.
// Decision: docs/decisions/0016-room-is-a-semaphore.md

use crate::scope::MadeInScope;
use crate::shared::Stream;
use tokio::sync::OwnedSemaphorePermit;
use warpline_driver::{Error, ErrorKind, Result};

/// A permit for one op on a stream, from [`Stream::room`]. Dropping it unused releases it.
#[must_use = "dropping the permit releases the reservation: enqueue an op with it"]
#[derive(Debug)]
pub struct Permit {
    stream: Stream,
    permit: OwnedSemaphorePermit,
}

impl Stream {
    /// Waits until this stream has room for one more op within its `max_in_flight`, and reserves
    /// it. Waiters are served in order.
    ///
    /// # Cancel safety
    /// Dropping the future abandons its place in the queue and loses nothing.
    ///
    /// # Errors
    /// `InvalidArgument` if the stream was built without `max_in_flight`; `Fault` or `ShutDown` if
    /// its device accepts no more work.
    pub async fn room(&self) -> Result<Permit> {
        let core = self.core();
        let Some(room) = core.admission.room() else {
            let label = &core.label;
            let why = format!(
                "room: stream \"{label}\" has no limit; set one with max_in_flight when you build it"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        };
        core.device.ensure_open()?;
        if let Ok(permit) = room.clone().try_acquire_owned() {
            return Ok(Permit { stream: self.clone(), permit });
        }
        core.want_marker(core.issued());
        let acquire = std::pin::pin!(room.clone().acquire_owned());
        let permit = crate::shared::stream::watching(core, acquire).await?;
        // A fault drops the work in flight, which releases its room.
        core.device.ensure_open()?;
        Ok(Permit { stream: self.clone(), permit: permit.expect("the semaphore is never closed") })
    }
}

impl Permit {
    /// Calls `f` with the stream current; the first op that `f` enqueues on it uses the permit.
    ///
    /// `f` cannot be `|| async { … }`, as with [`Stream::enter`].
    pub fn enter<R: MadeInScope>(self, f: impl FnOnce() -> R) -> R {
        let Permit { stream, permit } = self;
        let id = stream.id();
        stream.enter(|| crate::shared::stream::with_permit(id, permit, f))
    }

    /// Returns the stream that the permit is for.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}
