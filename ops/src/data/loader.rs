//! The options for splitting a dataset into batches and copying them to a device.

use super::batches::Batches;
use super::dataset::Dataset;
use futures::FutureExt;
use std::fmt;
use std::sync::Arc;
use warpline_runtime::trace::HostTrack;
use warpline_runtime::{Device, Error, ErrorKind, Result, Stream};

/// A builder for [`Batches`], which sets their size, their order, the prefetching and the stream.
///
/// # When not to use it
/// Reading ahead pays off if reading waits for a disk or decodes, and if the device is not the
/// host's processor. If reading, copying and computing only move memory on the same cores, there is
/// little to overlap, and a loader uses more memory. It holds `prefetch` + 1 pinned buffers and as
/// many tensors, which do not stay in the processor's cache. The one buffer and the one tensor of a
/// sequential loop do.
///
/// For example, take a sum over 400 MiB of a file in the page cache, on the CPU device, with rows
/// of 4 KiB. A loader takes 1.1 to 1.5 times the processor time of a sequential loop. With two idle
/// cores it still finishes in 0.7 to 0.9 times the loop's time. With one core, or if other work
/// needs the second core, it takes 1.2 to 1.4 times as long. In that case, read into a
/// [`Pinned`](warpline_runtime::Pinned) buffer and await [`Stream::copy_into`].
///
/// A loader's own cost is about 20 ns per row, which matters if rows are only some tens of bytes
/// long.
///
/// # Examples
/// ```
/// use warpline::TensorOps;
/// use warpline::ops::data::{InMemory, Loader};
/// # use warpline::{Device, Result};
/// # fn main() -> Result<()> {
/// # futures::executor::block_on(async {
/// let device = Device::best()?;
/// let (copy, compute) = (device.new_stream()?, device.new_stream()?);
/// let dataset = InMemory::new(2, vec![1.0; 200], vec![0; 100])?;
///
/// let loader = Loader::new(dataset)
///     .batch_size(32)
///     .shuffle(7)
///     .prefetch(3)
///     .on(&copy)
///     .build()?;
/// let mut sums = Vec::new();
/// for epoch in 0..2 {
///     let mut batches = loader.epoch(epoch);
///     while let Some(batch) = batches.next().await {
///         let batch = batch?;
///         // After this batch's copy, not after later ones.
///         compute.wait_event(&batch.copied);
///         sums.push(compute.enter(|| batch.x.sum().item::<f32>()));
///     }
/// }
/// let sums = futures::future::try_join_all(sums).await?;
/// assert_eq!(sums, [64.0, 64.0, 64.0, 8.0, 64.0, 64.0, 64.0, 8.0]);
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone)]
#[must_use = "`build` makes the stream of batches"]
pub struct Loader {
    pub(super) dataset: Arc<dyn Dataset>,
    pub(super) batch_size: usize,
    pub(super) prefetch: usize,
    pub(super) seed: Option<u64>,
    pub(super) shuffle_capacity: usize,
    pub(super) drop_last: bool,
    stream: Option<Stream>,
}

/// A loader whose options have been validated, and its stream.
pub(super) struct Plan {
    pub(super) loader: Loader,
    pub(super) stream: Stream,
    /// The track on which reading is recorded.
    pub(super) loading: HostTrack,
}

impl Loader {
    /// Creates a loader with batches of 32 rows in the dataset's order and a prefetch of 2.
    ///
    /// It copies on a stream of its own.
    pub fn new(dataset: impl Dataset) -> Self {
        Loader {
            dataset: Arc::new(dataset),
            batch_size: 32,
            prefetch: 2,
            seed: None,
            shuffle_capacity: 4096,
            drop_last: false,
            stream: None,
        }
    }

