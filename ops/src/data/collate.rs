//! The step between reading a batch and copying it.

use super::sample::Sample;
use warpline_runtime::Result;

/// A function that changes a batch in pinned memory, after its samples have been read.
///
/// Samples are written straight into their batch, so without this step a batch is complete once
/// they are read. Use it for changes that need the whole batch, for example to mix samples or to
/// scale by the batch's largest number. It runs where the batch was read: on a worker, or in a
/// poll.
///
/// A closure of these arguments is a `Collate`, if it states their types:
/// ```
/// use warpline::ops::data::{InMemory, Loader, BatchPlace};
/// # fn main() -> warpline::Result<()> {
/// # futures::executor::block_on(async {
/// // Scales the features of each batch to a largest number of 1.
/// let scale = |_: BatchPlace, (x, _): (&mut [f32], &mut [i64])| {
///     let largest = x.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
///     x.iter_mut().for_each(|x| *x /= largest);
///     Ok(())
/// };
/// let dataset = InMemory::new(1, vec![1.0, 4.0, 3.0], vec![0, 1, 2])?;
/// let mut batches = Loader::new(dataset).batch_size(2).collate(scale).build()?;
/// # let stream = warpline::Device::current()?.new_stream()?;
/// let batch = batches.next().await.transpose()?.expect("two batches");
/// # stream.wait_event(&batch.copied);
/// # assert_eq!(stream.read(&batch.buffers.0).await?, [0.25, 1.0]);
/// # Ok(())
/// # })
/// # }
/// ```
pub trait Collate<S: Sample>: Send + Sync + 'static {
    /// Changes the fields of a batch. Each slice has exactly the elements of the batch's samples.
    ///
    /// For the same arguments, the result must be the same, if every run shall yield the same
    /// batches. For random changes, draw from a seed and the place. Several workers may call this
    /// at the same time.
    ///
    /// # Errors
    /// Any error, which the stream yields in place of this batch, and as its last item.
    fn collate(&self, place: BatchPlace, batch: S::Slots<'_>) -> Result<()>;
}

impl<S: Sample, F> Collate<S> for F
where
    F: for<'a> Fn(BatchPlace, S::Slots<'a>) -> Result<()> + Send + Sync + 'static,
{
    fn collate(&self, place: BatchPlace, batch: S::Slots<'_>) -> Result<()> {
        self(place, batch)
    }
}

/// The place of a batch in its epoch, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchPlace {
    /// The number of the epoch.
    pub epoch: u64,
    /// The batch's number in the epoch, counted from 0.
    pub index: u64,
    /// The number of samples.
    pub rows: usize,
}
