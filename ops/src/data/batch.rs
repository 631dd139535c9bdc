//! The batch that a loader yields, and the copies that fill it.
// Decision: docs/decisions/0047-loaded-batches-are-freshly-allocated.md

use super::collate::BatchPlace;
use super::plan::Plan;
use super::reader::Read;
use super::sample::{Sample, TensorSample};
use super::supply::{Host, Memory};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use warpline_runtime::{Event, Result};

/// A batch of rows in device memory, whose copies may still be in flight.
///
/// A batch may be dropped at any time: its memory is reused only after the work enqueued on it.
///
/// # Ordering
/// The loader's copy stream writes the batch. A stream that uses the batch needs the edge
/// `stream.wait_event(&batch.copied)`, which orders it after this batch's copy alone. Without the
/// edge, the use is refused. `stream.wait_stream(&copy)` makes this edge too. It also orders the
/// stream after the copies of later batches, if they are already enqueued. How many are enqueued
/// depends on the reader's speed. So a program that states no edges for later batches may be
/// refused in one run and not in another.
#[derive(Debug)]
#[non_exhaustive]
pub struct Batch<S: Sample> {
    /// The fields, each with the elements of all rows one after the other: `(Buffer<A>, Buffer<B>)`
    /// for samples of type `(A, B)`.
    pub buffers: S::Buffers,
    /// An event recorded after the copies of all fields.
    pub copied: Event,
    /// The number of rows: the loader's batch size, or fewer in the last batch of an epoch.
    pub rows: usize,
    /// The batch's place in the epoch, counted from 0.
    pub index: u64,
    /// The number of the epoch.
    pub epoch: u64,
    shapes: S::Shapes,
}

impl<S: TensorSample> Batch<S> {
    /// Returns the fields as tensors, which share the batch's memory.
    ///
    /// A field whose samples have the shape \[a, b\] is a tensor of shape \[rows, a, b\], and a
    /// field of scalars one of shape \[rows\].
    pub fn tensors(&self) -> S::Tensors {
        S::tensors(&self.buffers, &self.shapes, self.rows)
    }
}

/// The pinned memory of a batch, available once the device has finished with it.
pub(super) struct Sent<S: Sample> {
    pub(super) copies: S::Copies,
}

impl<S: Sample> Sent<S> {
    /// Returns whether polling would yield the memory now. Registers no waker.
    pub(super) fn is_done(&mut self) -> Result<bool> {
        S::copies_are_done(&mut self.copies)
    }

    pub(super) fn poll(&mut self, memory: &Arc<Memory<S>>, cx: &mut Context<'_>) -> Poll<Result<Host<S>>> {
        let fields = ready!(S::poll_copies(&mut self.copies, cx))?;
        Poll::Ready(Ok(Host::new(memory, fields)))
    }
}

/// Enqueues the copies of a read batch. No other function wraps a batch's memory.
pub(super) fn send<S: Sample>(plan: &Plan<S>, read: Read<S>) -> Result<(Batch<S>, Sent<S>)> {
    let Read { host, place: BatchPlace { epoch, index, rows } } = read;
    let (buffers, copies) = S::send(host.take(rows), &plan.stream, plan.site)?;
    let copied = plan.stream.record_event();
    let batch = Batch { buffers, copied, rows, index, epoch, shapes: plan.shapes.clone() };
    Ok((batch, Sent { copies }))
}
