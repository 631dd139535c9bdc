//! One pass through a dataset: its rows in the epoch's order.

use super::dataset::Rows;
use super::loader::Loader;
use super::shuffle::Shuffle;
use warpline_runtime::Result;

/// Says that nobody wants the rows any more. Asked before every row, since one may take long.
pub(super) type Stop<'a> = &'a dyn Fn() -> bool;

pub(super) struct Epoch {
    pub(super) number: u64,
    rows: Box<dyn Rows>,
    shuffle: Option<Shuffle>,
    /// Whether the dataset has ended. It is not asked again.
    ended: bool,
}

impl Epoch {
    pub(super) fn open(loader: &Loader, number: u64) -> Result<Self> {
        let features = loader.dataset.features();
        let shuffle = loader.seed.map(|seed| Shuffle::new(loader.shuffle_capacity, features, seed, number));
        Ok(Epoch { number, rows: loader.dataset.open()?, shuffle, ended: false })
    }

    /// The next row in the epoch's order, as [`Rows::next_row`].
    pub(super) fn next_row(&mut self, stop: Stop<'_>, features: &mut [f32]) -> Result<Option<i64>> {
        let (rows, ended) = (&mut self.rows, &mut self.ended);
        let mut read = |features: &mut [f32]| read(&mut **rows, ended, stop, features);
        match &mut self.shuffle {
            Some(shuffle) => shuffle.next_row(read, features),
            None => read(features),
        }
    }

    /// Reads one row into the shuffle buffer, if there is one that is not full.
    pub(super) fn read_ahead(&mut self, stop: Stop<'_>) -> Result<()> {
        let (rows, ended) = (&mut self.rows, &mut self.ended);
        let Some(shuffle) = &mut self.shuffle else { return Ok(()) };
        shuffle.fill_one(|features| read(&mut **rows, ended, stop, features)).map(drop)
    }

    /// Whether every row has been read, though some may still be in the shuffle buffer.
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
