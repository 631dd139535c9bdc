//! The options for splitting a dataset into batches and copying them to a device.

use super::batches::Batches;
use super::collate::Collate;
use super::dataset::{Dataset, SequentialDataset};
use super::indexed::Indexed;
use super::plan::{Ordered, Plan, Source};
use super::sample::Sample;
use super::sampler::{InOrder, Sampler, Shuffled};
use super::sequential::Sequential;
use super::supply::{Memory, lens_bytes};
use crate::Shape;
use futures::FutureExt;
use std::fmt;
use std::sync::Arc;
use warpline_runtime::trace::HostTrack;
use warpline_runtime::{ByteSize, Device, Error, ErrorKind, Result, Site, Stream, pinned_len};

/// A builder for [`Batches`], which sets their size, their order, the workers, the prefetching and
/// the stream.
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
///         let (x, _labels) = batch.tensors();
///         // After this batch's copy, not after later ones.
///         compute.wait_event(&batch.copied);
///         sums.push(compute.enter(|| x.sum().item::<f32>()));
///     }
/// }
/// let sums = futures::future::try_join_all(sums).await?;
/// assert_eq!(sums, [64.0, 64.0, 64.0, 8.0, 64.0, 64.0, 64.0, 8.0]);
/// # Ok(())
/// # })
/// # }
/// ```
#[must_use = "`build` makes the stream of batches"]
pub struct Loader<S: Sample> {
    dataset: Given<S>,
    batch_size: usize,
    prefetch: Option<usize>,
    workers: usize,
    seed: Option<u64>,
    shuffle_capacity: Option<usize>,
    sampler: Option<Arc<dyn Sampler>>,
    collate: Option<Arc<dyn Collate<S>>>,
    drop_last: bool,
    stream: Option<Stream>,
}

/// The number of blocking threads that a tokio runtime has by default.
const MOST_WORKERS: usize = 512;

/// The dataset that a loader was created with.
type Given<S> = Source<Arc<dyn SequentialDataset<Sample = S>>, Arc<dyn Dataset<Sample = S>>>;

impl<S: Sample> Loader<S> {
    /// Creates a loader of `dataset` with batches of 32 samples in the dataset's order, one worker
    /// and a prefetch of 2.
    ///
    /// It copies on a stream of its own.
    pub fn new(dataset: impl Dataset<Sample = S>) -> Self {
        Loader::of(Source::Indexed(Arc::new(dataset)))
    }

    /// Creates a loader like [`new`](Self::new), of a dataset that can only be read in order, such
    /// as a [`Csv`](super::Csv) file.
    pub fn sequential(dataset: impl SequentialDataset<Sample = S>) -> Self {
        Loader::of(Source::Sequential(Arc::new(dataset)))
    }

    fn of(dataset: Given<S>) -> Self {
        Loader {
            dataset,
            batch_size: 32,
            prefetch: None,
            workers: 1,
            seed: None,
            shuffle_capacity: None,
            sampler: None,
            collate: None,
            drop_last: false,
            stream: None,
        }
    }

