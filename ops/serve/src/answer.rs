//! The answer to a call.

use crate::Rows;
use std::fmt;

/// A row of a model's outputs.
///
/// It is a view of the batch's pinned memory, which returns to its pool when the answers of all
/// calls of the batch are dropped. To keep an answer for long, take it [out](Self::into_owned).
pub struct Answer<O: Rows> {
    pub(crate) row: O::Row,
    pub(crate) version: u64,
    pub(crate) batch: usize,
}

impl<O: Rows> Answer<O> {
    /// Returns the outputs: `(&[A], &[B])` for a model with the outputs `(A, B)`.
    pub fn outputs(&self) -> O::View<'_> {
        O::view(&self.row)
    }

    /// Copies the outputs to vectors, and releases the batch's memory.
    pub fn into_owned(self) -> O::Owned {
        O::owned(&self.row)
    }

    /// Returns the version of the model that computed it: 0, and one more after each
    /// [`swap`](crate::Batcher::swap).
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of rows of the batch that it was part of.
    pub fn batch_rows(&self) -> usize {
        self.batch
    }
}

impl<O: Rows> fmt::Debug for Answer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("version", &self.version)
            .field("batch_rows", &self.batch)
            .finish_non_exhaustive()
    }
}
