//! The settings of a batcher, and how it is made.

use crate::Rows;
use crate::batcher::Batcher;
#[cfg(feature = "metrics")]
use crate::histograms::Histograms;
use crate::model::{Captured, Model, Tensors};
use crate::queue::Queue;
use crate::shared::{Block, BudgetOf, End, Packed, Shared};
use crate::slot::Slot;
use crate::stats::Counts;
use futures::future::{Either, select};
use parking_lot::Mutex;
use std::future::Future;
use std::panic::catch_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use warpline_ops::Shape;
use warpline_runtime::{ByteSize, Device, Error, ErrorKind, HealthState, Result, Stream, pinned_len};

/// A builder for a [`Batcher`].
#[must_use = "`build` makes the batcher"]
pub struct BatcherBuilder<I: Rows, O: Rows> {
    device: Device,
    inputs: I::Shapes,
    outputs: O::Shapes,
    max_rows: usize,
    max_wait: Duration,
    in_flight: usize,
    max_queued: Option<usize>,
    has_fixed_rows: bool,
    budget: Option<Box<BudgetOf>>,
    label: Arc<str>,
}

impl<I: Rows, O: Rows> Batcher<I, O> {
    /// Returns a builder for a batcher on `device`, whose rows have these shapes: one for each
    /// input and each output, without the dimension of the batch.
    pub fn builder(device: &Device, inputs: I::Shapes, outputs: O::Shapes) -> BatcherBuilder<I, O> {
        BatcherBuilder {
            device: device.clone(),
            inputs,
            outputs,
            max_rows: 32,
            max_wait: Duration::ZERO,
            in_flight: 2,
            max_queued: None,
            has_fixed_rows: false,
            budget: None,
            label: "batch".into(),
        }
    }
}

impl<I: Rows, O: Rows> BatcherBuilder<I, O> {
    /// Sets the most rows that a batch may have; 32 by default.
    pub fn max_rows(mut self, rows: usize) -> Self {
        self.max_rows = rows;
        self
    }

    /// Sets how long the first row of a batch waits for others; not at all by default.
    ///
    /// It matters only while the batcher has a slot without a batch. A slot that has just become
    /// free takes the queued rows at once, so under load batches fill by themselves.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }

    /// Sets how many batches run at a time; 2 by default. With 2, the copies of one overlap with
    /// the computation of the other.
    pub fn in_flight(mut self, batches: usize) -> Self {
        self.in_flight = batches;
        self
    }

    /// Sets how many rows may wait for a batch; four batches of them by default. Further calls are
    /// refused with [`ServeError::Full`](crate::ServeError::Full).
    pub fn max_queued(mut self, rows: usize) -> Self {
        self.max_queued = Some(rows);
        self
    }

    /// Gives the model `max_rows` rows in every batch: those of the calls first, then zeros.
    ///
    /// By default the tensors have as many rows as there are calls.
    pub fn fixed_rows(mut self) -> Self {
        self.has_fixed_rows = true;
        self
    }

    /// Runs each batch within a [budget](Device::budget) of device memory: `bytes` gets the number
    /// of rows that the model sees, or of elements with [`build_packed`](Self::build_packed), and
    /// returns the bytes that it needs for them, with its inputs and outputs. No budgets by
    /// default.
    ///
    /// A batch waits until its share fits beside those of others. Meanwhile calls are queued, and
    /// beyond `max_queued` refused. A model that allocates more than its budget fails for that
    /// batch alone. A captured model has its memory already, and takes no budget.
    ///
    /// A share returns when all memory of its batch is gone. So allocate what outlives a batch,
    /// such as weights and caches, before the batcher is built, not in the model.
    pub fn budget(mut self, bytes: impl Fn(usize) -> usize + Send + Sync + 'static) -> Self {
        self.budget = Some(Box::new(bytes));
        self
    }

    /// Sets the name of the batcher's streams in errors and traces, of its spans, and of its
    /// figures; "batch" by default.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }

    /// Builds the batcher, with a model that gets a stream, the inputs and the number of calls.
    ///
    /// The stream is current while the model is polled, so tensor ops need not name it. The model
    /// may return outputs whose work has not finished.
    ///
    /// A model that holds a network clones an `Arc` of it into each future. To fail a batch with
    /// an error of its own, it returns `Error::new(kind, text)`.
    ///
    /// The batcher allocates pinned memory for the rows of all calls that may be queued, and for
    /// `in_flight` batches. It holds this memory as long as it lives. It spawns a tokio task for
    /// each batch that may run at a time, and one that watches the device.
    ///
    /// # Errors
    /// `InvalidArgument` if a setting is 0, `max_queued` is less than `max_rows`, a row has no
    /// elements, the pinned memory can never hold the rows, the memory limit is less than a
    /// batch's budget, or there is no tokio runtime with timers; `OutOfMemory` if the pinned
    /// memory has no room.
    pub async fn build<M, F>(self, model: M) -> Result<Batcher<I, O>>
    where
        M: Fn(Stream, Tensors<I>, usize) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Tensors<O>>> + Send + 'static,
    {
        self.build_with(None, async |_, _, _| Ok(Model::of(model))).await
    }

