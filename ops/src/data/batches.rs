//! The batches of one epoch or several, as a `futures::Stream`.
// Decision: docs/decisions/0048-loader-enqueues-in-polls-and-observes-nothing.md

use super::ahead::Ahead;
use super::batch::{Batch, Sent, send};
use super::plan::Plan;
use super::reader::Loaded;
use super::sample::Sample;
use super::supply::{Seat, Supply, User};
use futures::future::BoxFuture;
use futures::stream::{FusedStream, Next};
use futures::{FutureExt, Stream, StreamExt};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use warpline_runtime::{Device, Error, ErrorKind, HealthState, Result, is_forked};

/// The batches of one epoch or several, in order.
///
/// This is a `futures::Stream` of `Result<Batch>` that ends after the last batch or the first
/// error.
///
/// Reading begins at the first poll. Within a tokio runtime, it continues on the blocking threads.
/// Without a runtime, and on a device that [runs in
/// turns](warpline_runtime::Device::runs_in_turns), the polls do the reading. Both ways yield the
/// same batches in the same order. If a current-thread tokio runtime is entered but not driven,
/// nothing is read and the first batch never arrives. Poll inside its `block_on`.
///
/// A batch is yielded as soon as its copy is enqueued. The event [`Batch::copied`] is passed when
/// the copy has finished. Copies are enqueued only when this stream is polled. A poll enqueues the
/// copies of all batches that have been read by then. Polling does not count as
/// [observing](warpline_runtime::Pending) a copy, even if it has finished: every use of a batch
/// needs an edge. If the edge is `wait_event(&batch.copied)`, the reader's speed does not change
/// which uses are accepted. With `wait_stream` of the copy stream it does: the edge then includes
/// the copies of all batches enqueued so far.
///
/// # Cancel safety
/// Dropping the future of `next()` or a similar method loses nothing: the next call returns the
/// batch. Dropping the stream stops the reader at the next row. Copies in flight continue, and
/// their memory is recycled.
///
/// # Errors
/// `Data` if the dataset returns it or panics, or if an epoch has no batch; `OutOfMemory`; `Fault`
/// or `ShutDown` if the device accepts no more work; `Closed` if the tokio runtime was shut down.
#[must_use = "streams do nothing unless polled"]
pub struct Batches<S: Sample> {
    plan: Arc<Plan<S>>,
    epochs: Range<u64>,
    state: State<S>,
    user: Option<User<S>>,
    /// The number of pinned batches that the reader and this have.
    hosts: usize,
    /// Batches to be yielded, whose copies are enqueued.
    ready: VecDeque<(Batch<S>, Sent<S>)>,
    /// The copies of yielded batches, whose pinned memory will be recycled.
    sent: VecDeque<Sent<S>>,
    /// The error to yield after the batches before it.
    error: Option<Error>,
    /// Resolves once the device that the batches are copied to accepts no more work.
    end: BoxFuture<'static, Error>,
    waiting_since: Option<Instant>,
    stats: LoadStats,
}

enum State<S: Sample> {
    New,
    /// It waits for pinned memory.
    Starting(BoxFuture<'static, Result<Vec<Supply<S>>>>),
    Reading(Ahead<S>),
    /// The reader has ended; batches or the error may still have to be yielded.
    Over,
    /// The end or the error was yielded.
    Ended,
}

/// Statistics of the loading so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadStats {
    /// The number of batches yielded.
    pub batches: u64,
    /// The number of rows in those batches.
    pub rows: u64,
    /// The time spent reading, decoding and shuffling, on any thread. Copies are not included.
    pub reading: Duration,
    /// The time that the consumer has waited: from each poll that found no batch to the poll that
    /// found the next one.
    ///
    /// If other threads do the reading, this is the time that loading adds to the program. If the
    /// polls do the reading, it counts in `reading` and not here.
    pub waiting: Duration,
}

impl<S: Sample> Batches<S> {
    pub(super) fn new(plan: Arc<Plan<S>>, epochs: Range<u64>) -> Self {
        Batches {
            end: end_of(&plan.stream.device()).boxed(),
            plan,
            epochs,
            state: State::New,
            user: None,
            hosts: 0,
            ready: VecDeque::new(),
            sent: VecDeque::new(),
            error: None,
            waiting_since: None,
            stats: LoadStats::default(),
        }
    }

