//! Reads a dataset by index: draws the indices of batch after batch, and fills a batch with the
//! samples at its indices.
//!
//! Drawing has to be done in order, by one thread at a time. Filling may be done by several threads
//! at the same time, since each has its own batch.

use super::caught::{Stop, caught, no_batch};
use super::collate::BatchPlace;
use super::dataset::Dataset;
use super::plan::Plan;
use super::sample::Sample;
use super::sampler::{Indices, Sampler};
use super::supply::Host;
use std::ops::Range;
use std::sync::Arc;
use warpline_runtime::{Error, ErrorKind, Result};

/// A dataset that is read by index, and the order of its samples.
pub(super) struct Indexed<S: Sample> {
    pub(super) dataset: Arc<dyn Dataset<Sample = S>>,
    pub(super) len: usize,
    pub(super) widths: S::Widths,
    pub(super) sampler: Arc<dyn Sampler>,
}

/// A batch to be read.
pub(super) struct Job {
    pub(super) place: BatchPlace,
    indices: Vec<usize>,
}

impl<S: Sample> Indexed<S> {
    /// Reads the samples of `job` into `host`. Returns `false` if `stop` returned `true`.
    pub(super) fn fill(&self, job: &Job, host: &mut Host<S>, stop: Stop<'_>) -> Result<bool> {
        let BatchPlace { epoch, index: batch, .. } = job.place;
        caught("the dataset", epoch, batch, || {
            let mut rest = host.slots(0..job.indices.len());
            for &index in &job.indices {
                if stop() {
                    return Ok(false);
                }
                if index >= self.len {
                    return Err(self.no_such_sample(job.place, index));
                }
                self.dataset.read(index, S::take_row(&mut rest, self.widths))?;
            }
            Ok(true)
        })
    }

    #[cold]
    fn no_such_sample(&self, place: BatchPlace, index: usize) -> Error {
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "the sampler yielded index {index} for batch {} of epoch {}, and {} has {} samples; \
                 correct the sampler",
                place.index,
                place.epoch,
                self.dataset.name(),
                self.len
            ),
        )
    }
}

/// The batches of a loader's epochs in order, as indices. It is not used again after an error or
/// the end.
pub(super) struct Order<S: Sample> {
    plan: Arc<Plan<S>>,
    indexed: Arc<Indexed<S>>,
    /// The epochs after the current one.
    epochs: Range<u64>,
    epoch: Option<(u64, Indices)>,
    /// The number of batches drawn from the current epoch.
    batches: u64,
}

impl<S: Sample> Order<S> {
    pub(super) fn new(plan: Arc<Plan<S>>, indexed: Arc<Indexed<S>>, epochs: Range<u64>) -> Self {
        Order { plan, indexed, epochs, epoch: None, batches: 0 }
    }

    pub(super) fn indexed(&self) -> &Arc<Indexed<S>> {
        &self.indexed
    }

    /// Returns the next batch, or `None` after the last epoch.
    pub(super) fn next(&mut self) -> Result<Option<Job>> {
        let (epoch, batch) =
            (self.epoch.as_ref().map_or(self.epochs.start, |(number, _)| *number), self.batches);
        // Also around the drop of the indices and the dataset's name.
        caught("the sampler", epoch, batch, || self.draw())
    }

    fn draw(&mut self) -> Result<Option<Job>> {
        loop {
            let (number, mut indices) = match self.epoch.take() {
                Some(epoch) => epoch,
                None => {
                    let Some(number) = self.epochs.next() else { return Ok(None) };
                    self.batches = 0;
                    let Indexed { sampler, len, .. } = &*self.indexed;
                    (number, caught("the sampler", number, 0, || sampler.indices(*len, number))?)
                }
            };
            let drawn: Vec<_> = caught("the sampler", number, self.batches, || {
                Ok(indices.by_ref().take(self.plan.batch_size).collect())
            })?;
            let rows = drawn.len();
            if rows == self.plan.batch_size || (rows > 0 && !self.plan.drop_last) {
                // A shorter batch is the epoch's last one.
                self.epoch = (rows == self.plan.batch_size).then_some((number, indices));
                self.batches += 1;
                let place = BatchPlace { epoch: number, index: self.batches - 1, rows };
                return Ok(Some(Job { place, indices: drawn }));
            }
            if self.batches == 0 {
                let name = format!("the sampler's order of {}", self.indexed.dataset.name());
                return Err(no_batch(number, &name, rows, self.plan.batch_size));
            }
        }
    }
}
