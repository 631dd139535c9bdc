//! Reads a sequential dataset, epoch after epoch, through a shuffle buffer if there is one.

use super::caught::{Stop, caught, no_batch};
use super::collate::BatchPlace;
use super::dataset::{Rows, SequentialDataset};
use super::plan::Plan;
use super::sample::Sample;
use super::shuffle::Shuffle;
use super::supply::Host;
use std::ops::Range;
use std::sync::Arc;
use warpline_runtime::Result;

/// A sequential dataset, and the options for reading it.
pub(super) struct Sequential<S: Sample> {
    pub(super) dataset: Arc<dyn SequentialDataset<Sample = S>>,
    /// The seed and the capacity of the shuffle buffer.
    pub(super) shuffle: Option<(u64, usize)>,
}

/// The epochs of a loader, which are read one after the other.
pub(super) struct Passes<S: Sample> {
    plan: Arc<Plan<S>>,
    sequential: Arc<Sequential<S>>,
    /// The epochs after the current one.
    epochs: Range<u64>,
    epoch: Option<Epoch<S>>,
    /// The epoch after the current one, or the error from reading it.
    ///
    /// Its shuffle buffer fills while the current epoch's buffer empties.
    next: Option<Result<Epoch<S>>>,
    /// The number of batches read from the current epoch.
    batches: u64,
}

impl<S: Sample> Passes<S> {
    pub(super) fn new(plan: Arc<Plan<S>>, sequential: Arc<Sequential<S>>, epochs: Range<u64>) -> Self {
        Passes { plan, sequential, epochs, epoch: None, next: None, batches: 0 }
    }

    /// Fills `host` from the current epoch or, if that has ended, from the next.
    ///
    /// Returns `None` after the last epoch, and if `stop` returned `true`.
    pub(super) fn fill(&mut self, host: &mut Host<S>, stop: Stop<'_>) -> Result<Option<BatchPlace>> {
        loop {
            let Some(number) = self.begin()? else { return Ok(None) };
            let rows = caught("the dataset", number, self.batches, || self.fill_from_epoch(host, stop))?;
            if stop() {
                return Ok(None);
            }
            if rows == self.plan.batch_size || (rows > 0 && !self.plan.drop_last) {
                self.batches += 1;
                return Ok(Some(BatchPlace { epoch: number, index: self.batches - 1, rows }));
            }
            if self.batches == 0 {
                return Err(no_batch(number, &self.sequential.dataset.name(), rows, self.plan.batch_size));
            }
            self.epoch = None;
        }
    }

    /// Returns the number of the current epoch, and starts the next epoch if there is no current
    /// one.
    ///
    /// Returns `None` after the last epoch.
    fn begin(&mut self) -> Result<Option<u64>> {
        if self.epoch.is_none() {
            let Some(next) = self.next.take().or_else(|| self.open_next()) else { return Ok(None) };
            self.epoch = Some(next?);
            self.batches = 0;
        }
        Ok(self.epoch.as_ref().map(|epoch| epoch.number))
    }

    fn open_next(&mut self) -> Option<Result<Epoch<S>>> {
        let number = self.epochs.next()?;
        let open = || Epoch::open(&self.sequential, self.plan.widths, number);
        Some(caught("the dataset", number, 0, open))
    }

    fn fill_from_epoch(&mut self, host: &mut Host<S>, stop: Stop<'_>) -> Result<usize> {
        let widths = self.plan.widths;
        let mut rest = host.slots(0..self.plan.batch_size);
        for row in 0..self.plan.batch_size {
            let Some(epoch) = &mut self.epoch else { return Ok(row) };
            if !epoch.next_row(stop, S::take_row(&mut rest, widths))? {
                return Ok(row);
            }
            if epoch.ended {
                self.read_ahead(stop);
            }
        }
        Ok(self.plan.batch_size)
    }

    /// Reads one row of the next epoch.
    ///
    /// This is called for each row that the current epoch only has to draw, so reading continues at
    /// the same pace. An error or a panic is kept for the next epoch.
    fn read_ahead(&mut self, stop: Stop<'_>) {
        if self.next.is_none() {
            self.next = self.open_next();
        }
        if let Some(Ok(next)) = &mut self.next
            && let Err(error) = caught("the dataset", next.number, 0, || next.read_ahead(stop))
        {
            self.next = Some(Err(error));
        }
    }
}

/// One pass through a dataset, with its rows in the epoch's order.
struct Epoch<S: Sample> {
    number: u64,
    rows: Box<dyn Rows<S>>,
    shuffle: Option<Shuffle<S>>,
    /// `true` if the dataset has ended, and is not read again. Some rows may still be in the
    /// shuffle buffer.
    ended: bool,
}

impl<S: Sample> Epoch<S> {
    fn open(sequential: &Sequential<S>, widths: S::Widths, number: u64) -> Result<Self> {
        let shuffle = sequential.shuffle.map(|(seed, capacity)| Shuffle::new(capacity, widths, seed, number));
        Ok(Epoch { number, rows: sequential.dataset.open()?, shuffle, ended: false })
    }

    /// Writes the next row in the epoch's order, like [`Rows::next_row`].
    fn next_row(&mut self, stop: Stop<'_>, into: S::Slots<'_>) -> Result<bool> {
        let (rows, ended) = (&mut self.rows, &mut self.ended);
        let mut read = |into: S::Slots<'_>| read(&mut **rows, ended, stop, into);
        match &mut self.shuffle {
            Some(shuffle) => shuffle.next_row(read, into),
            None => read(into),
        }
    }

    /// Reads one row into the shuffle buffer, if there is a buffer that is not full.
    fn read_ahead(&mut self, stop: Stop<'_>) -> Result<()> {
        let (rows, ended) = (&mut self.rows, &mut self.ended);
        let Some(shuffle) = &mut self.shuffle else { return Ok(()) };
        shuffle.fill_one(|into| read(&mut **rows, ended, stop, into)).map(drop)
    }
}

fn read<S: Sample>(
    rows: &mut dyn Rows<S>,
    ended: &mut bool,
    stop: Stop<'_>,
    into: S::Slots<'_>,
) -> Result<bool> {
    if *ended || stop() {
        return Ok(false);
    }
    *ended = !rows.next_row(into)?;
    Ok(!*ended)
}
