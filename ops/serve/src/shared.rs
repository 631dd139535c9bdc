//! The state that the callers of a batcher and its slots share.

#[cfg(feature = "metrics")]
use crate::histograms::Histograms;
use crate::model::Model;
use crate::queue::{self, BlockMemory, Next, Queue};
#[cfg(feature = "metrics")]
use crate::stats::BatcherStats;
use crate::stats::Counts;
use crate::{Answer, Rows, ServeError};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::mem::replace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};
use warpline_runtime::{Device, Error, Result, StreamPool};

/// The target of the spans of batches.
pub(crate) const TARGET: &str = "warpline::serve";

pub(crate) type Outcome<O> = Result<Answer<O>, ServeError>;
pub(crate) type Batch<I> = queue::Block<Block<I>>;

/// Pinned memory of a block. A slot that runs a batch takes it out.
pub(crate) struct Block<I: Rows> {
    /// The memory that is not cut into rows.
    pub(crate) rest: Option<I::Row>,
    /// The copies of a batch to the device, which have all of the memory.
    pub(crate) sent: Option<I::Sent>,
    widths: I::Widths,
}

impl<I: Rows> Block<I> {
    pub(crate) fn of(host: I::Host, widths: I::Widths) -> Self {
        Block { rest: Some(I::uncut(host)), sent: None, widths }
    }
}

impl<I: Rows> BlockMemory for Block<I> {
    type Row = I::Row;

    #[inline]
    fn cut(&mut self) -> I::Row {
        I::cut(self.rest.as_mut().expect("no slot has it"), self.widths)
    }
}

/// The reason for which a batcher takes no more calls.
#[derive(Clone)]
pub(crate) enum End {
    Draining,
    Failed(Error),
    Stopped,
}

impl End {
    pub(crate) fn error(&self) -> ServeError {
        match self {
            End::Draining => ServeError::Draining,
            End::Failed(error) => ServeError::Failed(error.clone()),
            End::Stopped => ServeError::Stopped,
        }
    }
}

/// The rows of a batcher with rows of different lengths.
pub(crate) struct Packed<I: Rows> {
    /// The length of the longest row, for which each row has memory.
    pub(crate) longest: usize,
    /// The shapes and the widths of an element of each input.
    pub(crate) element: (I::Shapes, I::Widths),
}

/// From the number of a batch's rows to the bytes of device memory that it needs.
pub(crate) type BudgetOf = dyn Fn(usize) -> usize + Send + Sync;

/// The state of a batcher, which its handles, its calls and its slots hold.
pub(crate) struct Shared<I: Rows, O: Rows> {
    pub(crate) device: Device,
    pub(crate) pool: StreamPool,
    pub(crate) max_rows: usize,
    pub(crate) in_flight: usize,
    pub(crate) max_queued: usize,
    pub(crate) has_fixed_rows: bool,
    pub(crate) inputs: (I::Shapes, I::Widths),
    /// `None` if all rows have one length.
    pub(crate) packed: Option<Packed<I>>,
    pub(crate) outputs: (O::Shapes, O::Widths),
    /// The time at which the batcher was built, if nothing depends on how long rows wait.
    pub(crate) built: Option<Instant>,
    pub(crate) label: Arc<str>,
    /// The bytes of device memory that a batch of so many rows needs, if batches have budgets.
    pub(crate) budget: Option<Box<BudgetOf>>,
    pub(crate) counts: Counts,
    #[cfg(feature = "metrics")]
    pub(crate) histograms: Histograms,
    /// The figures that an exporter has got.
    #[cfg(feature = "metrics")]
    pub(crate) recorded: Mutex<BatcherStats>,
    pub(crate) queue: Mutex<Queue<Block<I>, Outcome<O>>>,
    /// A permit for each row that may still be queued.
    pub(crate) permits: Arc<Semaphore>,
    /// The model and its version. It is replaced and dropped without the lock.
    pub(crate) model: Mutex<(Arc<Model<I, O>>, u64)>,
    /// The reason for which the queue is closed, if it is.
    pub(crate) end: Mutex<End>,
    /// The number of slots that have not ended.
    pub(crate) slots: AtomicUsize,
    pub(crate) slot_ended: Notify,
}

impl<I: Rows, O: Rows> Shared<I, O> {
    /// Returns the time at which a row counts as queued. If nothing depends on it, any time in the
    /// past will do, and the clock need not be read.
    pub(crate) fn now(&self) -> Instant {
        self.built.unwrap_or_else(Instant::now)
    }

    /// Returns the number of rows that count against `max_queued`.
    pub(crate) fn queued(&self) -> usize {
        self.max_queued - self.permits.available_permits()
    }

