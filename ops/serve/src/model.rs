//! The model of a batcher: a closure that is called for each batch, or graphs that were captured
//! before.
//!
//! A captured model has a graph and static buffers for each slot and each size. A slot copies its
//! rows into its own buffers and launches its own graph, so batches of different slots overlap.
//! The copies are not part of the graph, and the graph does not know how many of its rows are
//! used.

use crate::Rows;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::future::Future;
use warpline_ops::data::TensorSample;
use warpline_runtime::{Device, Error, ErrorKind, Graph, Result, Stream};

/// The tensors of a batch: a tensor for each type of a row.
pub(crate) type Tensors<R> = <R as TensorSample>::Tensors;

type Called<I, O> = dyn Fn(Stream, Tensors<I>, Calls) -> BoxFuture<'static, Result<Tensors<O>>> + Send + Sync;

/// The calls of a batch.
pub(crate) struct Calls {
    /// Their number.
    pub(crate) rows: usize,
    /// The lengths of their rows, if rows have different lengths.
    pub(crate) lens: Vec<usize>,
}

pub(crate) enum Model<I: Rows, O: Rows> {
    Called(Box<Called<I, O>>),
    Captured(Captured<I, O>),
}

/// A model that was captured for each slot and each size.
pub(crate) struct Captured<I: Rows, O: Rows> {
    /// In ascending order.
    sizes: Vec<usize>,
    /// By slot, and by size.
    sets: Vec<Vec<Set<I, O>>>,
    bytes: usize,
}

/// A graph with its buffers.
pub(crate) struct Set<I: Rows, O: Rows> {
    pub(crate) inputs: I::Buffers,
    pub(crate) graph: Graph,
    pub(crate) outputs: Tensors<O>,
}

impl<I: Rows, O: Rows> Model<I, O> {
    pub(crate) fn of<M, F>(model: M) -> Self
    where
        M: Fn(Stream, Tensors<I>, usize) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Tensors<O>>> + Send + 'static,
    {
        Model::Called(Box::new(move |stream, inputs, calls| model(stream, inputs, calls.rows).boxed()))
    }

    pub(crate) fn packed<M, F>(model: M) -> Self
    where
        M: Fn(Stream, Tensors<I>, Vec<usize>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Tensors<O>>> + Send + 'static,
    {
        Model::Called(Box::new(move |stream, inputs, calls| model(stream, inputs, calls.lens).boxed()))
    }

    /// Returns the device memory that the model's graphs and their buffers take.
    pub(crate) fn captured_bytes(&self) -> usize {
        match self {
            Model::Called(_) => 0,
            Model::Captured(captured) => captured.bytes,
        }
    }
}

impl<I: Rows, O: Rows> Captured<I, O> {
    /// Captures `model` for each of `slots` slots and each size, and waits until the device has
    /// initialized their buffers.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no size, one is 0, or the largest is not `max_rows`; the
    /// errors of the model and of its capture; `OutOfMemory`.
    pub(crate) async fn new(
        device: &Device,
        (slots, max_rows): (usize, usize),
        (shapes, widths): (&I::Shapes, I::Widths),
        sizes: &[usize],
        mut model: impl FnMut(Tensors<I>) -> Result<Tensors<O>>,
    ) -> Result<Self> {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.last() != Some(&max_rows) || sizes[0] == 0 {
            let why = format!(
                "the model was not captured: its sizes are {sizes:?}, and the largest has to be max_rows, \
                 {max_rows}, and the smallest at least 1; correct the sizes or max_rows"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let stream = device.stream().label("capture").build()?;
        let (mut sets, mut bytes) = (Vec::with_capacity(slots), 0);
        for _ in 0..slots {
            let mut of_slot = Vec::with_capacity(sizes.len());
            for &rows in &sizes {
                let inputs = I::alloc(&stream, widths, rows).await?;
                let (graph, outputs) = stream.capture(|_| model(I::tensors(&inputs, shapes, rows)))?;
                let row: usize =
                    widths.as_ref().iter().zip(I::ELEMENTS).map(|(width, (_, bytes))| width * bytes).sum();
                bytes += graph.memory_bytes() + rows * row;
                of_slot.push(Set { inputs, graph, outputs });
            }
            sets.push(of_slot);
        }
        stream.synchronize().await?;
        Ok(Captured { sizes, sets, bytes })
    }

    /// Returns the rows and the set for a batch of a slot: those of the smallest size that fits.
    pub(crate) fn set(&self, slot: usize, rows: usize) -> (usize, &Set<I, O>) {
        let at = self.sizes.partition_point(|&size| size < rows);
        (self.sizes[at], &self.sets[slot][at])
    }
}
