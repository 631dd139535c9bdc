//! The traits of the datasets that a loader reads.
// Decision: docs/decisions/0055-datasets-write-into-pinned-memory.md

use super::sample::Sample;
use std::sync::Arc;
use warpline_runtime::Result;

/// A dataset whose samples are read by index.
///
/// A loader reads it in the order of a [`Sampler`](super::Sampler), with one or several workers. If
/// samples can only be read one after the other, implement [`SequentialDataset`] instead.
///
/// # Examples
/// Images of bytes with a label and a weight. `read` writes straight into the pinned memory of a
/// batch.
/// ```
/// use warpline::ops::Shape;
/// use warpline::ops::data::{Dataset, Loader};
/// # use warpline::Result;
///
/// struct Checkers;
///
/// impl Dataset for Checkers {
///     type Sample = (u8, i64, f64);
///
///     fn shapes(&self) -> [Shape; 3] {
///         [[8, 8].into(), [].into(), [].into()] // a scalar has the shape []
///     }
///
///     fn len(&self) -> usize {
///         100
///     }
///
///     fn read(
///         &self,
///         index: usize,
///         (image, label, weight): (&mut [u8], &mut [i64], &mut [f64]),
///     ) -> Result<()> {
///         for (i, pixel) in image.iter_mut().enumerate() {
///             *pixel = 255 * ((i / 8 + i + index) % 2) as u8;
///         }
///         label[0] = index as i64 % 2;
///         weight[0] = 1.0;
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<()> {
/// # futures::executor::block_on(async {
/// let mut batches = Loader::new(Checkers).batch_size(10).workers(2).build()?;
/// let batch = batches.next().await.transpose()?.expect("100 samples");
/// let (images, labels, weights) = &batch.buffers;
/// assert_eq!((images.len(), labels.len(), weights.len()), (640, 10, 10));
/// # Ok(())
/// # })
/// # }
/// ```
#[expect(clippy::len_without_is_empty, reason = "a loader refuses an empty dataset")]
pub trait Dataset: Send + Sync + 'static {
    /// The element types of a sample's fields, for example `(f32, i64)`.
    type Sample: Sample;

    /// Returns the shape of each field, which all samples share. No size may be 0.
    fn shapes(&self) -> <Self::Sample as Sample>::Shapes;

    /// Returns the number of samples. It must not change while a loader uses the dataset.
    fn len(&self) -> usize;

    /// Writes sample `index`, which is less than [`len`](Self::len), into the fields' memory.
    ///
    /// The slices are pinned memory of the batch. Their previous contents are unspecified, so each
    /// element must be written. Several workers may call this at the same time. It may block, but
    /// it must not wait until the consumer of its own loader takes a batch.
    ///
    /// # Errors
    /// `Data`, with the file or other information that locates the sample. The batch is not
    /// yielded, and the stream of batches ends with this error.
    fn read(&self, index: usize, sample: <Self::Sample as Sample>::Slots<'_>) -> Result<()>;

    /// Returns the name that errors use, for example a folder's path.
    fn name(&self) -> String {
        "the dataset".into()
    }
}

/// A dataset whose samples are read one after the other, and again from the start for every epoch.
///
/// It may be larger than the memory, and its length need not be known. One worker reads it.
pub trait SequentialDataset: Send + Sync + 'static {
    /// The element types of a sample's fields, for example `(f32, i64)`.
    type Sample: Sample;

    /// Returns the shape of each field, which all samples share. No size may be 0.
    fn shapes(&self) -> <Self::Sample as Sample>::Shapes;

    /// Opens the dataset at its first sample.
    ///
    /// Called once per epoch, where blocking is allowed, and once by
    /// [`Loader::build`](super::Loader::build).
    ///
    /// # Errors
    /// `Data`, with the name of the file or other source that cannot be opened.
    fn open(&self) -> Result<Box<dyn Rows<Self::Sample>>>;

    /// Returns the name that errors use, for example a file's path.
    fn name(&self) -> String {
        "the dataset".into()
    }
}

/// A reader at some sample of a [`SequentialDataset`].
pub trait Rows<S: Sample>: Send {
    /// Writes the next sample into the fields' memory, or returns `false` after the last one.
    ///
    /// It may block, but it must not wait until the consumer of its own loader takes a batch. With
    /// a [`prefetch`](super::Loader::prefetch) of 5 or more, quickly read batches are handed over
    /// in groups, so the consumer may get a batch only after the next sample has been read. The
    /// previous contents of the slices are unspecified, so each element must be written.
    ///
    /// # Errors
    /// `Data`, with the file and the line, or with other information that locates the sample. The
    /// reader is not used again after an error.
    fn next_row(&mut self, sample: S::Slots<'_>) -> Result<bool>;
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Sample = D::Sample;

    fn shapes(&self) -> <D::Sample as Sample>::Shapes {
        (**self).shapes()
    }

    fn len(&self) -> usize {
        (**self).len()
    }

    fn read(&self, index: usize, sample: <D::Sample as Sample>::Slots<'_>) -> Result<()> {
        (**self).read(index, sample)
    }

    fn name(&self) -> String {
        (**self).name()
    }
}

impl<D: SequentialDataset + ?Sized> SequentialDataset for Arc<D> {
    type Sample = D::Sample;

    fn shapes(&self) -> <D::Sample as Sample>::Shapes {
        (**self).shapes()
    }

    fn open(&self) -> Result<Box<dyn Rows<D::Sample>>> {
        (**self).open()
    }

    fn name(&self) -> String {
        (**self).name()
    }
}
