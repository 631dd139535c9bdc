//! A slot runs one batch after another.

use crate::model::{Calls, Model, Tensors};
use crate::queue::{CallId, Source};
use crate::shared::{Batch, End, Outcome, Shared, TARGET, wake};
use crate::{Answer, Rows, ServeError};
use futures::FutureExt;
use std::any::Any;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{Instrument, Span};
use warpline_runtime::{ByteSize, Error, Event, Result, Stream, StreamLease};

/// A slot, and the stream on which it runs batches.
pub(crate) struct Slot<I: Rows, O: Rows> {
    shared: Arc<Shared<I, O>>,
    number: usize,
    lease: Option<StreamLease>,
    /// The end of the work on the stream of the lease before.
    ended: Option<Event>,
    /// Empty between batches: allocated once.
    wakers: Vec<Waker>,
    has_ended: bool,
}

impl<I: Rows, O: Rows> Drop for Slot<I, O> {
    fn drop(&mut self) {
        self.lease = None;
        // First of all: a call that is queued from now on ends itself, since no slot is left.
        self.shared.slot_has_ended();
        if !self.has_ended {
            // Its task was dropped, with the memory of a block. No call may wait for it.
            self.shared.end_all(End::Stopped);
        }
    }
}

/// The sizes of the first dimension that the model's tensors have.
#[derive(Clone, Copy)]
struct Seen {
    /// Of its outputs.
    rows: usize,
    /// Of its inputs: the rows, or the elements of rows of different lengths.
    inputs: usize,
}

/// The reason for which a batch has no outputs.
enum Failure {
    Error(Error),
    Panic(Arc<str>),
    /// All its callers have left.
    Unwanted,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Error(error)
    }
}

impl<I: Rows, O: Rows> Slot<I, O> {
    pub(crate) fn new(shared: Arc<Shared<I, O>>, number: usize) -> Self {
        Slot { shared, number, lease: None, ended: None, wakers: Vec::new(), has_ended: false }
    }

