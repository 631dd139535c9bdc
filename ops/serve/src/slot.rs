//! A slot runs one batch after another.

use crate::model::{Calls, Model, Tensors};
use crate::queue::{BlockMemory, CallId, Source};
use crate::shared::{Batch, Block, End, Outcome, Shared, TARGET, wake};
use crate::{Answer, Rows, ServeError};
use futures::FutureExt;
use std::any::Any;
use std::iter::repeat_with;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{Instrument, Span};
use warpline_runtime::{ByteSize, Error, Event, Result, Stream, StreamLease};

/// A slot, and the calls of the batch that it runs.
pub(crate) struct Slot<I: Rows, O: Rows> {
    shared: Arc<Shared<I, O>>,
    number: usize,
    calls: Vec<CallId>,
    lease: Option<StreamLease>,
    /// The end of the work on the stream of the lease before.
    ended: Option<Event>,
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

/// The place of a batch's pinned memory.
enum Sent<I: Rows> {
    Not((Vec<I::Row>, Block<I>)),
    /// With the copies to the device.
    Copied(I::Sent),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Error(error)
    }
}

impl<I: Rows, O: Rows> Slot<I, O> {
    pub(crate) fn new(shared: Arc<Shared<I, O>>, number: usize) -> Self {
        Slot { shared, number, calls: Vec::new(), lease: None, ended: None, has_ended: false }
    }

