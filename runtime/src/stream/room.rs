//! Back-pressure: at most so many ops in flight on a stream that asked for it.
//!
//! A permit is a semaphore's. An op takes one, and the timeline keeps it until the op's ticket is reached: the mechanism that
//! also holds pinned buffers. So room comes back exactly when work is done, in the order in which it was asked for.

use crate::scope::MadeInScope;
use crate::shared::Stream;
use tokio::sync::OwnedSemaphorePermit;
use warpline_driver::{Error, ErrorKind, Result};

/// Room for one op on a stream, see [`Stream::room`]. Dropping it unused gives the room back.
#[derive(Debug)]
pub struct Permit {
    stream: Stream,
    permit: OwnedSemaphorePermit,
}

impl Stream {
    /// Waits, in turn, until this stream has room for one more op within its `max_in_flight`, and reserves it.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue and loses nothing.
    ///
    /// # Errors
    /// `InvalidArgument` if the stream has no limit; `Fault` if its device has failed.
    pub async fn room(&self) -> Result<Permit> {
        let core = self.core();
        let Some((room, _)) = &core.room else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "room: stream \"{}\" has no limit; build it with max_in_flight to get one",
                    core.label
                ),
            ));
        };
        if let Ok(permit) = room.clone().try_acquire_owned() {
            return Ok(Permit { stream: self.clone(), permit });
        }
        core.want_marker(core.issued());
        let acquire = std::pin::pin!(room.clone().acquire_owned());
        let permit = crate::shared::stream::watching(core, acquire).await?;
        Ok(Permit { stream: self.clone(), permit: permit.expect("the semaphore is never closed") })
    }
}

impl Permit {
    /// Calls `f` with the stream current; the first op that `f` enqueues on it takes the permit.
    ///
    /// As with [`Stream::enter`], `f` cannot be `|| async { … }`.
    pub fn enter<R: MadeInScope>(self, f: impl FnOnce() -> R) -> R {
        let Permit { stream, permit } = self;
        let id = stream.id();
        stream.enter(|| crate::shared::stream::with_permit(id, permit, f))
    }

    /// The stream it is for.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}
