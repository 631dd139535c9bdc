//! One pass through a dataset, with its rows in the epoch's order.

use super::dataset::Rows;
use super::loader::Loader;
use super::shuffle::Shuffle;
use warpline_runtime::Result;

/// A function that returns `true` if the consumer no longer wants rows.
///
/// It is called before every row, since reading a row may take long.
pub(super) type Stop<'a> = &'a dyn Fn() -> bool;

pub(super) struct Epoch {
    pub(super) number: u64,
    rows: Box<dyn Rows>,
    shuffle: Option<Shuffle>,
    /// `true` if the dataset has ended. It is not read again.
    ended: bool,
}

impl Epoch {
    pub(super) fn open(loader: &Loader, number: u64) -> Result<Self> {
        let features = loader.dataset.features();
        let shuffle = loader.seed.map(|seed| Shuffle::new(loader.shuffle_capacity, features, seed, number));
        Ok(Epoch { number, rows: loader.dataset.open()?, shuffle, ended: false })
    }

    /// Returns the next row in the epoch's order, like [`Rows::next_row`].
    pub(super) fn next_row(&mut self, stop: Stop<'_>, features: &mut [f32]) -> Result<Option<i64>> {
        let (rows, ended) = (&mut self.rows, &mut self.ended);
        let mut read = |features: &mut [f32]| read(&mut **rows, ended, stop, features);
        match &mut self.shuffle {
            Some(shuffle) => shuffle.next_row(read, features),
            None => read(features),
        }
    }

    /// Reads one row into the shuffle buffer, if there is a buffer that is not full.
    pub(super) fn read_ahead(&mut self, stop: Stop<'_>) -> Result<()> {
        let (rows, ended) = (&mut self.rows, &mut self.ended);
        let Some(shuffle) = &mut self.shuffle else { return Ok(()) };
        shuffle.fill_one(|features| read(&mut **rows, ended, stop, features)).map(drop)
    }

    /// Returns whether every row has been read. Some may still be in the shuffle buffer.
    pub(super) fn is_read(&self) -> bool {
        self.ended
    }
}

fn read(rows: &mut dyn Rows, ended: &mut bool, stop: Stop<'_>, features: &mut [f32]) -> Result<Option<i64>> {
    if *ended || stop() {
        return Ok(None);
    }
    let label = rows.next_row(features)?;
    *ended = label.is_none();
    Ok(label)
}
