//! What a loader yields.

use super::reader::{Host, Read};
use crate::Tensor;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use warpline_runtime::{Event, Pending, Pinned, Result, Stream};

/// Rows on a device, or on their way there.
///
/// # Ordering
/// The copy stream writes it. A stream that uses it needs the edge `stream.wait_event(&batch.copied)`: from this batch's copy
/// alone. Without it the use is refused. `wait_stream` of the copy stream makes the edge too, and those of later batches as far
/// as they have been read by then: a program that forgets their edges may be accepted or refused, as fast as the reader is.
///
/// Dropping it at any time is right: its memory is used again after what is enqueued on it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Batch {
    /// The features, f32: \[rows, features\].
    pub x: Tensor,
    /// A label a row, i64: \[rows\].
    pub labels: Tensor,
    /// Behind the copies of both.
    pub copied: Event,
    /// Rows in it: the loader's batch size, or fewer in the last batch of an epoch.
    pub rows: usize,
    /// Its place in the epoch; the first is 0.
    pub index: u64,
    /// The epoch.
    pub epoch: u64,
}

/// The pinned buffers of a batch, once the device is done with them.
pub(super) struct Sent {
    x: Pending<Pinned<f32>>,
    labels: Pending<Pinned<i64>>,
    x_back: Option<Pinned<f32>>,
}

impl Sent {
    /// Whether polling it would give the buffers now. Asks nobody to wake anybody.
    pub(super) fn is_done(&mut self) -> Result<bool> {
        // The copies are on one stream, in this order.
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

/// Puts the copies of what was read on `stream`. The one place that wraps a batch's memory.
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
