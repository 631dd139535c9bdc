//! Exclusive leases of a bounded number of streams.

use crate::shared::stream::Settings;
use crate::shared::{Device, Stream, StreamCore};
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::Semaphore;
use warpline_driver::{Error, ErrorKind, Priority, Result};

/// A bounded pool of streams on one device, handed out one owner at a time, in the order in which they were asked for.
///
/// A cheap handle; all clones are the same pool.
#[derive(Clone, Debug)]
pub struct StreamPool {
    device: Device,
    room: Arc<Semaphore>,
    size: usize,
    label: Arc<str>,
    priority: Priority,
}

impl StreamPool {
    pub(crate) fn new(device: Device, size: usize) -> Result<Self> {
        if size == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "stream_pool on {device}: its size is 0, and at least 1 is needed; pass how many streams may be leased \
                     at a time"
                ),
            ));
        }
        let size = size.min(Semaphore::MAX_PERMITS);
        Ok(StreamPool {
            device,
            room: Arc::new(Semaphore::new(size)),
            size,
            label: "lease".into(),
            priority: Priority::Normal,
        })
    }

    /// The name its streams have in errors and traces; "lease" if none is given.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }

    /// The priority of its streams.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// How many leases there can be at a time.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many could be had at once.
    pub fn available(&self) -> usize {
        self.room.available_permits()
    }

    /// Waits for a stream of one's own.
    ///
    /// The stream is a new one in every respect: nothing of an earlier lease, neither order nor errors, passes to it.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue and loses nothing.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` when the device takes no more work.
    pub async fn lease(&self) -> Result<StreamLease> {
        let acquire = std::pin::pin!(self.room.clone().acquire_owned());
        let shared = self.device.shared();
        let permit = if shared.runs_in_turns || shared.signalled {
            // Who holds the other leases may poll nothing. And a device that counts for itself may fail while a stream of it is
            // held, which it then gives back when it is let go.
            crate::shared::stream::watching(self.device.default_stream()?.core(), acquire).await?
        } else {
            acquire.await
        };
        self.make(Box::new(permit.expect("the semaphore is never closed")))
    }

    /// A stream of one's own if one is free.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub fn try_lease(&self) -> Result<Option<StreamLease>> {
        match self.room.clone().try_acquire_owned() {
            Ok(permit) => self.make(Box::new(permit)).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn make(&self, permit: Box<dyn std::any::Any + Send>) -> Result<StreamLease> {
        let settings = Settings {
            borrowed: None,
            label: Some(self.label.clone()),
            priority: self.priority,
            max_in_flight: None,
            then: Some(permit),
        };
        let core = StreamCore::new(self.device.shared().clone(), settings)?;
        Ok(StreamLease { stream: Stream::new(core) })
    }
}

/// A stream of one's own; derefs to [`Stream`].
///
/// Dropping it closes the stream, also for clones of the handle that are still around, and never blocks. What was enqueued
/// still runs; the place in the pool is free again once it has.
#[derive(Debug)]
pub struct StreamLease {
    stream: Stream,
}

impl Deref for StreamLease {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        let core = self.stream.core().clone();
        crate::background::run_where_it_may_block(move || core.close());
    }
}
