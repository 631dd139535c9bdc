//! The batches of one epoch or several, as a `futures::Stream`.

use super::ahead::Ahead;
use super::batch::{Batch, Sent};
use super::loader::Plan;
use super::reader::Reader;
use futures::Stream;
use futures::stream::FusedStream;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use warpline_runtime::{Error, ErrorKind, Result};

/// The batches of one epoch or several, in order: a `futures::Stream` of `Result<Batch>` that ends after the last one, or the first
/// error.
///
/// Reading begins at the first poll. Within a tokio runtime it goes on by itself on the blocking threads; without one, and on a
/// device that [runs in turns](warpline_runtime::Device::runs_in_turns), it is done in the polls: the same batches in the
/// same order.
///
/// A batch is yielded as soon as its copy is enqueued; [`Batch::copied`] tells when it has arrived. Asking for the next one waits
/// until this one's copy is over, so the host is never further ahead of the copies than that, and counts as having
/// observed it.
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
    /// The copies of the batch that was yielded last: its pinned memory goes round.
    last: Option<Sent>,
    waiting_since: Option<Instant>,
    stats: LoadStats,
}

enum State {
    New,
    Reading(Ahead),
    Over,
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
            last: None,
            waiting_since: None,
            stats: LoadStats::default(),
        }
    }

    /// The batches of any epoch, from its first one. The number goes into the shuffled order and the batches, and nowhere else.
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

    /// The figures so far.
    pub fn stats(&self) -> LoadStats {
        self.stats
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Batch>>> {
        if let State::New = self.state {
            self.state = State::Reading(Ahead::start(Reader::new(self.plan.clone(), self.epochs.clone())));
        }
        let State::Reading(ahead) = &mut self.state else { return Poll::Ready(Ok(None)) };
        if let Some(sent) = &mut self.last {
            let host = ready!(sent.as_mut().poll(cx));
            self.last = None;
            ahead.give_back(host?);
        }
        let Some(loaded) = ready!(ahead.poll(cx)) else { return Poll::Ready(Err(self.stopped())) };
        let loaded = loaded?;
        self.stats.reading += loaded.reading;
        Poll::Ready(Ok(loaded.batch.map(|(batch, sent)| {
            self.stats.batches += 1;
            self.stats.rows += batch.rows as u64;
            self.last = Some(sent);
            batch
        })))
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
            this.state = State::Over;
            this.last = None;
        }
        Poll::Ready(next.transpose())
    }
}

impl FusedStream for Batches {
    fn is_terminated(&self) -> bool {
        matches!(self.state, State::Over)
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
