//! A dataset in the host's memory, for tests, benches and small data.

use super::dataset::Dataset;
use super::sample::Sample;
use crate::Shape;
use std::fmt;
use std::sync::Arc;
use warpline_runtime::{Error, ErrorKind, Result};

/// A dataset in the host's memory. It is cheap to clone: clones share the samples.
pub struct InMemory<S: Sample>(Arc<Table<S>>);

struct Table<S: Sample> {
    shapes: S::Shapes,
    widths: S::Widths,
    columns: S::Columns,
    len: usize,
}

impl InMemory<(f32, i64)> {
    /// Creates a dataset with one row of features per label. `x` holds the rows one after the
    /// other, each with `features` numbers.
    ///
    /// # Errors
    /// `Shape` if the lengths do not match or `features` is 0.
    pub fn new(features: usize, x: Vec<f32>, labels: Vec<i64>) -> Result<Self> {
        if features == 0 || labels.len().checked_mul(features) != Some(x.len()) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a dataset of {} labels and {} numbers: expected {features} numbers for each \
                     label; pass the same number of rows of both",
                    labels.len(),
                    x.len()
                ),
            ));
        }
        InMemory::from_columns([[features].into(), Shape::from([])], (x, labels))
    }
}

impl<S: Sample> InMemory<S> {
    /// Creates a dataset from one vector per field, which holds the field of all samples one after
    /// the other.
    ///
    /// # Errors
    /// `Shape` if a shape has no elements, or if the vectors do not all hold the same whole number
    /// of samples.
    ///
    /// # Examples
    /// Three images of 2 × 2 bytes, with a label and a weight each:
    /// ```
    /// use warpline::ops::data::InMemory;
    /// # fn main() -> warpline::Result<()> {
    /// let dataset = InMemory::<(u8, i64, f64)>::from_columns(
    ///     [[2, 2].into(), [].into(), [].into()],
    ///     (vec![0; 12], vec![0, 1, 2], vec![1.0; 3]),
    /// )?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_columns(shapes: S::Shapes, columns: S::Columns) -> Result<Self> {
        let names: Vec<_> = S::ELEMENTS.iter().map(|(name, _)| *name).collect();
        let wrong = |why: String| {
            let shapes: Vec<_> = shapes.as_ref().iter().map(Shape::to_string).collect();
            let (types, shapes) = (names.join(", "), shapes.join(", "));
            Error::new(ErrorKind::Shape, format!("a dataset of ({types}) with shapes ({shapes}): {why}"))
        };
        let no_elements = || wrong("a field has no elements; leave it out".into());
        let widths =
            S::widths(&shapes).filter(|widths| !widths.as_ref().contains(&0)).ok_or_else(no_elements)?;
        let len = S::column_rows(&columns, widths).map_err(|lens| {
            wrong(format!(
                "the vectors have {lens:?} elements, not the same number of samples; pass {:?} \
                 elements for each sample",
                widths.as_ref()
            ))
        })?;
        Ok(InMemory(Arc::new(Table { shapes, widths, columns, len })))
    }
}

impl<S: Sample> Clone for InMemory<S> {
    fn clone(&self) -> Self {
        InMemory(self.0.clone())
    }
}

impl<S: Sample> Dataset for InMemory<S> {
    type Sample = S;

    fn shapes(&self) -> S::Shapes {
        self.0.shapes.clone()
    }

    fn len(&self) -> usize {
        self.0.len
    }

    fn read(&self, index: usize, sample: S::Slots<'_>) -> Result<()> {
        S::copy_row(&self.0.columns, self.0.widths, index, sample);
        Ok(())
    }
}

impl<S: Sample> fmt::Debug for InMemory<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Table { shapes, len, .. } = &*self.0;
        f.debug_struct("InMemory").field("shapes", shapes).field("len", len).finish_non_exhaustive()
    }
}