    /// Returns the batches of epoch `epoch`, from the first one on.
    ///
    /// The number affects the shuffled order and [`Batch::epoch`], and nothing else. The last epoch
    /// is `u64::MAX - 1`: epoch `u64::MAX` ends immediately.
    pub fn epoch(&self, epoch: u64) -> Batches<S> {
        Batches::new(self.plan.clone(), epoch..epoch.saturating_add(1))
    }

    /// Returns the batches of several epochs, one epoch after the other.
    ///
    /// They are the same batches as [`epoch`](Self::epoch) returns for each epoch. [`Batch::epoch`]
    /// tells the epochs apart.
    ///
    /// Reading continues at the same pace from epoch to epoch: while the shuffle buffer of one
    /// epoch empties, the buffer of the next fills. So the host's memory can hold twice
    /// [`shuffle_capacity`](super::Loader::shuffle_capacity) rows, and only the first epoch begins
    /// by waiting for a full buffer.
    pub fn epochs(&self, epochs: Range<u64>) -> Batches<S> {
        Batches::new(self.plan.clone(), epochs)
    }

    /// Waits for the next batch, and returns `None` after the last batch and after an error.
    ///
    /// This is `StreamExt::next` of the crate `futures`, without the import.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call returns the batch.
    ///
    /// # Errors
    /// The errors of the dataset and the device. No batch follows an error.
    ///
    /// # Examples
    /// ```
    /// # use warpline::ops::data::{InMemory, Loader};
    /// # fn main() -> warpline::Result<()> {
    /// # futures::executor::block_on(async {
    /// let mut batches = Loader::new(InMemory::new(1, vec![0.5; 5], vec![0; 5])?)
    ///     .batch_size(2)
    ///     .build()?;
    /// let mut rows = 0;
    /// while let Some(batch) = batches.next().await {
    ///     rows += batch?.rows;
    /// }
    /// assert_eq!(rows, 5);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[expect(clippy::should_implement_trait, reason = "it is the name that `futures` has for it")]
    pub fn next(&mut self) -> Next<'_, Self> {
        StreamExt::next(self)
    }

    /// Returns the statistics so far.
    pub fn stats(&self) -> LoadStats {
        self.stats
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Batch<S>>>> {
        if let State::New = self.state {
            self.user = Some(User::of(&self.plan.memory));
            self.state = State::Starting(self.plan.memory.clone().supplies(self.plan.prefetch).boxed());
        }
        if let State::Starting(supplies) = &mut self.state {
            let supplies = ready!(supplies.poll_unpin(cx))?;
            self.hosts = supplies.len();
            self.state = State::Reading(Ahead::start(&self.plan, self.epochs.clone(), supplies));
        }
        loop {
            self.recycle()?;
            let State::Reading(ahead) = &mut self.state else { return self.poll_rest(cx) };
            // Enqueues the copies of all batches that have been read, not only of the batch yielded
            // next. If there is a batch to yield, this poll will not wait, so a wake-up by the
            // reader would be for nothing.
            let mut nobody = Context::from_waker(Waker::noop());
            let polled = ahead.poll(if self.ready.is_empty() { cx } else { &mut nobody });
            // A reader may take long, and what it reads can go nowhere.
            if polled.is_pending()
                && self.ready.is_empty()
                && let Poll::Ready(error) = self.end.poll_unpin(cx)
            {
                self.state = State::Over;
                self.error = Some(error);
                continue;
            }
            match polled {
                Poll::Ready(loaded) => {
                    let loaded = loaded.unwrap_or_else(|| Err(self.stopped()));
                    match loaded.and_then(|loaded| self.start(loaded)) {
                        Ok(true) => {}
                        Ok(false) => self.state = State::Over,
                        Err(error) => {
                            self.state = State::Over;
                            self.error = Some(error);
                        }
                    }
                }
                Poll::Pending if !self.ready.is_empty() => return Poll::Ready(Ok(self.yield_next())),
                // The reader has the memory it needs and will wake this task.
                Poll::Pending if self.sent.len() < self.hosts => return Poll::Pending,
                // The reader has no memory to read into, so the next finished copy has to wake this
                // task.
                Poll::Pending => {
                    let Some(sent) = self.sent.front_mut() else { return Poll::Pending };
                    let host = ready!(sent.poll(&self.plan.memory, cx))?;
                    self.sent.pop_front();
                    ahead.give_back(host);
                }
            }
        }
    }

    /// Enqueues the copies of a read batch. Returns `false` at the end.
    fn start(&mut self, loaded: Loaded<S>) -> Result<bool> {
        self.stats.reading += loaded.reading;
        let Some(read) = loaded.batch else { return Ok(false) };
        self.ready.push_back(send(&self.plan, read)?);
        Ok(true)
    }

    /// Yields what is left after all was read: batches, then the error if there was one.
    ///
    /// Before the end, all pinned memory returns to its pool, where the next epoch finds it.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Batch<S>>>> {
        if self.ready.is_empty() {
            while let Some(sent) = self.sent.front_mut() {
                drop(ready!(sent.poll(&self.plan.memory, cx))?);
                self.sent.pop_front();
            }
        }
        Poll::Ready(match self.yield_next() {
            None => self.error.take().map_or(Ok(None), Err),
            batch => Ok(batch),
        })
    }

    /// Returns to the reader the pinned memory of yielded batches whose copies have finished.
    ///
    /// Batches that are still to be yielded keep their pinned memory, which limits their number.
    fn recycle(&mut self) -> Result<()> {
        let State::Reading(ahead) = &mut self.state else { return Ok(()) };
        while let Some(sent) = self.sent.front_mut()
            && sent.is_done()?
            && let Poll::Ready(host) = sent.poll(&self.plan.memory, &mut Context::from_waker(Waker::noop()))
        {
            self.sent.pop_front();
            ahead.give_back(host?);
        }
        Ok(())
    }

    /// Leaves the memory of copies in flight: one batch to the loader, the rest to the pool.
    fn leave(&mut self) {
        let sent = self.sent.pop_front().or_else(|| Some(self.ready.pop_front()?.1));
        sent.into_iter().for_each(|sent| self.plan.memory.keep(Seat::InFlight(sent.copies)));
        self.ready.clear();
        self.sent.clear();
        self.user = None;
    }

    fn yield_next(&mut self) -> Option<Batch<S>> {
        let (batch, sent) = self.ready.pop_front()?;
        self.stats.batches += 1;
        self.stats.rows += batch.rows as u64;
        self.sent.push_back(sent);
        Some(batch)
    }

    #[cold]
    fn stopped(&self) -> Error {
        Error::new(
            ErrorKind::Closed,
            format!(
                "epochs {}..{} ended after {} batches: the tokio runtime that read them was shut \
                 down; keep that runtime until the last batch has been read",
                self.epochs.start, self.epochs.end, self.stats.batches
            ),
        )
    }
}