    /// Sets the number of rows per batch.
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.batch_size = rows;
        self
    }

    /// Shuffles rows into an order drawn from `seed` and the epoch's number.
    ///
    /// The order is the same on every machine and for any number of threads. Rows pass through a
    /// buffer of [`shuffle_capacity`](Self::shuffle_capacity) rows, from which the next row is
    /// drawn. If the buffer is as large as the dataset, every order is equally likely.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the number of rows in the buffer that [`shuffle`](Self::shuffle) draws from; 4096 by
    /// default.
    ///
    /// The rows are in the host's memory. An epoch's first batch is read only when the buffer is
    /// full.
    pub fn shuffle_capacity(mut self, rows: usize) -> Self {
        self.shuffle_capacity = rows;
        self
    }

    /// Sets how many batches are read and copied ahead of the batch that was yielded last.
    ///
    /// This keeps up to `batches` more batches in device memory, and `batches + 1` in pinned
    /// memory. If `batches` is 5 or more, batches that take less than 500 µs to read are handed
    /// over in groups, so that the consumer is woken less often. A group holds at most a third of
    /// the pinned buffers. It delays a batch by at most 500 µs plus the time to read one row.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = batches;
        self
    }

    /// Leaves out the rows at an epoch's end that do not fill a batch, if `drop_last` is `true`.
    ///
    /// By default they form a shorter batch.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Sets the stream that batches are allocated and copied on. Batches go to its device.
    ///
    /// By default, the loader creates a stream on the current device. The stream must have no
    /// `max_in_flight`, since a loader does not wait for [`room`](Stream::room).
    pub fn on(mut self, copy: &Stream) -> Self {
        self.stream = Some(copy.clone());
        self
    }

    /// Returns the batches of epoch 0. [`Batches::epoch`] returns those of any other epoch.
    ///
    /// This call opens the dataset and reads one row, to check that there is one, which is a little
    /// I/O on the calling thread. Nothing else runs until the batches are polled.
    ///
    /// # Errors
    /// `InvalidArgument` if an option's number is 0 or the stream has a limit of ops in flight;
    /// `Data` if the dataset cannot be read or has no rows; and the errors of creating a stream.
    pub fn build(self) -> Result<Batches> {
        let features = self.dataset.features();
        let numbers = [
            ("batch_size", self.batch_size),
            ("prefetch", self.prefetch),
            ("shuffle_capacity", self.shuffle_capacity),
            ("a dataset's number of features", features),
        ];
        if let Some((what, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a loader cannot be built: {what} is 0, and at least 1 is needed; raise it"),
            ));
        }
        let len_bytes =
            self.batch_size.checked_mul(features).and_then(|len| len.checked_mul(size_of::<f32>()));
        if len_bytes.is_none_or(|len| isize::try_from(len).is_err()) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a loader cannot be built: a batch of {} rows of {features} features is larger \
                     than any memory; lower batch_size",
                    self.batch_size
                ),
            ));
        }
        if let Some(stream) = self.stream.as_ref().filter(|stream| has_limit(stream)) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a loader cannot be built: stream \"{}\" has a limit of ops in flight, and a \
                     loader enqueues 2 ops a batch without waiting for room; give it a stream \
                     without max_in_flight",
                    stream.label()
                ),
            ));
        }
        if self.dataset.open()?.next_row(&mut vec![0.0; features])?.is_none() {
            return Err(Error::new(
                ErrorKind::Data,
                format!(
                    "a loader cannot be built: {} has 0 rows, and at least 1 is needed; check its \
                     contents and the rows that are kept",
                    self.dataset.name()
                ),
            ));
        }
        let stream = match &self.stream {
            Some(stream) => stream.clone(),
            None => Device::current()?.stream().label("loader").build()?,
        };
        Ok(Batches::new(Arc::new(Plan { loader: self, stream, loading: HostTrack::new("loading") }), 0..1))
    }
}

/// Returns whether the stream has a `max_in_flight`.
///
/// Only such a stream grants room or lets callers wait for it. Room that is granted here is
/// released immediately.
fn has_limit(stream: &Stream) -> bool {
    !matches!(stream.room().now_or_never(), Some(Err(error)) if error.kind() == ErrorKind::InvalidArgument)
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("batch_size", &self.batch_size)
            .field("prefetch", &self.prefetch)
            .field("seed", &self.seed)
            .field("shuffle_capacity", &self.shuffle_capacity)
            .field("drop_last", &self.drop_last)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
