//! The batch that a loader yields, and the copies that fill it.

use super::reader::{Host, Read};
use crate::Tensor;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use warpline_runtime::{Event, Pending, Pinned, Result, Stream};

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
pub struct Batch {
    /// The features, f32: \[rows, features\].
    pub x: Tensor,
    /// One label per row, i64: \[rows\].
    pub labels: Tensor,
    /// An event recorded after the copies of both.
    pub copied: Event,
    /// The number of rows: the loader's batch size, or fewer in the last batch of an epoch.
    pub rows: usize,
    /// The batch's place in the epoch, counted from 0.
    pub index: u64,
    /// The number of the epoch.
    pub epoch: u64,
}

/// The pinned buffers of a batch, available once the device has finished with them.
pub(super) struct Sent {
    x: Pending<Pinned<f32>>,
    labels: Pending<Pinned<i64>>,
    x_back: Option<Pinned<f32>>,
}

impl Sent {
    /// Returns whether polling would yield the buffers now. Registers no waker.
    pub(super) fn is_done(&mut self) -> Result<bool> {
        // The copies are on one stream, and the copy of the labels comes last.
        self.labels.query()
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Host>> {
        if self.x_back.is_none() {
            self.x_back = Some(ready!(Pin::new(&mut self.x).poll(cx))?);
        }
        let labels = ready!(Pin::new(&mut self.labels).poll(cx))?;
        let x = self.x_back.take().expect("it came back above");
        Poll::Ready(Ok(Host { x, labels }))
    }
}

/// Enqueues the copies of a read batch on `stream`. No other function wraps a batch's memory.
pub(super) fn send(stream: &Stream, read: Read) -> Result<(Batch, Sent)> {
    let Read { mut host, rows, index, epoch } = read;
    let features = host.features();
    host.x.truncate(rows * features);
    host.labels.truncate(rows);
    let (x, x_sent) = stream.copy_to_device(host.x)?;
    let (labels, labels_sent) = stream.copy_to_device(host.labels)?;
    let copied = stream.record_event();
    let (x, labels) = (Tensor::from_buffer(x, [rows, features])?, Tensor::from_buffer(labels, [rows])?);
    let sent = Sent { x: x_sent.unobserved(), labels: labels_sent.unobserved(), x_back: None };
    Ok((Batch { x, labels, copied, rows, index, epoch }, sent))
}
