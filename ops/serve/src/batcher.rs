//! A batcher: the handle that services hold.

use crate::model::{Captured, Model, Tensors};
use crate::shared::{Handle, Shared};
use crate::submit::Submit;
use crate::{BatcherStats, Rows, WriterError};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};
use warpline_runtime::{Error, ErrorKind, Result, Stream};

/// Gathers the rows of concurrent calls into batches for a model, and gives each call its row of
/// the outputs.
///
/// A batcher is a cheap handle; all clones are the same batcher. When the last one is dropped, the
/// batcher ends: no call is left then. A model must not hold one of its own batcher, which would
/// never end, nor wait for a call to it.
///
/// It ends, too, with the tokio runtime in which it was built.
pub struct Batcher<I: Rows, O: Rows> {
    handle: Arc<Handle<I, O>>,
}

impl<I: Rows, O: Rows> Clone for Batcher<I, O> {
    fn clone(&self) -> Self {
        Batcher { handle: self.handle.clone() }
    }
}

impl<I: Rows, O: Rows> fmt::Debug for Batcher<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("max_rows", &self.shared().max_rows).finish_non_exhaustive()
    }
}

/// The calls that a [`drain`](Batcher::drain) left at its deadline: none if all were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// The number of calls that were queued. They failed with
    /// [`ServeError::Draining`](crate::ServeError::Draining).
    pub refused: usize,
    /// The number of calls whose batch was running. They will be answered.
    pub running: usize,
}

impl<I: Rows, O: Rows> Batcher<I, O> {
    pub(crate) fn of(shared: Arc<Shared<I, O>>) -> Self {
        Batcher { handle: Arc::new(Handle { shared }) }
    }

