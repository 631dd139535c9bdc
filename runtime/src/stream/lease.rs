//! Exclusive leases of a bounded number of streams.
// Decision: docs/decisions/0017-leases-make-new-streams.md

use crate::shared::stream::Settings;
use crate::shared::{Device, Stream, StreamCore};
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::Semaphore;
use warpline_driver::{Error, ErrorKind, Priority, Result};

/// A bounded pool of streams on one device. Each stream has one owner at a time, and requests are
/// served in the order in which they were made.
///
/// A pool is a cheap handle; all clones are the same pool.
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
            let why = format!(
                "stream_pool on {device}: its size is 0, and at least 1 is needed; pass how many streams may \
                 be leased at a time"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let size = size.min(Semaphore::MAX_PERMITS);
        let (room, label) = (Arc::new(Semaphore::new(size)), "lease".into());
        Ok(StreamPool { device, room, size, label, priority: Priority::Normal })
    }

    /// Sets the name of its streams in errors and traces; "lease" by default.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets the priority of its streams.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Returns the number of leases that can exist at a time.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of leases that are available immediately.
    pub fn available(&self) -> usize {
        self.room.available_permits()
    }

    /// Waits for an exclusive stream.
    ///
    /// The stream is new in every respect: it takes over neither order nor errors from an earlier
    /// lease.
    ///
    /// # Cancel safety
    /// Dropping the future abandons its place in the queue and loses nothing.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` if the device accepts no more work.
    pub async fn lease(&self) -> Result<StreamLease> {
        if let Some(lease) = self.try_lease()? {
            return Ok(lease);
        }
        let acquire = std::pin::pin!(self.room.clone().acquire_owned());
        // The holders of the other leases may not poll, so this future runs the turns. The device
        // may fail while its streams are leased, and a lease returns its permit only after it is
        // dropped: this future watches for the failure.
        let core = self.device.default_stream()?;
        let permit = crate::shared::stream::watching(core.core(), acquire).await?;
        self.make(Box::new(permit.expect("the semaphore is never closed")))
    }

    /// Returns an exclusive stream if one is available, without waiting; `None` otherwise.
    ///
    /// # Errors
    /// The errors of [`lease`](Self::lease).
    pub fn try_lease(&self) -> Result<Option<StreamLease>> {
        // No lease of a failed device may ever end.
        self.device.shared().ensure_open()?;
        match self.room.clone().try_acquire_owned() {
            Ok(permit) => self.make(Box::new(permit)).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn make(&self, permit: Box<dyn std::any::Any + Send>) -> Result<StreamLease> {
        let (label, priority) = (Some(self.label.clone()), self.priority);
        let settings = Settings { label, priority, then: Some(permit), ..Settings::default() };
        let core = StreamCore::new(self.device.shared().clone(), settings)?;
        Ok(StreamLease { stream: Stream::new(core) })
    }
}

/// An exclusive stream; derefs to [`Stream`].
///
/// Dropping it never blocks, and closes the stream, also for remaining clones of the handle. Work
/// that is already enqueued still runs. The place in the pool becomes free once that work has
/// finished.
#[must_use = "dropping the lease closes its stream"]
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
        if warpline_driver::process::is_forked() {
            return;
        }
        let core = self.stream.core().clone();
        crate::background::run_where_it_may_block(move || core.close());
    }
}