    /// Builds the batcher for rows of different lengths, such as the tokens of texts.
    ///
    /// The first dimension of the input shapes, which is the same for all inputs, is the most that
    /// a row may have. A call says the [length](crate::Submit::length) of its row. The rows of a
    /// batch lie one behind the other without gaps, and their lengths add up to `max_elements` at
    /// most. `model` gets a stream, the inputs, whose first dimension is that sum, and the lengths
    /// in order. Its outputs have a row for each length.
    ///
    /// Each row has pinned memory for the most that it may have, and there is room for
    /// `max_queued` of the longest: if a batch holds fewer of these than `max_rows`, the batcher
    /// needs so many more blocks of `max_rows`. Rows are moved together on the host when their
    /// batch is taken.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build); `InvalidArgument` if the first dimensions of the
    /// input shapes differ, one has none, `max_elements` is less than it, or `fixed_rows` is set.
    ///
    /// # Examples
    /// ```
    /// use warpline::prelude::*;
    /// use warpline::serve::Batcher;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = Device::best()?;
    /// // The mean of up to 128 points of a plane, and at most 1024 points in a batch.
    /// let means = Batcher::<(f32,), (f32,)>::builder(&device, [[128, 2].into()], [[2].into()])
    ///     .build_packed(1024, |stream, (points,), lengths| async move {
    ///         // A row of weights for each call: one share for each of its points.
    ///         let total: usize = lengths.iter().sum();
    ///         let (mut weights, mut begin) = (vec![0.0f32; lengths.len() * total], 0);
    ///         for (row, len) in lengths.iter().enumerate() {
    ///             weights[row * total + begin..][..*len].fill(1.0 / *len as f32);
    ///             begin += len;
    ///         }
    ///         let weights = Tensor::from_host(&weights, [lengths.len(), total], &stream.device());
    ///         Ok((weights.matmul(&points).queued()?,))
    ///     })
    ///     .await?;
    /// let points = [1.0, 1.0, 3.0, 1.0];
    /// let answer = means.submit(|(row,)| Ok(row.copy_from_slice(&points))).length(2).await?;
    /// assert_eq!(answer.outputs().0, [2.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn build_packed<M, F>(self, max_elements: usize, model: M) -> Result<Batcher<I, O>>
    where
        M: Fn(Stream, Tensors<I>, Vec<usize>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Tensors<O>>> + Send + 'static,
    {
        self.build_with(Some(max_elements), async |_, _, _| Ok(Model::packed(model))).await
    }

    /// Builds the batcher with a model that is captured as a graph, once for each batch that may
    /// run at a time and each of `sizes`.
    ///
    /// `model` gets the inputs, enqueues the work and returns the outputs. It is called for each
    /// graph. A batch runs on the smallest size that has room for its rows. The rows behind them
    /// are zeros, and the graph does not know how many are used. The copies of inputs and outputs
    /// are not part of the graph, and overlap with other batches.
    ///
    /// Device memory: the inputs of each size, and what `model` allocates for it, `in_flight`
    /// times; [`captured_bytes`](Batcher::captured_bytes) says how much.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build); `InvalidArgument` if the largest size is not
    /// `max_rows`, one is 0, or `fixed_rows` is set; the errors of `model` and of
    /// [`Stream::capture`](warpline_runtime::Stream::capture).
    ///
    /// # Examples
    /// ```
    /// use warpline::prelude::*;
    /// use warpline::serve::Batcher;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = Device::best()?;
    /// let doubled = Batcher::<(f32,), (f32,)>::builder(&device, [[3].into()], [[3].into()])
    ///     .max_rows(16)
    ///     .build_captured(&[1, 4, 16], |(x,)| Ok(((&x * 2.0).queued()?,)))
    ///     .await?;
    /// let answer = doubled.submit(|(row,)| Ok(row.fill(1.5))).await?;
    /// assert_eq!(answer.outputs().0, [3.0; 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn build_captured(
        self,
        sizes: &[usize],
        model: impl FnMut(Tensors<I>) -> Result<Tensors<O>>,
    ) -> Result<Batcher<I, O>> {
        if self.has_fixed_rows {
            return Err(refused("it has fixed_rows, and a captured model has its sizes; leave it out"));
        }
        let slots = (self.in_flight, self.max_rows);
        self.build_with(None, async |device, shapes, widths| {
            Ok(Model::Captured(Captured::new(device, slots, (shapes, widths), sizes, model).await?))
        })
        .await
    }

