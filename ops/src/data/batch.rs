//! What a loader yields.

use super::reader::Host;
use crate::Tensor;
use std::future::Future;
use std::pin::Pin;
use warpline_runtime::{Event, Result, Stream};

/// Rows on a device, or on their way there.
///
/// # Ordering
/// The copy stream writes it. A stream that uses it needs the edge `stream.wait_event(&batch.copied)`: from this batch's copy
/// alone, while `wait_stream` would wait for those of the next batches too. Without it the use is refused.
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

/// The pinned buffers of a batch, once the device is done with them. Awaiting it observes the copies.
pub(super) type Sent = Pin<Box<dyn Future<Output = Result<Host>> + Send>>;

/// Puts the copies of the first `rows` rows of `host` on `stream`. The one place that wraps a batch's memory.
pub(super) fn send(
    stream: &Stream,
    mut host: Host,
    rows: usize,
    index: u64,
    epoch: u64,
) -> Result<(Batch, Sent)> {
    let features = host.features();
    host.x.truncate(rows * features);
    host.labels.truncate(rows);
    let (x, x_sent) = stream.copy_to_device(host.x)?;
    let (labels, labels_sent) = stream.copy_to_device(host.labels)?;
    let copied = stream.record_event();
    let sent = Box::pin(async move { Ok(Host { x: x_sent.await?, labels: labels_sent.await? }) });
    let (x, labels) = (Tensor::from_buffer(x, [rows, features])?, Tensor::from_buffer(labels, [rows])?);
    Ok((Batch { x, labels, copied, rows, index, epoch }, sent))
}
