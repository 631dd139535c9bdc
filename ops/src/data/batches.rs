//! The batches of one epoch or several, as a `futures::Stream`.

use super::ahead::Ahead;
use super::batch::{Batch, Sent, send};
use super::loader::Plan;
use super::reader::{Loaded, Reader};
use futures::stream::{FusedStream, Next};
use futures::{Stream, StreamExt};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use warpline_runtime::{Error, ErrorKind, Result};

/// The batches of one epoch or several, in order: a `futures::Stream` of `Result<Batch>` that ends after the last one, or the first
/// error.
///
/// Reading begins at the first poll. Within a tokio runtime it goes on by itself on the blocking threads; without one, and on a
/// device that [runs in turns](warpline_runtime::Device::runs_in_turns), it is done in the polls: the same batches in the
/// same order. A current-thread tokio runtime that is entered but not driven never reads, and the first batch never comes: poll
/// inside its `block_on`.
///
/// A batch is yielded as soon as its copy is enqueued; [`Batch::copied`] tells when it has arrived. Copies are enqueued when this is
/// polled and at no other time, those of all batches that have been read by then. Nothing of this counts as observed: a use of a
/// batch needs its edge, however late it comes. Where that is `wait_event(&batch.copied)`, verdicts are the same at any speed of
/// the reader; `wait_stream` of the copy stream also orders after the batches that happen to be read by then.
///
/// # Cancel safety
/// `next()` and its like lose nothing when they are dropped: the batch comes at the next call. Dropping the stream stops the
/// reader at the next row; what is in flight goes on and its memory is recycled.
///
/// # Errors
/// `Data` from the dataset, also if it panics or an epoch has no batch; `OutOfMemory`; the device's fault; `Closed` if the tokio
/// runtime was shut down.
#[must_use = "streams do nothing unless polled"]
pub struct Batches {
    plan: Arc<Plan>,
    epochs: Range<u64>,
    state: State,
    /// On their way to the device, to be yielded.
    ready: VecDeque<(Batch, Sent)>,
    /// The copies of batches that were yielded: their pinned memory goes round.
    sent: VecDeque<Sent>,
    /// Comes after the batches before it.
    error: Option<Error>,
    waiting_since: Option<Instant>,
    stats: LoadStats,
}

enum State {
    New,
    Reading(Ahead),
    /// The reader has ended; batches or the error may still have to be yielded.
    Over,
    /// The end or the error was yielded.
    Ended,
}

/// What has been loaded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadStats {
    /// Batches yielded.
    pub batches: u64,
    /// Rows in them.
    pub rows: u64,
    /// Reading, decoding and shuffling, wherever that was done. Copies are not in it.
    pub reading: Duration,
    /// The consumer's waiting: from each poll that found no batch to the one that found it. With reading on other threads, what
    /// loading costs a step; where polls do the reading, that is in `reading` alone.
    pub waiting: Duration,
}

impl Batches {
    pub(super) fn new(plan: Arc<Plan>, epochs: Range<u64>) -> Self {
        Batches {
            plan,
            epochs,
            state: State::New,
            ready: VecDeque::new(),
            sent: VecDeque::new(),
            error: None,
            waiting_since: None,
            stats: LoadStats::default(),
        }
    }

    /// The batches of any epoch, from its first one. The number goes into the shuffled order and the batches, and nowhere else.
    /// The last epoch is `u64::MAX - 1`: that of `u64::MAX` is over at once.
    pub fn epoch(&self, epoch: u64) -> Batches {
        Batches::new(self.plan.clone(), epoch..epoch.saturating_add(1))
    }

    /// The batches of one epoch after the other, the same as [`epoch`](Self::epoch) gives for each. [`Batch::epoch`] tells them
    /// apart.
    ///
    /// Reading goes on at the same pace from epoch to epoch: while the shuffle buffer of one runs empty, that of the next fills.
    /// So there can be twice [`shuffle_capacity`](super::Loader::shuffle_capacity) rows in the host's memory, and only the first
    /// epoch begins with waiting for a full buffer.
    pub fn epochs(&self, epochs: Range<u64>) -> Batches {
        Batches::new(self.plan.clone(), epochs)
    }