    async fn build_with(
        self,
        max_elements: Option<usize>,
        model: impl AsyncFnOnce(&Device, &I::Shapes, I::Widths) -> Result<Model<I, O>>,
    ) -> Result<Batcher<I, O>> {
        let tokio = tokio::runtime::Handle::try_current().map_err(|_| {
            refused("it spawns tokio tasks, and there is no tokio runtime here; build it inside of one")
        })?;
        // Making a timer panics without them. This one is dropped at once, and nothing waits.
        catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).map_err(|_| {
            refused("it has timers, and the tokio runtime here has none; build the runtime with enable_time")
        })?;
        let max_queued = self.max_queued.unwrap_or(self.max_rows.saturating_mul(4));
        self.check(max_queued)?;
        self.check_budget(max_elements.unwrap_or(self.max_rows))?;
        let inputs = self.widths::<I>("input", &self.inputs)?;
        let outputs = self.widths::<O>("output", &self.outputs)?;
        let packed = max_elements.map(|most| self.packed(most)).transpose()?;
        // The rows that a block holds for certain, whatever their lengths.
        let rows = match (&packed, max_elements) {
            (Some(packed), Some(most)) => self.max_rows.min(most / packed.longest),
            _ => self.max_rows,
        };
        let blocks = max_queued.div_ceil(rows).saturating_add(self.in_flight);
        self.check_cap(inputs, outputs, max_queued, blocks)?;
        let mut memory = Vec::with_capacity(blocks);
        for _ in 0..blocks {
            memory.push(Block::of(I::pinned(&self.device, inputs, self.max_rows).await?, inputs));
        }
        let model = model(&self.device, &self.inputs, inputs).await?;
        let pool = self.device.stream_pool(self.in_flight)?.label(self.label.clone());
        let is_timed = cfg!(feature = "metrics") || !self.max_wait.is_zero();
        let shared = Arc::new(Shared {
            device: self.device,
            pool,
            max_rows: self.max_rows,
            in_flight: self.in_flight,
            max_queued,
            has_fixed_rows: self.has_fixed_rows,
            inputs: (self.inputs, inputs),
            packed,
            outputs: (self.outputs, outputs),
            built: (!is_timed).then(Instant::now),
            budget: self.budget,
            counts: Counts::default(),
            #[cfg(feature = "metrics")]
            histograms: Histograms::of(&self.label),
            #[cfg(feature = "metrics")]
            recorded: Mutex::default(),
            label: self.label,
            queue: Mutex::new(Queue::new(self.max_rows, max_elements, self.max_wait, memory)),
            permits: Arc::new(Semaphore::new(max_queued)),
            model: Mutex::new((Arc::new(model), 0)),
            end: Mutex::new(End::Draining),
            slots: AtomicUsize::new(self.in_flight),
            slot_ended: Notify::new(),
        });
        for slot in 0..self.in_flight {
            tokio.spawn(Slot::new(shared.clone(), slot).run());
        }
        tokio.spawn(watch(shared.clone()));
        Ok(Batcher::of(shared))
    }
}

