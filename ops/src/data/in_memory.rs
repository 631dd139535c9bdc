//! A dataset in the host's memory, for tests, benches and small data.

use super::dataset::{Dataset, Rows};
use std::sync::Arc;
use warpline_runtime::{Error, ErrorKind, Result};

/// A dataset in the host's memory. It is cheap to clone: clones share the rows.
#[derive(Clone, Debug)]
pub struct InMemory(Arc<Table>);

#[derive(Debug)]
struct Table {
    features: usize,
    x: Vec<f32>,
    labels: Vec<i64>,
}

impl InMemory {
    /// Creates a dataset with one row per label. `x` holds the rows one after the other, each with
    /// `features` numbers.
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
        Ok(InMemory(Arc::new(Table { features, x, labels })))
    }
}

impl Dataset for InMemory {
    fn features(&self) -> usize {
        self.0.features
    }

    fn open(&self) -> Result<Box<dyn Rows>> {
        Ok(Box::new(Reader { table: self.0.clone(), next: 0 }))
    }
}

struct Reader {
    table: Arc<Table>,
    next: usize,
}

impl Rows for Reader {
    fn next_row(&mut self, features: &mut [f32]) -> Result<Option<i64>> {
        let Some(&label) = self.table.labels.get(self.next) else { return Ok(None) };
        let width = self.table.features;
        features.copy_from_slice(&self.table.x[self.next * width..][..width]);
        self.next += 1;
        Ok(Some(label))
    }
}