    /// Runs batches until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        let mut last_rows = None;
        while let Some(batch) = self.shared.next_batch(self.number, last_rows).await {
            last_rows = Some(batch.calls.len());
            let span = self.span(&batch);
            self.run_batch(batch).instrument(span).await;
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

    /// Runs a batch and answers its calls.
    async fn run_batch(&mut self, mut batch: Batch<I>) {
        let since = Instant::now();
        #[cfg(feature = "metrics")]
        {
            let waited = self.shared.queue.lock().waited(&batch.calls, since);
            self.shared.histograms.taken(batch.calls.len(), &waited);
        }
        self.make_moves(&mut batch);
        let Batch::<I> { rows: cut, rest, calls, lens, .. } = batch;
        let rows = calls.len();
        self.calls = calls;
        let (model, version) = self.shared.model.lock().clone();
        let sent = match self.compute((cut, rest), Calls { rows, lens }, &model).await {
            (Ok(outputs), sent) => {
                let (mut rest, widths) = (O::uncut(outputs), self.shared.outputs.1);
                let row = || Ok(Answer { row: O::cut(&mut rest, widths), version, batch: rows });
                let time = since.elapsed();
                self.answer(Some(time), repeat_with(row));
                #[cfg(feature = "metrics")]
                self.shared.histograms.ran(time);
                sent
            }
            (Err(failure), sent) => {
                // The stream may carry marks of writes that were refused.
                self.ended = self.lease.take().map(|lease| lease.record_event());
                self.answer(None, repeat_with(|| Err(failure.of_a_call())));
                sent
            }
        };
        let memory = self.back(sent).await;
        // It may have been replaced, and its drop is its author's.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(model)));
        match memory {
            Ok(memory) => self.shared.queue.lock().give_back(memory),
            Err(error) => self.shared.end_all(End::Failed(error)),
        }
    }

    /// Computes a batch, within a budget if batches have budgets. Returns its outputs on the host,
    /// and where the batch's memory is.
    async fn compute(
        &mut self,
        memory: (Vec<I::Row>, Block<I>),
        calls: Calls,
        model: &Model<I, O>,
    ) -> (Result<O::Host, Failure>, Sent<I>) {
        let bytes = match (&self.shared.budget, model) {
            (Some(bytes), Model::Called(_)) => {
                let rows = self.seen(&calls).inputs;
                catch_unwind(AssertUnwindSafe(|| bytes(rows)))
            }
            // A captured model has its memory.
            _ => return self.compute_within(memory, calls, model).await,
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(panic) => return (Err(Failure::Panic(message_of(panic))), Sent::Not(memory)),
        };
        match self.shared.device.clone().budget(bytes).await {
            Ok(budget) => budget.scope(|| self.compute_within(memory, calls, model)).await,
            Err(error) => (Err(self.no_budget(&calls, bytes, &error).into()), Sent::Not(memory)),
        }
    }

    /// Returns the error of a batch whose budget was not granted.
    fn no_budget(&self, calls: &Calls, bytes: usize, error: &Error) -> Error {
        let text = format!(
            "the budget of {} for {} rows of \"{}\" was not granted: {error}",
            ByteSize(bytes),
            calls.rows,
            self.shared.label
        );
        Error::new(error.kind(), text)
    }

    /// Copies the rows to the device, runs the model, and copies its outputs to the host.
    async fn compute_within(
        &mut self,
        memory: (Vec<I::Row>, Block<I>),
        calls: Calls,
        model: &Model<I, O>,
    ) -> (Result<O::Host, Failure>, Sent<I>) {
        let stream = match self.stream(model).await {
            Ok(stream) => stream,
            Err(error) => return (Err(error.into()), Sent::Not(memory)),
        };
        let (seen, buffers) = match self.buffers(model, &calls, &stream).await {
            Ok(buffers) => buffers,
            Err(error) => return (Err(error.into()), Sent::Not(memory)),
        };
        // After waiting for the stream and the memory.
        if !self.is_wanted() {
            return (Err(Failure::Unwanted), Sent::Not(memory));
        }
        let host = self.prefix(memory, &calls, seen);
        let sent = Sent::Copied(I::send_into(&buffers, host, &stream));
        let outputs = self.outputs(model, &buffers, (calls, seen), &stream).await;
        let host = match outputs {
            Ok(outputs) => {
                O::read(outputs, &self.shared.outputs.0, seen.rows, &stream).await.map_err(Failure::from)
            }
            Err(failure) => Err(failure),
        };
        (host, sent)
    }

    /// Returns the memory that the model sees: the rows, and zeros behind them or, if rows have
    /// different lengths, one behind the other.
    fn prefix(&self, (mut cut, mut rest): (Vec<I::Row>, Block<I>), calls: &Calls, seen: Seen) -> I::Host {
        let widths = self.shared.inputs.1;
        let Some(packed) = &self.shared.packed else {
            while cut.len() < seen.rows {
                cut.push(rest.cut());
            }
            cut[calls.rows..seen.rows].iter_mut().for_each(|row| I::clear(row, widths));
            let mut host = whole((cut, rest));
            I::shorten(&mut host, widths, seen.inputs);
            return host;
        };
        let mut host = whole((cut, rest));
        I::pack(&mut host, widths, packed.element.1, &calls.lens);
        I::shorten(&mut host, packed.element.1, seen.inputs);
        host
    }

    /// Returns what the model sees of the batch, and device memory for its inputs.
    async fn buffers(
        &self,
        model: &Model<I, O>,
        calls: &Calls,
        stream: &Stream,
    ) -> Result<(Seen, I::Buffers)> {
        match model {
            Model::Captured(captured) => {
                let (size, set) = captured.set(self.number, calls.rows);
                Ok((Seen { rows: size, inputs: size }, set.inputs.clone()))
            }
            Model::Called(_) => {
                let (seen, (_, widths)) = (self.seen(calls), self.shared.seen_inputs());
                Ok((seen, I::alloc(stream, *widths, seen.inputs).await?))
            }
        }
    }

    /// Returns what a model that is called sees.
    fn seen(&self, calls: &Calls) -> Seen {
        match &self.shared.packed {
            Some(_) => Seen { rows: calls.rows, inputs: calls.lens.iter().sum() },
            None if self.shared.has_fixed_rows => {
                Seen { rows: self.shared.max_rows, inputs: self.shared.max_rows }
            }
            None => Seen { rows: calls.rows, inputs: calls.rows },
        }
    }

    /// Runs the model.
    async fn outputs(
        &self,
        model: &Model<I, O>,
        buffers: &I::Buffers,
        (calls, seen): (Calls, Seen),
        stream: &Stream,
    ) -> Result<Tensors<O>, Failure> {
        match model {
            Model::Captured(captured) => {
                let (_, set) = captured.set(self.number, calls.rows);
                set.graph.launch(stream).queued()?;
                Ok(set.outputs.clone())
            }
            Model::Called(model) => {
                let inputs = I::tensors(buffers, &self.shared.seen_inputs().0, seen.inputs);
                let work = stream.scope(|| model(stream.clone(), inputs, calls));
                match AssertUnwindSafe(work).catch_unwind().await {
                    Ok(outputs) => Ok(outputs?),
                    Err(panic) => Err(Failure::Panic(message_of(panic))),
                }
            }
        }
    }

    /// Returns the memory of a batch once its copies have ended, or other memory if it was lost.
    async fn back(&self, sent: Sent<I>) -> Result<Block<I>> {
        let widths = self.shared.inputs.1;
        let host = match sent {
            Sent::Not(memory) => Ok(whole(memory)),
            Sent::Copied(copies) => I::sent(copies).await,
        };
        let host = match host {
            Ok(host) => host,
            // A copy that is refused late does not return its memory.
            Err(_) => I::pinned(&self.shared.device, widths, self.shared.max_rows).await?,
        };
        Ok(Block::of(host, widths))
    }

    /// Returns the slot's stream, a new one after a batch that failed.
    async fn stream(&mut self, model: &Model<I, O>) -> Result<Stream> {
        if self.lease.is_none() {
            let lease = self.shared.pool.lease().await?;
            // The buffers of a captured model are the same again.
            if let (Model::Captured(_), Some(ended)) = (model, self.ended.take()) {
                lease.wait_event(&ended);
            }
            self.lease = Some(lease);
        }
        Ok(Stream::clone(self.lease.as_ref().expect("it was leased")))
    }

    fn is_wanted(&self) -> bool {
        self.shared.queue.lock().is_wanted(&self.calls)
    }

    /// Answers the calls of a batch that was computed in this time, or that was not computed.
    fn answer(&mut self, computed_in: Option<Duration>, outcomes: impl Iterator<Item = Outcome<O>>) {
        let calls = take(&mut self.calls);
        let rows = calls.len();
        let (mut wakers, mut unwanted) = (Vec::with_capacity(calls.len()), Vec::new());
        let mut queue = self.shared.queue.lock();
        for (call, outcome) in calls.into_iter().zip(outcomes) {
            match queue.answer(call, outcome) {
                Ok(waker) => wakers.extend(waker),
                Err(outcome) => unwanted.push(outcome),
            }
        }
        // A batch that was not computed says nothing about the time that the next one needs.
        wakers.extend(computed_in.and_then(|time| queue.ran(time)));
        drop(queue);
        if computed_in.is_some() {
            self.shared.counts.computed(rows - unwanted.len(), unwanted.len());
        }
        drop(unwanted);
        wake(wakers);
    }

    /// Copies rows so that they are a prefix of the batch's memory.
    fn make_moves(&self, batch: &mut Batch<I>) {
        let mut emptied = Vec::new();
        for step in batch.moves.drain(..) {
            match step.from {
                Source::Row(row) => {
                    let (to, from) = batch.rows.split_at_mut(row);
                    I::copy(&from[0], &mut to[step.to]);
                }
                Source::Later(at, row) => {
                    I::copy(&row, &mut batch.rows[step.to]);
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

/// Makes one buffer of a block's rows and the rest of it.
fn whole<I: Rows>((rows, block): (Vec<I::Row>, Block<I>)) -> I::Host {
    drop(rows);
    I::whole(block.rest).expect("a batch has all rows of its block")
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