    /// Sets the number of samples per batch.
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.batch_size = rows;
        self
    }

    /// Shuffles samples into an order drawn from `seed` and the epoch's number.
    ///
    /// The order is the same on every machine and for any number of threads. Every order is equally
    /// likely. The samples of a [sequential](Self::sequential) dataset pass through a buffer of
    /// [`shuffle_capacity`](Self::shuffle_capacity) samples, from which the next one is drawn. Only
    /// if the buffer is as large as the dataset, every order is equally likely.
    ///
    /// A loader either shuffles or has a [`sampler`](Self::sampler).
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the number of samples in the buffer that [`shuffle`](Self::shuffle) draws from, for a
    /// [sequential](Self::sequential) dataset; 4096 by default.
    ///
    /// The samples are in the host's memory. An epoch's first batch is read only when the buffer is
    /// full.
    pub fn shuffle_capacity(mut self, rows: usize) -> Self {
        self.shuffle_capacity = Some(rows);
        self
    }

    /// Sets the order in which samples are read, in place of the dataset's order.
    ///
    /// A loader either has a sampler or [shuffles](Self::shuffle). A sampler needs a dataset that
    /// is read by index.
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.sampler = Some(Arc::new(sampler));
        self
    }

    /// Changes each batch in pinned memory before it is copied.
    pub fn collate(mut self, collate: impl Collate<S>) -> Self {
        self.collate = Some(Arc::new(collate));
        self
    }

    /// Sets how many batches are read at the same time; 1 by default.
    ///
    /// The batches and their order are the same for any number. Several workers pay off if a
    /// sample takes long to read or decode. They need a dataset that is read by index. A worker
    /// reads only batches that [`prefetch`](Self::prefetch) allows, so a smaller prefetch than
    /// `workers - 1` leaves workers without work.
    ///
    /// There may be up to 512 workers. They are blocking threads of the tokio runtime in which the
    /// batches are first polled. The polls do the reading themselves if there is no such runtime,
    /// on a device that [runs in turns](warpline_runtime::Device::runs_in_turns), and with 0
    /// workers.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Sets how many batches are read and copied ahead of the batch that was yielded last.
    ///
    /// By default these are 2, or with several [`workers`](Self::workers) 2 for each.
    ///
    /// This keeps up to `batches` more batches in device memory, and `batches + 1` in pinned
    /// memory. [`build`](Self::build) fails if the device's
    /// [`pinned_cap`](warpline_runtime::RuntimeBuilder::pinned_cap) can never hold these. An epoch
    /// that finds less room, because other buffers take it, reads less far ahead. If `batches` is
    /// 5 or more and there is one worker, batches that take less than 500 µs to read are handed
    /// over in groups, so that the consumer is woken less often. A group holds at most a third of
    /// the pinned buffers. It delays a batch by at most 500 µs plus the time to read one sample.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = Some(batches);
        self
    }

    /// Leaves out the samples at an epoch's end that do not fill a batch, if `drop_last` is `true`.
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
    /// The loader keeps pinned memory for one batch, or room for it, as long as it lives.
    ///
    /// For a sequential dataset, this call opens it and reads one sample, to check that there is
    /// one, which is a little I/O on the calling thread. Nothing else runs until the batches are
    /// polled.
    ///
    /// # Errors
    /// `InvalidArgument` if an option's number is 0, if options exclude each other, if the stream
    /// has a limit of ops in flight, or if the pinned memory can never hold `prefetch` + 1
    /// batches; `OutOfMemory` if there is no room for a batch beside the pinned memory that is
    /// held; `Data` if the dataset cannot be read or has no samples; and the errors of creating a
    /// stream.
    #[track_caller]
    pub fn build(self) -> Result<Batches<S>> {
        let site = Site::here(&"copy_to_device");
        let prefetch = self.prefetch.unwrap_or_else(|| self.workers.max(1).saturating_mul(2));
        self.check_numbers(prefetch)?;
        self.check_order()?;
        let (shapes, widths) = self.shapes()?;
        let sample_bytes =
            widths.as_ref().iter().zip(S::ELEMENTS).map(|(width, (_, bytes))| width * bytes).sum();
        if let Some(stream) = self.stream.as_ref().filter(|stream| has_limit(stream)) {
            return Err(refused(format!(
                "stream \"{}\" has a limit of ops in flight, and a loader enqueues {} ops a batch \
                 without waiting for room; give it a stream without max_in_flight",
                stream.label(),
                S::ELEMENTS.len()
            )));
        }
        let source = self.source(widths)?;
        let stream = match &self.stream {
            Some(stream) => stream.clone(),
            None => Device::current()?.stream().label("loader").build()?,
        };
        self.check_cap(&stream, &lens_bytes::<S>(widths, self.batch_size), prefetch)?;
        let memory = Memory::new(stream.device(), site, widths, self.batch_size);
        let memory = memory.map_err(|error| refused_like(&error, "there is no pinned memory for a batch"))?;
        let plan = Plan {
            source,
            shapes,
            widths,
            sample_bytes,
            batch_size: self.batch_size,
            prefetch,
            workers: self.workers,
            collate: self.collate,
            drop_last: self.drop_last,
            stream,
            site,
            loading: HostTrack::new("loading"),
            worker_tracks: (0..self.workers).map(|n| HostTrack::new(format!("loading {n}"))).collect(),
            memory: Arc::new(memory),
        };
        Ok(Batches::new(Arc::new(plan), 0..1))
    }

    fn check_numbers(&self, prefetch: usize) -> Result<()> {
        let numbers = [
            ("batch_size", self.batch_size),
            ("prefetch", prefetch),
            ("shuffle_capacity", self.shuffle_capacity.unwrap_or(1)),
        ];
        if let Some((what, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Err(refused(format!("{what} is 0, and at least 1 is needed; raise it")));
        }
        if self.workers > MOST_WORKERS {
            return Err(refused(format!(
                "{} workers are more than the {MOST_WORKERS} blocking threads of a tokio runtime; \
                 lower workers",
                self.workers
            )));
        }
        if self.workers > prefetch.saturating_add(1) {
            return Err(refused(format!(
                "{} workers need as many pinned batches, and a prefetch of {prefetch} has {}; raise \
                 prefetch, or lower workers",
                self.workers,
                prefetch + 1
            )));
        }
        Ok(())
    }

    /// Returns an error if the pinned memory can never have as many batches as `prefetch` needs.
    fn check_cap(&self, stream: &Stream, lens_bytes: &[usize], prefetch: usize) -> Result<()> {
        let (device, batch) = (stream.device(), lens_bytes.iter().map(|&bytes| pinned_len(bytes)));
        let (cap, batch) = (device.pinned_stats().cap_bytes, batch.fold(0usize, usize::saturating_add));
        let (fit, needed) = (cap / batch.max(1), prefetch.saturating_add(1));
        if needed <= fit {
            return Ok(());
        }
        let advice = match fit {
            0 | 1 => "lower batch_size, or raise pinned_cap".into(),
            _ => format!("lower prefetch to {} or batch_size, or raise pinned_cap", fit - 1),
        };
        Err(refused(format!(
            "with prefetch {prefetch} and {} workers it needs {needed} pinned batches of {}, and the pinned \
             memory of {} is capped at {}, which is {fit} of them; {advice}",
            self.workers,
            ByteSize(batch),
            device.id(),
            ByteSize(cap)
        )))
    }

    /// Returns an error if options exclude each other.
    fn check_order(&self) -> Result<()> {
        let excluded = [
            (
                self.seed.is_some() && self.sampler.is_some(),
                "shuffle and a sampler are both set, and each decides the order; remove one of them",
            ),
            (
                self.is_sequential() && self.sampler.is_some(),
                "a sampler chooses samples by index, and this dataset is sequential; remove the \
                 sampler, or implement Dataset",
            ),
            (
                self.is_sequential() && self.workers > 1,
                "several workers read by index, and this dataset is sequential; set 1 worker, or \
                 implement Dataset",
            ),
            (
                !self.is_sequential() && self.shuffle_capacity.is_some(),
                "shuffle_capacity is for sequential datasets, and this one is read by index; remove \
                 it, since shuffle draws from all samples",
            ),
        ];
        match excluded.into_iter().find(|(excluded, _)| *excluded) {
            Some((_, why)) => Err(refused(why)),
            None => Ok(()),
        }
    }

    fn is_sequential(&self) -> bool {
        matches!(self.dataset, Source::Sequential(_))
    }

    fn name(&self) -> String {
        match &self.dataset {
            Source::Sequential(dataset) => dataset.name(),
            Source::Indexed(dataset) => dataset.name(),
        }
    }

    /// Returns the fields' shapes, and the number of elements of each.
    fn shapes(&self) -> Result<(S::Shapes, S::Widths)> {
        let shapes = match &self.dataset {
            Source::Sequential(dataset) => dataset.shapes(),
            Source::Indexed(dataset) => dataset.shapes(),
        };
        if let Some(field) = shapes.as_ref().iter().position(|shape| shape.contains(&0)) {
            return Err(refused(format!(
                "field {field} of {} has the shape {} and so 0 elements, and at least 1 is needed; \
                 correct the shape, or leave the field out",
                self.name(),
                shapes.as_ref()[field]
            )));
        }
        let fits = |(width, (_, bytes)): (&usize, &(&str, usize))| {
            let len_bytes = self.batch_size.checked_mul(*width).and_then(|len| len.checked_mul(*bytes));
            len_bytes.is_some_and(|len| isize::try_from(len).is_ok())
        };
        match S::widths(&shapes) {
            Some(widths) if widths.as_ref().iter().zip(S::ELEMENTS).all(fits) => Ok((shapes, widths)),
            _ => {
                let shapes: Vec<_> = shapes.as_ref().iter().map(Shape::to_string).collect();
                Err(refused(format!(
                    "a batch of {} samples of the shapes {} is larger than any memory; lower \
                     batch_size",
                    self.batch_size,
                    shapes.join(", ")
                )))
            }
        }
    }

    /// Returns the dataset and its order. Checks that there is a sample.
    fn source(&self, widths: S::Widths) -> Result<Ordered<S>> {
        let (source, empty) = match &self.dataset {
            Source::Sequential(dataset) => {
                let mut first = S::Columns::default();
                S::grow(&mut first, widths);
                let found = dataset.open()?.next_row(S::column_slots(&mut first, widths, 0))?;
                let shuffle = self.seed.map(|seed| (seed, self.shuffle_capacity.unwrap_or(4096)));
                (Source::Sequential(Arc::new(Sequential { dataset: dataset.clone(), shuffle })), !found)
            }
            Source::Indexed(dataset) => {
                let len = dataset.len();
                let sampler = match (&self.sampler, self.seed) {
                    (Some(sampler), _) => sampler.clone(),
                    (None, Some(seed)) => Arc::new(Shuffled::new(seed)),
                    (None, None) => Arc::new(InOrder),
                };
                (
                    Source::Indexed(Arc::new(Indexed { dataset: dataset.clone(), len, widths, sampler })),
                    len == 0,
                )
            }
        };
        if empty {
            return Err(Error::new(
                ErrorKind::Data,
                format!(
                    "a loader cannot be built: {} has 0 rows, and at least 1 is needed; check its \
                     contents and the rows that are kept",
                    self.name()
                ),
            ));
        }
        Ok(source)
    }
}