impl<S: Sample> Drop for Batches<S> {
    fn drop(&mut self) {
        if !is_forked() {
            self.leave();
        }
    }
}

impl<S: Sample> Unpin for Batches<S> {}

/// Resolves once `device` accepts no more work, to the reason.
fn end_of(device: &Device) -> impl Future<Output = Error> + Send + use<> {
    let (mut watch, id) = (device.watch_health(), device.id());
    async move {
        match watch.unready().await {
            HealthState::Failing(fault) => fault,
            _ => Error::new(
                ErrorKind::ShutDown,
                format!(
                    "{id} accepts no more work: its runtime was shut down; keep the Runtime alive until \
                     the last batch has been read"
                ),
            ),
        }
    }
}

impl<S: Sample> Stream for Batches<S> {
    type Item = Result<Batch<S>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Batch<S>>>> {
        let this = self.get_mut();
        let Poll::Ready(next) = this.poll_batch(cx) else {
            this.waiting_since.get_or_insert_with(Instant::now);
            return Poll::Pending;
        };
        if let Some(since) = this.waiting_since.take() {
            this.stats.waiting += since.elapsed();
        }
        if !matches!(next, Ok(Some(_))) {
            this.state = State::Ended;
            this.leave();
        }
        Poll::Ready(next.transpose())
    }
}

impl<S: Sample> FusedStream for Batches<S> {
    /// Returns whether the end or an error was yielded. From then on the stream yields only `None`.
    fn is_terminated(&self) -> bool {
        matches!(self.state, State::Ended)
    }
}

impl<S: Sample> fmt::Debug for Batches<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("epochs", &self.epochs)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
