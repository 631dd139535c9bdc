//! What a loader reads: rows of features and a label, as often as it likes.

use std::sync::Arc;
use warpline_runtime::Result;

/// Rows that can be read again for every epoch.
///
/// A row is [`features`](Self::features) numbers and an integer label.
pub trait Dataset: Send + Sync + 'static {
    /// Numbers in a row, without its label.
    fn features(&self) -> usize;

    /// What errors call it: a file's path, say.
    fn name(&self) -> String {
        "the dataset".into()
    }

    /// Begins at the first row. Called once an epoch, where reading may block.
    ///
    /// # Errors
    /// `Data`, with the name of what cannot be opened.
    fn open(&self) -> Result<Box<dyn Rows>>;
}

/// A reader somewhere in a [`Dataset`].
pub trait Rows: Send {
    /// Writes the next row's features and returns its label; `None` after the last row.
    ///
    /// May block: it is called where that is allowed. But it must not wait for the consumer of its own loader to take a batch: with
    /// a [`prefetch`](super::Loader::prefetch) of 5 or more, quickly read batches are handed over in groups, and the consumer
    /// may only get one after the next row. `features` has the dataset's width and holds anything before.
    ///
    /// # Errors
    /// `Data`, with the file and the line, or whatever else says where it is. The reader is not used again.
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
