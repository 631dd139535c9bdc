//! Sets of values that one request at a time uses, such as buffers of a fixed address.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use warpline_runtime::{Device, Event, Result, Stream, StreamLease, StreamPool};

/// A number of sets of static buffers, or of captured graphs with theirs, that requests lease.
///
/// A lease has one set for itself, and a stream that is ordered after all work of the set's
/// earlier leases. So a request writes the input, launches the graph and reads the output without
/// an edge of its own, and no other request writes the same buffers in between. What lies in them
/// is what the last lease left, so write inputs whole.
///
/// Leases are served in the order of their calls. A cheap handle; all clones are the same slots.
///
/// # Examples
/// ```
/// use warpline::prelude::*;
/// use warpline::serve::Slots;
///
/// # #[tokio::main]
/// # async fn main() -> warpline::Result<()> {
/// let device = Device::best()?;
/// // A graph and its buffers for each of two requests at a time.
/// let slots = Slots::build(&device, 2, |stream| {
///     let x = Tensor::from_buffer(stream.alloc_zeroed::<f32>(3)?, [3])?;
///     let (graph, y) = stream.capture(|_| &x * 2.0)?;
///     Ok((x, graph, y))
/// })
/// .await?;
///
/// let slot = slots.lease().await?;
/// let (x, graph, y) = &*slot;
/// slot.stream().write(x.buffer()?, &[1.0f32, 2.0, 3.0]).queued()?;
/// graph.launch(slot.stream()).queued()?;
/// assert_eq!(slot.stream().read::<f32>(y.buffer()?).await?, [2.0, 4.0, 6.0]);
/// # Ok(())
/// # }
/// ```
pub struct Slots<T> {
    pool: StreamPool,
    free: Arc<Mutex<VecDeque<Set<T>>>>,
}

/// A set, and the end of its last lease's work.
struct Set<T> {
    value: T,
    ended: Option<Event>,
}

impl<T: Send> Slots<T> {
    /// Builds `count` sets, each by a call of `build` with a stream, and waits until what it
    /// enqueued there has finished.
    ///
    /// # Errors
    /// `InvalidArgument` if `count` is 0; the errors of `build`, of its work, and of
    /// [`StreamPool::lease`].
    pub async fn build(
        device: &Device,
        count: usize,
        mut build: impl FnMut(&Stream) -> Result<T>,
    ) -> Result<Self> {
        let pool = device.stream_pool(count)?.label("slot");
        let mut sets = VecDeque::with_capacity(count);
        for _ in 0..count {
            let lease = pool.lease().await?;
            let value = lease.scope(|| async { build(&lease) }).await?;
            lease.synchronize().await?;
            sets.push_back(Set { value, ended: None });
        }
        Ok(Slots { pool, free: Arc::new(Mutex::new(sets)) })
    }

    /// Waits for a set that no other lease has.
    ///
    /// A lease that was dropped while its work was in flight counts until that work has finished.
    ///
    /// # Cancel safety
    /// Dropping the future abandons its place in the queue and loses nothing.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` if the device accepts no more work.
    pub async fn lease(&self) -> Result<SlotLease<T>> {
        let stream = self.pool.lease().await?;
        let set = {
            let mut free = self.free.lock();
            // One whose work has finished, if there is one.
            let is_over = |set: &Set<T>| {
                set.ended.as_ref().is_none_or(|ended| ended.query().is_ok_and(|is_over| is_over))
            };
            let at = free.iter().position(is_over).unwrap_or(0);
            free.remove(at).expect("there are as many sets as streams")
        };
        if let Some(ended) = &set.ended {
            stream.wait_event(ended);
        }
        Ok(SlotLease { set: Some(set), stream, free: self.free.clone() })
    }

    /// Returns the number of sets that are available immediately.
    pub fn available(&self) -> usize {
        self.pool.available()
    }
}

impl<T> Clone for Slots<T> {
    fn clone(&self) -> Self {
        Slots { pool: self.pool.clone(), free: self.free.clone() }
    }
}

impl<T> fmt::Debug for Slots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("size", &self.pool.size()).finish_non_exhaustive()
    }
}

/// A set of [`Slots`], and its stream. It derefs to the set.
///
/// Dropping it never blocks. Work that was enqueued still runs, and the set is available to others
/// when it has finished. Work on other streams is not waited for: order the lease's stream after
/// it first.
#[must_use = "dropping the lease returns the set"]
pub struct SlotLease<T> {
    set: Option<Set<T>>,
    stream: StreamLease,
    free: Arc<Mutex<VecDeque<Set<T>>>>,
}

impl<T> SlotLease<T> {
    /// Returns the stream, which is ordered after earlier uses of the set.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl<T> Deref for SlotLease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.set.as_ref().expect("it is there until the drop").value
    }
}

impl<T> Drop for SlotLease<T> {
    fn drop(&mut self) {
        if let Some(mut set) = self.set.take() {
            set.ended = Some(self.stream.record_event());
            // Before the stream closes, which makes room for the next lease.
            self.free.lock().push_back(set);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for SlotLease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SlotLease").field(&**self).finish()
    }
}