/// Returns the error of a loader that cannot be built because of `error`.
fn refused_like(error: &Error, why: &str) -> Error {
    match error.kind() {
        ErrorKind::OutOfMemory => {
            Error::new(ErrorKind::OutOfMemory, format!("a loader cannot be built: {why}: {error}"))
        }
        _ => error.clone(),
    }
}

fn refused(why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("a loader cannot be built: {why}"))
}

/// Returns whether the stream has a `max_in_flight`.
///
/// Only such a stream grants room or lets callers wait for it. Room that is granted here is
/// released immediately.
fn has_limit(stream: &Stream) -> bool {
    !matches!(stream.room().now_or_never(), Some(Err(error)) if error.kind() == ErrorKind::InvalidArgument)
}

impl<S: Sample> Clone for Loader<S> {
    fn clone(&self) -> Self {
        Loader {
            dataset: self.dataset.clone(),
            sampler: self.sampler.clone(),
            collate: self.collate.clone(),
            stream: self.stream.clone(),
            ..*self
        }
    }
}

impl<S: Sample> fmt::Debug for Loader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("dataset", &self.name())
            .field("batch_size", &self.batch_size)
            .field("prefetch", &self.prefetch)
            .field("workers", &self.workers)
            .field("seed", &self.seed)
            .field("shuffle_capacity", &self.shuffle_capacity)
            .field("has_sampler", &self.sampler.is_some())
            .field("drop_last", &self.drop_last)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