impl<I: Rows, O: Rows> BatcherBuilder<I, O> {
    fn check(&self, max_queued: usize) -> Result<()> {
        let numbers =
            [("max_rows", self.max_rows), ("in_flight", self.in_flight), ("max_queued", max_queued)];
        if let Some((what, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Err(refused(&format!("{what} is 0, and at least 1 is needed; raise it")));
        }
        if max_queued < self.max_rows {
            let why = format!(
                "max_queued is {max_queued}, and max_rows {}, so no batch could have all its rows; raise \
                 max_queued, or lower max_rows",
                self.max_rows
            );
            return Err(refused(&why));
        }
        if max_queued > Semaphore::MAX_PERMITS {
            let why =
                format!("max_queued is {max_queued}, and at most {} are possible", Semaphore::MAX_PERMITS);
            return Err(refused(&why));
        }
        Ok(())
    }

    /// Returns an error if the budget of the largest batch can never be granted.
    fn check_budget(&self, most: usize) -> Result<()> {
        let limit = self.device.memory_stats().limit_bytes;
        let (Some(bytes), Some(limit)) = (self.budget.as_ref().map(|bytes| bytes(most)), limit) else {
            return Ok(());
        };
        if bytes <= limit {
            return Ok(());
        }
        Err(refused(&format!(
            "a batch of {most} has a budget of {}, and the memory of {} is limited to {}; lower max_rows, or \
             raise memory_limit",
            ByteSize(bytes),
            self.device.id(),
            ByteSize(limit)
        )))
    }

    /// Returns the form of rows whose lengths add up to `max_elements` at most in a batch.
    fn packed(&self, max_elements: usize) -> Result<Packed<I>> {
        let Some((longest, shapes)) = I::of_elements(&self.inputs) else {
            let shapes: Vec<_> = self.inputs.as_ref().iter().map(Shape::to_string).collect();
            return Err(refused(&format!(
                "its input shapes are {}, and rows of different lengths need the same first dimension in \
                 all of them, the most that a row may have; correct the shapes",
                shapes.join(", ")
            )));
        };
        if max_elements < longest {
            return Err(refused(&format!(
                "max_elements is {max_elements}, and a row may have {longest} elements, so no batch could \
                 have the longest row; raise max_elements, or correct the shapes"
            )));
        }
        if self.has_fixed_rows {
            return Err(refused("it has fixed_rows, and rows of different lengths have none; leave it out"));
        }
        let widths = I::widths(&shapes).expect("they are parts of shapes that were checked");
        Ok(Packed { longest, element: (shapes, widths) })
    }

    /// Returns the number of elements of each input or output.
    fn widths<R: Rows>(&self, what: &str, shapes: &R::Shapes) -> Result<R::Widths> {
        if let Some(at) = shapes.as_ref().iter().position(|shape| shape.contains(&0)) {
            return Err(refused(&format!(
                "{what} {at} has rows of the shape {}, and so 0 elements, and at least 1 is needed; correct \
                 the shape, or leave the {what} out",
                shapes.as_ref()[at]
            )));
        }
        let fits = |(width, (_, bytes)): (&usize, &(&str, usize))| {
            let len_bytes = self.max_rows.checked_mul(*width).and_then(|len| len.checked_mul(*bytes));
            len_bytes.is_some_and(|len| isize::try_from(len).is_ok())
        };
        match R::widths(shapes) {
            Some(widths) if widths.as_ref().iter().zip(R::ELEMENTS).all(fits) => Ok(widths),
            _ => {
                let shapes: Vec<_> = shapes.as_ref().iter().map(Shape::to_string).collect();
                Err(refused(&format!(
                    "a batch of {} rows of the {what} shapes {} is larger than any memory; lower max_rows",
                    self.max_rows,
                    shapes.join(", ")
                )))
            }
        }
    }

    /// Returns an error if the pinned memory can never have the blocks of the inputs, and those of
    /// the outputs of the batches that run.
    fn check_cap(
        &self,
        inputs: I::Widths,
        outputs: O::Widths,
        max_queued: usize,
        blocks: usize,
    ) -> Result<()> {
        let (input, output) = (self.block_bytes::<I>(inputs), self.block_bytes::<O>(outputs));
        let needed = input.saturating_mul(blocks).saturating_add(output.saturating_mul(self.in_flight));
        let cap = self.device.pinned_stats().cap_bytes;
        if needed <= cap {
            return Ok(());
        }
        Err(refused(&format!(
            "max_queued {max_queued} and in_flight {} need {blocks} pinned blocks of {} for the inputs of {} \
             rows each, and {} of {} for outputs, which are {}, and the pinned memory of {} is capped at {}; \
             lower max_queued, or raise pinned_cap",
            self.in_flight,
            ByteSize(input),
            self.max_rows,
            self.in_flight,
            ByteSize(output),
            ByteSize(needed),
            self.device.id(),
            ByteSize(cap)
        )))
    }

    /// Returns the length of a block in pinned memory.
    fn block_bytes<R: Rows>(&self, widths: R::Widths) -> usize {
        let fields = widths.as_ref().iter().zip(R::ELEMENTS);
        let bytes = fields.map(|(width, (_, bytes))| pinned_len(self.max_rows * width * bytes));
        bytes.fold(0usize, usize::saturating_add)
    }
}

/// Fails the batcher when its device accepts no more work.
async fn watch<I: Rows, O: Rows>(shared: Arc<Shared<I, O>>) {
    let mut health = shared.device.watch_health();
    let state = match select(pin!(health.unready()), pin!(shared.ended())).await {
        Either::Left((state, _)) => state,
        Either::Right(_) => return,
    };
    let error = match state {
        HealthState::Failing(error) => error,
        _ => Error::new(ErrorKind::ShutDown, format!("{} shuts down", shared.device.id())),
    };
    shared.end_all(End::Failed(error));
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the batcher was not built: {why}"))
}
