//! A call: one row to a batch, and one answer back.

use crate::queue::{CallId, Claim, Ended};
use crate::shared::{Handle, Outcome, Shared, TARGET, wake};
use crate::{Answer, Rows, ServeError, WriterError};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::{Level, Span, enabled};

/// A call that was submitted; from [`Batcher::submit`](crate::Batcher::submit).
///
/// # Cancel safety
/// Dropping it leaves the batch. If the batch has not been taken by a slot, the row is free for
/// another call. Otherwise the answer is dropped. A batch that all its callers have left before it
/// was enqueued is not run.
#[must_use = "a call does nothing unless it is awaited"]
pub struct Submit<I: Rows, O: Rows, W> {
    handle: Arc<Handle<I, O>>,
    writer: Option<W>,
    /// For its row, if it was reserved.
    permit: Option<OwnedSemaphorePermit>,
    len: Option<usize>,
    deadline: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    call: Option<CallId>,
}

// Nothing is pinned in place: the timer has a box of its own.
impl<I: Rows, O: Rows, W> Unpin for Submit<I, O, W> {}

impl<I: Rows, O: Rows, W> Submit<I, O, W> {
    pub(crate) fn new(handle: Arc<Handle<I, O>>, writer: W) -> Self {
        Submit {
            handle,
            writer: Some(writer),
            permit: None,
            len: None,
            deadline: None,
            timer: None,
            call: None,
        }
    }

    /// Adds a permit that was reserved.
    #[cfg(feature = "tower")]
    pub(crate) fn with(mut self, permit: OwnedSemaphorePermit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Sets the length of the row, for a batcher that was built with
    /// [`build_packed`](crate::BatcherBuilder::build_packed). Its writer gets slices of so many
    /// elements. By default a row has the most that it may have.
    ///
    /// The call fails with [`ServeError::Length`] if no row can have this length.
    pub fn length(mut self, elements: usize) -> Self {
        self.len = Some(elements);
        self
    }

    /// Sets the time by which the caller needs the answer.
    ///
    /// The call fails with [`ServeError::Late`] at that time. It fails earlier if even the fastest
    /// of the last batches would not answer by then, so that no batch is spent on it. A slot
    /// without a batch takes this row before `max_wait` if the deadline demands that, by the
    /// slowest of the last batches.
    ///
    /// A call with a deadline has to be polled inside the tokio runtime in which it was polled
    /// first.
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

impl<I, O, W> Submit<I, O, W>
where
    I: Rows,
    O: Rows,
    W: FnOnce(I::Slots<'_>) -> Result<(), WriterError>,
{
    /// Claims a row, writes it and queues it.
    fn queue(&mut self, writer: W, cx: &mut Context<'_>) -> Result<CallId, ServeError> {
        let shared = &self.handle.shared;
        let reserved = self.permit.take();
        let (len, used) = shared.lengths(self.len)?;
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(ServeError::Late);
        }
        let span = if enabled!(target: TARGET, Level::DEBUG) { Span::current().id() } else { None };
        // From here on the queue counts the permit.
        match reserved {
            Some(permit) => permit.forget(),
            None => shared.permits.try_acquire().map_err(|_| shared.why_not_queued())?.forget(),
        }
        let claim = shared.queue.lock().claim(len, self.deadline, span);
        let mut claimed = Claimed { shared, claim };
        let Some(claim) = &mut claimed.claim else {
            shared.permits.add_permits(1);
            return Err(shared.end.lock().error());
        };
        I::clear(&mut claim.memory, used);
        writer(I::slots(&mut claim.memory, used)).map_err(ServeError::Writer)?;
        // Before the claim is taken out: cloning a waker may panic.
        let (now, waker) = (shared.now(), cx.waker().clone());
        let claim = claimed.claim.take().expect("it is queued once");
        let call = claim.call;
        let slot = shared.queue.lock().queue(claim, now, waker);
        wake(slot);
        if !shared.is_running() {
            // The slots have ended while the row was written, and have not seen it.
            shared.end_queued();
        }
        Ok(call)
    }
}

/// A row that is being written. If the writer fails or panics, the row is free again.
struct Claimed<'a, I: Rows, O: Rows> {
    shared: &'a Shared<I, O>,
    claim: Option<Claim<I::Row>>,
}

impl<I: Rows, O: Rows> Drop for Claimed<'_, I, O> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            if std::thread::panicking() {
                self.shared.counts.writer_panicked();
            }
            let slot = self.shared.queue.lock().abandon(claim);
            self.shared.permits.add_permits(1);
            wake(slot);
        }
    }
}

impl<I, O, W> Future for Submit<I, O, W>
where
    I: Rows,
    O: Rows,
    W: FnOnce(I::Slots<'_>) -> Result<(), WriterError>,
{
    type Output = Result<Answer<O>, ServeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.poll_outcome(cx);
        if let Poll::Ready(Err(error)) = &polled {
            self.handle.shared.counts.failed(error);
        }
        polled
    }
}

impl<I, O, W> Submit<I, O, W>
where
    I: Rows,
    O: Rows,
    W: FnOnce(I::Slots<'_>) -> Result<(), WriterError>,
{
    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<O>> {
        if let Some(writer) = self.writer.take() {
            // First of all, since this panics outside of tokio.
            if let Some(deadline) = self.deadline {
                self.timer = Some(Box::pin(sleep_until(deadline)));
            }
            self.call = Some(self.queue(writer, cx)?);
            if self.timer.is_none() {
                return Poll::Pending;
            }
        }
        let call = self.call.expect("it is not polled after its end");
        let polled = self.handle.shared.queue.lock().poll_answer(call, cx.waker());
        let ended = match polled {
            Ok(ended) => ended,
            Err(replaced) => {
                drop(replaced);
                // Without a deadline it waits for the answer alone.
                let Some(timer) = &mut self.timer else { return Poll::Pending };
                ready!(timer.as_mut().poll(cx));
                self.leave();
                return Poll::Ready(Err(ServeError::Late));
            }
        };
        self.call = None;
        Poll::Ready(match ended {
            Ended::Answered(outcome) => outcome,
            Ended::Late => Err(ServeError::Late),
        })
    }
}

impl<I: Rows, O: Rows, W> Submit<I, O, W> {
    /// Leaves, unless the call has ended. Returns whether its row was not computed.
    fn leave(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        let shared = &self.handle.shared;
        let mut left = shared.queue.lock().leave(call);
        if left.was_queued {
            shared.permits.add_permits(1);
        }
        wake(left.slot.take());
        !matches!(left.ended, Some(Ended::Answered(Ok(_))))
    }
}

impl<I: Rows, O: Rows, W> Drop for Submit<I, O, W> {
    fn drop(&mut self) {
        if self.call.is_some() && self.leave() {
            self.handle.shared.counts.left();
        }
    }
}