    #[cfg(feature = "tower")]
    pub(crate) fn handle(&self) -> &Arc<Handle<I, O>> {
        &self.handle
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<I, O>> {
        &self.handle.shared
    }

    /// Submits one row, which `writer` writes, and waits for its row of the outputs.
    ///
    /// The first poll calls `writer` with the row's place in pinned memory, which holds zeros. No
    /// lock is held meanwhile, but the row's batch waits for the writer. It must not block, and
    /// not wait for this batcher. Check lengths before `copy_from_slice`, which panics if they
    /// differ.
    ///
    /// # Errors
    /// [`ServeError::Full`](crate::ServeError::Full) immediately if `max_queued` rows are queued;
    /// [`ServeError::Writer`](crate::ServeError::Writer) with the error of `writer`. A panic of
    /// `writer` is the caller's, and frees the row. Otherwise the errors of
    /// [`ServeError`](crate::ServeError).
    ///
    /// # Examples
    /// ```
    /// # use warpline::serve::{Batcher, ServeError};
    /// type Net = Batcher<(f32,), (f32,)>;
    ///
    /// async fn classify(net: &Net, pixels: &[f32]) -> Result<usize, ServeError> {
    ///     let answer = net.submit(|(row,)| {
    ///         if pixels.len() != row.len() {
    ///             let (given, expected) = (pixels.len(), row.len());
    ///             return Err(format!("{given} pixels, and {expected} are expected").into());
    ///         }
    ///         row.copy_from_slice(pixels);
    ///         Ok(())
    ///     });
    ///     let answer = answer.await?;
    ///     let (logits,) = answer.outputs();
    ///     Ok((0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0))
    /// }
    /// ```
    pub fn submit<W>(&self, writer: W) -> Submit<I, O, W>
    where
        W: FnOnce(I::Slots<'_>) -> Result<(), WriterError>,
    {
        Submit::new(self.handle.clone(), writer)
    }

    /// Returns the number of rows that count against `max_queued`: those that wait for a batch, are
    /// being written, or are reserved by a service.
    pub fn queued(&self) -> usize {
        self.shared().queued()
    }

    /// Returns the version of the model with which the next batch begins: 0, and one more after
    /// each [`swap`](Self::swap).
    pub fn version(&self) -> u64 {
        self.shared().model.lock().1
    }

    /// Returns the batcher's state, and counts of the calls that have ended.
    pub fn stats(&self) -> BatcherStats {
        let shared = self.shared();
        let running = shared.queue.lock().running();
        shared.counts.stats(shared.queued(), running)
    }

    /// Returns whether the batcher takes calls: until it drains, its device fails or the tokio
    /// runtime of its tasks ends. A service is ready as long as it does.
    pub fn is_open(&self) -> bool {
        !self.shared().queue.lock().is_closed()
    }

    /// Replaces the model for all batches that begin from now on. Returns its version, which its
    /// answers carry.
    ///
    /// Await the writes of the new model's weights before, so that batches need no edge for them.
    ///
    /// # Errors
    /// `InvalidArgument` if rows have different lengths; [`swap_packed`](Self::swap_packed) is for
    /// such a batcher. The model before stays.
    pub fn swap<M, F>(&self, model: M) -> Result<u64>
    where
        M: Fn(Stream, Tensors<I>, usize) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Tensors<O>>> + Send + 'static,
    {
        if self.shared().packed.is_some() {
            return Err(not_swapped("the rows of this batcher have different lengths; use swap_packed"));
        }
        Ok(self.replace(Model::of(model)))
    }

    /// Replaces the model as [`swap`](Self::swap) does, by one that gets the lengths of the rows.
    ///
    /// # Errors
    /// `InvalidArgument` if the batcher was not built with
    /// [`build_packed`](crate::BatcherBuilder::build_packed). The model before stays.
    pub fn swap_packed<M, F>(&self, model: M) -> Result<u64>
    where
        M: Fn(Stream, Tensors<I>, Vec<usize>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Tensors<O>>> + Send + 'static,
    {
        if self.shared().packed.is_none() {
            return Err(not_swapped("the rows of this batcher have one length; use swap"));
        }
        Ok(self.replace(Model::packed(model)))
    }

    /// Replaces the model by one that is captured for the given sizes, as
    /// [`build_captured`](crate::BatcherBuilder::build_captured) does. Batches run with the model
    /// before until all graphs are captured. The memory of both is needed until then, and until
    /// the last batch of the model before has ended.
    ///
    /// # Errors
    /// The errors of `build_captured`. The model before stays.
    pub async fn swap_captured(
        &self,
        sizes: &[usize],
        model: impl FnMut(Tensors<I>) -> Result<Tensors<O>>,
    ) -> Result<u64> {
        let shared = self.shared();
        if shared.packed.is_some() {
            return Err(not_swapped("a graph has no room for rows of different lengths; use swap_packed"));
        }
        let (slots, inputs) = ((shared.in_flight, shared.max_rows), (&shared.inputs.0, shared.inputs.1));
        let captured = Captured::new(&shared.device, slots, inputs, sizes, model).await?;
        Ok(self.replace(Model::Captured(captured)))
    }

    fn replace(&self, model: Model<I, O>) -> u64 {
        let mut current = self.shared().model.lock();
        let version = current.1 + 1;
        let old = std::mem::replace(&mut *current, (Arc::new(model), version));
        drop(current);
        // Dropping a model may take long, and may call this batcher.
        drop(old);
        version
    }

    /// Returns the bytes of device memory that the graphs of a captured model and their inputs
    /// take: for each slot and each size. 0 for a model that is called.
    pub fn captured_bytes(&self) -> usize {
        let (model, _) = self.shared().model.lock().clone();
        model.captured_bytes()
    }

    /// Takes no more calls, and waits until those that were accepted are answered, or until the
    /// deadline. Then the calls that are still queued are refused.
    ///
    /// Call it before the device is shut down.
    ///
    /// # Cancel safety
    /// If the future is dropped, the batcher takes no more calls, and answers all that it
    /// accepted.
    pub async fn drain(&self, deadline: Instant) -> Drained {
        let shared = self.shared();
        shared.close();
        if timeout_at(deadline, shared.ended()).await.is_ok() {
            return Drained { refused: 0, running: 0 };
        }
        let (refused, running) = shared.end_queued();
        Drained { refused, running }
    }
}

fn not_swapped(why: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the model was not swapped: {why}"))
}