    /// Returns the shapes and the widths of the inputs that the model sees, without the first
    /// dimension.
    pub(crate) fn seen_inputs(&self) -> &(I::Shapes, I::Widths) {
        self.packed.as_ref().map_or(&self.inputs, |packed| &packed.element)
    }

    /// Returns the length of a row in the queue, and the widths of that length.
    pub(crate) fn lengths(&self, given: Option<usize>) -> Result<(usize, I::Widths), ServeError> {
        match (&self.packed, given) {
            (None, None) => Ok((0, self.inputs.1)),
            (None, Some(given)) => Err(ServeError::Length { given, longest: None }),
            (Some(packed), given) => match given.unwrap_or(packed.longest) {
                len if (1..=packed.longest).contains(&len) => Ok((len, I::times(packed.element.1, len))),
                given => Err(ServeError::Length { given, longest: Some(packed.longest) }),
            },
        }
    }

    /// Returns the error for a call for which there is no permit.
    pub(crate) fn why_not_queued(&self) -> ServeError {
        let is_closed = self.queue.lock().is_closed();
        if is_closed { self.end.lock().error() } else { ServeError::Full { max_queued: self.max_queued } }
    }

    /// Takes no further calls.
    pub(crate) fn close(&self) {
        let waker = self.queue.lock().close();
        self.permits.close();
        wake(waker);
    }

    /// Ends all calls, those of running batches too, unless they have an answer.
    pub(crate) fn end_all(&self, end: End) {
        {
            let mut current = self.end.lock();
            if matches!(*current, End::Draining) {
                *current = end;
            }
        }
        self.close();
        self.end_queued();
        let end = self.end.lock().clone();
        let wakers = self.queue.lock().end_running(|| Err(end.error()));
        wake(wakers);
    }

    /// Refuses the queued calls of a closed queue. Returns their number, and that of the running
    /// calls.
    pub(crate) fn end_queued(&self) -> (usize, usize) {
        let end = self.end.lock().clone();
        let ((wakers, freed), running) = {
            let mut queue = self.queue.lock();
            (queue.end_queued(|| Err(end.error())), queue.running())
        };
        self.permits.add_permits(freed);
        wake(wakers);
        (freed, running)
    }

    /// Returns whether a slot has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.slots.load(Ordering::Acquire) > 0
    }

    /// Waits for the next batch, for a slot that has just run one of `last_rows` rows, or none
    /// yet. Returns it with the time at which it was taken, or `None` when the queue is closed and
    /// empty.
    pub(crate) async fn next_batch(
        &self,
        slot: usize,
        last_rows: Option<usize>,
    ) -> Option<(Box<Batch<I>>, Instant)> {
        // If another slot waits for rows, none is queued that waits for a slot.
        let mut at_once = last_rows.is_some() && !self.queue.lock().has_taker();
        let mut timer = pin!(None);
        // After a batch of one row, no other caller is likely to run first.
        let is_alone = last_rows == Some(1);
        let mut has_yielded = is_alone;
        poll_fn(|cx| {
            // The callers that were woken with this slot, or by it, run first: their rows are then
            // in this batch.
            if !replace(&mut has_yielded, true) && self.queue.lock().is_filling() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            loop {
                let now = Instant::now();
                let take = self.queue.lock().take(slot, now, at_once, cx.waker());
                at_once = false;
                self.permits.add_permits(take.freed);
                wake(take.wakers);
                match take.next {
                    Next::Batch(batch) => return Poll::Ready(Some((batch, now))),
                    Next::End => return Poll::Ready(None),
                    Next::Wait(None) => break,
                    Next::Wait(Some(at)) => {
                        timer.set(Some(sleep_until(at)));
                        let timer = timer.as_mut().as_pin_mut().expect("it was set");
                        if timer.poll(cx).is_pending() {
                            break;
                        }
                    }
                }
            }
            has_yielded = is_alone;
            Poll::Pending
        })
        .await
    }

    pub(crate) fn slot_has_ended(&self) {
        self.slots.fetch_sub(1, Ordering::AcqRel);
        self.slot_ended.notify_waiters();
    }

    /// Waits until all slots have ended.
    pub(crate) async fn ended(&self) {
        loop {
            let mut ended = pin!(self.slot_ended.notified());
            ended.as_mut().enable();
            if !self.is_running() {
                return;
            }
            ended.await;
        }
    }
}

/// A handle of a batcher, which its clones and its calls share. The batcher ends with the last
/// one.
pub(crate) struct Handle<I: Rows, O: Rows> {
    pub(crate) shared: Arc<Shared<I, O>>,
}

impl<I: Rows, O: Rows> Drop for Handle<I, O> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Wakes tasks. No lock is held. If a waker panics, the others are woken.
pub(crate) fn wake(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            tracing::error!(target: TARGET, "a task's waker panicked; the others were woken");
        }
    }
}
