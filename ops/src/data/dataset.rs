//! The traits of the datasets that a loader reads.

use std::sync::Arc;
use warpline_runtime::Result;

/// A source of rows that can be read again for every epoch.
///
/// A row consists of [`features`](Self::features) numbers and an integer label.
pub trait Dataset: Send + Sync + 'static {
    /// Returns the number of features in a row, without the label.
    fn features(&self) -> usize;

    /// Returns the name that errors use, for example a file's path.
    fn name(&self) -> String {
        "the dataset".into()
    }

    /// Opens the dataset at its first row.
    ///
    /// Called once per epoch, where blocking is allowed, and once by
    /// [`Loader::build`](super::Loader::build).
    ///
    /// # Errors
    /// `Data`, with the name of the file or other source that cannot be opened.
    fn open(&self) -> Result<Box<dyn Rows>>;
}

/// A reader at some row of a [`Dataset`].
pub trait Rows: Send {
    /// Writes the next row's features and returns its label, or `None` after the last row.
    ///
    /// It may block, but it must not wait until the consumer of its own loader takes a batch. With
    /// a [`prefetch`](super::Loader::prefetch) of 5 or more, quickly read batches are handed over
    /// in groups, so the consumer may get a batch only after the next row has been read. `features`
    /// has the dataset's width, and its previous contents are unspecified.
    ///
    /// # Errors
    /// `Data`, with the file and the line, or with other information that locates the row. The
    /// reader is not used again after an error.
    fn next_row(&mut self, features: &mut [f32]) -> Result<Option<i64>>;
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    fn features(&self) -> usize {
        (**self).features()
    }

    fn name(&self) -> String {
        (**self).name()
    }

    fn open(&self) -> Result<Box<dyn Rows>> {
        (**self).open()
    }
}