    /// Runs batches until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        let mut last_rows = None;
        while let Some((batch, since)) = self.shared.next_batch(self.number, last_rows).await {
            last_rows = Some(batch.calls.len());
            let span = self.span(&batch);
            self.run_batch(batch, since).instrument(span).await;
        }
        self.has_ended = true;
    }

    /// Returns the span of a batch, which follows from the spans of its callers.
    fn span(&self, batch: &Batch<I>) -> Span {
        let (batcher, rows) = (&*self.shared.label, batch.calls.len());
        let span = tracing::debug_span!(target: TARGET, parent: None, "batch", batcher, rows);
        if !span.is_disabled() {
            let callers = self.shared.queue.lock().spans(&batch.calls);
            for caller in callers {
                span.follows_from(caller);
            }
        }
        span
    }

    /// Runs a batch that was taken at `since`, and answers its calls.
    async fn run_batch(&mut self, mut batch: Box<Batch<I>>, since: Instant) {
        #[cfg(feature = "metrics")]
        {
            let waited = self.shared.queue.lock().waited(&batch.calls, since);
            self.shared.histograms.taken(batch.calls.len(), &waited);
        }
        self.make_moves(&mut batch);
        let (model, version) = self.shared.model.lock().clone();
        match self.compute(&mut batch, &model).await {
            Ok(outputs) => {
                let (mut rest, widths) = (O::uncut(outputs), self.shared.outputs.1);
                let rows = batch.calls.len();
                let row = || Ok(Answer { row: O::cut(&mut rest, widths), version, batch: rows });
                let time = since.elapsed();
                self.answer(&batch.calls, Some(time), row);
                #[cfg(feature = "metrics")]
                self.shared.histograms.ran(time);
            }
            Err(failure) => {
                // The stream may carry marks of writes that were refused.
                self.ended = self.lease.take().map(|lease| lease.record_event());
                self.answer(&batch.calls, None, || Err(failure.of_a_call()));
            }
        }
        let is_back = self.back(&mut batch).await;
        // It may have been replaced, and its drop is its author's.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(model)));
        match is_back {
            Ok(()) => self.shared.queue.lock().give_back(batch),
            Err(error) => self.shared.end_all(End::Failed(error)),
        }
    }

    /// Computes a batch, within a budget if batches have budgets. Returns its outputs on the host.
    async fn compute(&mut self, batch: &mut Batch<I>, model: &Model<I, O>) -> Result<O::Host, Failure> {
        let bytes = match (&self.shared.budget, model) {
            (Some(bytes), Model::Called(_)) => {
                let rows = self.seen(batch).inputs;
                catch_unwind(AssertUnwindSafe(|| bytes(rows)))
            }
            // A captured model has its memory.
            _ => return self.compute_within(batch, model).await,
        };
        let bytes = bytes.map_err(|panic| Failure::Panic(message_of(panic)))?;
        match self.shared.device.clone().budget(bytes).await {
            Ok(budget) => budget.scope(|| self.compute_within(batch, model)).await,
            Err(error) => Err(self.no_budget(batch.calls.len(), bytes, &error).into()),
        }
    }

    /// Returns the error of a batch whose budget was not granted.
    fn no_budget(&self, rows: usize, bytes: usize, error: &Error) -> Error {
        let text = format!(
            "the budget of {} for {rows} rows of \"{}\" was not granted: {error}",
            ByteSize(bytes),
            self.shared.label
        );
        Error::new(error.kind(), text)
    }

    /// Copies the rows to the device, runs the model, and copies its outputs to the host.
    async fn compute_within(
        &mut self,
        batch: &mut Batch<I>,
        model: &Model<I, O>,
    ) -> Result<O::Host, Failure> {
        if self.lease.is_none() {
            self.lease(model).await?;
        }
        let stream: &Stream = self.lease.as_ref().expect("it was leased");
        let (seen, buffers) = match model {
            Model::Captured(captured) => {
                let (rows, set) = captured.set(self.number, batch.calls.len());
                (Seen { rows, inputs: rows }, set.inputs.clone())
            }
            Model::Called(_) => {
                let (seen, widths) = (self.seen(batch), self.shared.seen_inputs().1);
                (seen, I::alloc(stream, widths, seen.inputs).await?)
            }
        };
        // After waiting for the stream and the memory.
        if !self.shared.queue.lock().is_wanted(&batch.calls) {
            return Err(Failure::Unwanted);
        }
        let host = self.prefix(batch, seen);
        batch.memory.sent = Some(I::send_into(&buffers, host, stream));
        let outputs = self.outputs(model, &buffers, (batch, seen), stream).await?;
        Ok(O::read(outputs, &self.shared.outputs.0, seen.rows, stream).await?)
    }

    /// Returns the memory that the model sees: the rows, and zeros behind them or, if rows have
    /// different lengths, one behind the other.
    fn prefix(&self, batch: &mut Batch<I>, seen: Seen) -> I::Host {
        let widths = self.shared.inputs.1;
        if let Some(packed) = &self.shared.packed {
            let mut host = whole(batch);
            I::pack(&mut host, widths, packed.element.1, &batch.lens);
            I::shorten(&mut host, packed.element.1, seen.inputs);
            return host;
        }
        batch.cut_up_to(seen.rows);
        let unused = &mut batch.rows[batch.calls.len()..seen.rows];
        unused.iter_mut().for_each(|row| I::clear(row.memory_mut(), widths));
        let mut host = whole(batch);
        I::shorten(&mut host, widths, seen.inputs);
        host
    }

    /// Returns what a model that is called sees.
    fn seen(&self, batch: &Batch<I>) -> Seen {
        let rows = batch.calls.len();
        match &self.shared.packed {
            Some(_) => Seen { rows, inputs: batch.lens.iter().sum() },
            None if self.shared.has_fixed_rows => {
                Seen { rows: self.shared.max_rows, inputs: self.shared.max_rows }
            }
            None => Seen { rows, inputs: rows },
        }
    }

    /// Runs the model.
    async fn outputs(
        &self,
        model: &Model<I, O>,
        buffers: &I::Buffers,
        (batch, seen): (&mut Batch<I>, Seen),
        stream: &Stream,
    ) -> Result<Tensors<O>, Failure> {
        match model {
            Model::Captured(captured) => {
                let (_, set) = captured.set(self.number, batch.calls.len());
                set.graph.launch(stream).queued()?;
                Ok(set.outputs.clone())
            }
            Model::Called(model) => {
                let inputs = I::tensors(buffers, &self.shared.seen_inputs().0, seen.inputs);
                let calls = Calls { rows: batch.calls.len(), lens: take(&mut batch.lens) };
                let work = stream.scope(|| model(stream.clone(), inputs, calls));
                match AssertUnwindSafe(work).catch_unwind().await {
                    Ok(outputs) => Ok(outputs?),
                    Err(panic) => Err(Failure::Panic(message_of(panic))),
                }
            }
        }
    }

    /// Waits until a batch's copies have ended, and puts its memory back, or other memory if it
    /// was lost.
    async fn back(&self, batch: &mut Batch<I>) -> Result<()> {
        let host = match batch.memory.sent.take() {
            Some(copies) => I::sent(copies).await,
            None => Ok(whole(batch)),
        };
        let host = match host {
            Ok(host) => host,
            // A copy that is refused late does not return its memory.
            Err(_) => I::pinned(&self.shared.device, self.shared.inputs.1, self.shared.max_rows).await?,
        };
        batch.memory.rest = Some(I::uncut(host));
        Ok(())
    }

    /// Leases a stream, a new one after a batch that failed.
    async fn lease(&mut self, model: &Model<I, O>) -> Result<()> {
        let lease = self.shared.pool.lease().await?;
        // The buffers of a captured model are the same again.
        if let (Model::Captured(_), Some(ended)) = (model, self.ended.take()) {
            lease.wait_event(&ended);
        }
        self.lease = Some(lease);
        Ok(())
    }

    /// Answers the calls of a batch that was computed in this time, or that was not computed.
    fn answer(
        &mut self,
        calls: &[CallId],
        computed_in: Option<Duration>,
        mut outcome: impl FnMut() -> Outcome<O>,
    ) {
        let mut unwanted = Vec::new();
        let mut queue = self.shared.queue.lock();
        for call in calls {
            match queue.answer(*call, outcome()) {
                Ok(waker) => self.wakers.extend(waker),
                Err(outcome) => unwanted.push(outcome),
            }
        }
        // A batch that was not computed says nothing about the time that the next one needs.
        self.wakers.extend(computed_in.and_then(|time| queue.ran(time)));
        drop(queue);
        if computed_in.is_some() {
            self.shared.counts.computed(calls.len() - unwanted.len(), unwanted.len());
        }
        drop(unwanted);
        wake(self.wakers.drain(..));
    }

    /// Copies rows so that they are a prefix of the batch's memory.
    fn make_moves(&self, batch: &mut Batch<I>) {
        let mut emptied = Vec::new();
        for step in batch.moves.drain(..) {
            match step.from {
                Source::Row(row) => {
                    let (to, from) = batch.rows.split_at_mut(row);
                    I::copy(from[0].memory_mut(), to[step.to].memory_mut());
                }
                Source::Later(at, row) => {
                    I::copy(&row, batch.rows[step.to].memory_mut());
                    emptied.push((at, row));
                }
            }
        }
        if !emptied.is_empty() {
            let waker = self.shared.queue.lock().moved(emptied);
            wake(waker);
        }
        self.shared.permits.add_permits(batch.calls.len());
    }
}

impl Failure {
    fn of_a_call(&self) -> ServeError {
        match self {
            Failure::Error(error) => ServeError::of_batch(error),
            Failure::Panic(message) => ServeError::Panicked(message.clone()),
            // No call gets it.
            Failure::Unwanted => ServeError::Late,
        }
    }
}

/// Makes one buffer of a batch's rows and the rest of its block.
fn whole<I: Rows>(batch: &mut Batch<I>) -> I::Host {
    batch.rows.clear();
    let rest = batch.memory.rest.take().and_then(I::whole);
    rest.expect("a batch has all rows of its block")
}

/// Returns the message of a panic.
fn message_of(panic: Box<dyn Any + Send>) -> Arc<str> {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("a value that is no text").into();
    // Its drop is its author's, as the model is.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
    text
}