    /// Waits for the next batch: `None` after the last one, and after an error.
    ///
    /// Does what `StreamExt::next` of the crate `futures` does, without importing it.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the batch comes at the next call.
    ///
    /// # Errors
    /// The errors of the dataset and the device; nothing comes after one.
    ///
    /// # Examples
    /// ```
    /// # use warpline_ops::data::{InMemory, Loader};
    /// # fn main() -> warpline_runtime::Result<()> {
    /// # futures::executor::block_on(async {
    /// let mut batches = Loader::new(InMemory::new(1, vec![0.5; 5], vec![0; 5])?).batch_size(2).build()?;
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

    /// The figures so far.
    pub fn stats(&self) -> LoadStats {
        self.stats
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Batch>>> {
        if let State::New = self.state {
            self.state = State::Reading(Ahead::start(Reader::new(self.plan.clone(), self.epochs.clone())));
        }
        loop {
            self.recycle()?;
            let State::Reading(ahead) = &mut self.state else { return self.poll_rest(cx) };
            // Everything that has been read goes on its way, not only what is yielded next. Who has something to yield will not
            // wait, and a reader that wakes it then does so for nothing.
            let mut nobody = Context::from_waker(Waker::noop());
            match ahead.poll(if self.ready.is_empty() { cx } else { &mut nobody }) {
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
                // The reader has what it needs and will wake us.
                Poll::Pending if self.sent.len() <= self.plan.loader.prefetch => return Poll::Pending,
                // It has no memory to read into: the next copy that is over has to wake us.
                Poll::Pending => {
                    let Some(sent) = self.sent.front_mut() else { return Poll::Pending };
                    let host = ready!(sent.poll(cx))?;
                    self.sent.pop_front();
                    ahead.give_back(host);
                }
            }
        }
    }

    /// Puts what was read on its way. `false`: it was the end.
    fn start(&mut self, loaded: Loaded) -> Result<bool> {
        self.stats.reading += loaded.reading;
        let Some(read) = loaded.batch else { return Ok(false) };
        self.ready.push_back(send(&self.plan.stream, read)?);
        Ok(true)
    }

    /// What is left when everything was read: batches, then the error if there was one. At the end all pinned memory is back in its
    /// pool, where the next epoch finds it.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Batch>>> {
        if self.ready.is_empty() {
            while let Some(sent) = self.sent.front_mut() {
                ready!(sent.poll(cx))?;
                self.sent.pop_front();
            }
        }
        Poll::Ready(match self.yield_next() {
            None => self.error.take().map_or(Ok(None), Err),
            batch => Ok(batch),
        })
    }

    /// Gives the reader the pinned memory of yielded batches whose copies are over. That of batches that are still to be yielded
    /// stays with them: it is what bounds how many there are.
    fn recycle(&mut self) -> Result<()> {
        let State::Reading(ahead) = &mut self.state else { return Ok(()) };
        while let Some(sent) = self.sent.front_mut()
            && sent.is_done()?
            && let Poll::Ready(host) = sent.poll(&mut Context::from_waker(Waker::noop()))
        {
            self.sent.pop_front();
            ahead.give_back(host?);
        }
        Ok(())
    }

    fn yield_next(&mut self) -> Option<Batch> {
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
                "epochs {}..{} ended after {} batches: the tokio runtime that read them was shut down; keep it for as long as \
                 there are batches to come",
                self.epochs.start, self.epochs.end, self.stats.batches
            ),
        )
    }
}

impl Stream for Batches {
    type Item = Result<Batch>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Batch>>> {
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
            this.ready.clear();
            this.sent.clear();
        }
        Poll::Ready(next.transpose())
    }
}

impl FusedStream for Batches {
    /// Whether the end or an error was yielded: from then on there is nothing but `None`.
    fn is_terminated(&self) -> bool {
        matches!(self.state, State::Ended)
    }
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("epochs", &self.epochs)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
