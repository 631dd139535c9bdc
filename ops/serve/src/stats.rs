//! The figures of a batcher.

use crate::ServeError;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of a batcher, and the calls that have ended since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatcherStats {
    /// The number of rows that count against `max_queued`: that of
    /// [`Batcher::queued`](crate::Batcher::queued).
    pub queued: usize,
    /// The number of calls whose batch runs.
    pub running: usize,
    /// The number of batches that were computed.
    pub batches: u64,
    /// The number of calls that got their row of the outputs.
    pub answered: u64,
    /// The number of rows that were computed for calls that had ended: their callers had left, or
    /// the device had failed.
    pub thrown_away: u64,
    /// The number of calls whose callers left before their row was computed, or before they got
    /// an error.
    pub left: u64,
    /// The number of calls that failed with [`ServeError::Full`].
    pub full: u64,
    /// The number of calls that failed with [`ServeError::Late`].
    pub late: u64,
    /// The number of calls that failed with [`ServeError::Writer`] or [`ServeError::Length`], or
    /// whose writer panicked.
    pub writer: u64,
    /// The number of calls that failed with [`ServeError::Model`] or [`ServeError::Panicked`].
    pub model: u64,
    /// The number of calls that failed with [`ServeError::Draining`], [`ServeError::Failed`] or
    /// [`ServeError::Stopped`]: those that came, or were still queued, at the batcher's end.
    pub ended: u64,
}

/// The counts of the calls that have ended. Each is a count of its own: a reader may see one call
/// here and not yet there.
#[derive(Default)]
pub(crate) struct Counts {
    batches: AtomicU64,
    answered: AtomicU64,
    thrown_away: AtomicU64,
    left: AtomicU64,
    full: AtomicU64,
    late: AtomicU64,
    writer: AtomicU64,
    model: AtomicU64,
    ended: AtomicU64,
}

impl Counts {
    /// Notes a batch that was computed.
    pub(crate) fn computed(&self, answered: usize, thrown_away: usize) {
        add(&self.batches, 1);
        add(&self.answered, answered);
        add(&self.thrown_away, thrown_away);
    }

    /// Notes a writer that panicked.
    pub(crate) fn writer_panicked(&self) {
        add(&self.writer, 1);
    }

    /// Notes a caller who left.
    pub(crate) fn left(&self) {
        add(&self.left, 1);
    }

    /// Returns the counts, with the numbers of rows that are queued and running.
    pub(crate) fn stats(&self, queued: usize, running: usize) -> BatcherStats {
        let Counts { batches, answered, thrown_away, left, full, late, writer, model, ended } = self;
        BatcherStats {
            queued,
            running,
            batches: read(batches),
            answered: read(answered),
            thrown_away: read(thrown_away),
            left: read(left),
            full: read(full),
            late: read(late),
            writer: read(writer),
            model: read(model),
            ended: read(ended),
        }
    }

    /// Notes the error that a call returns.
    pub(crate) fn failed(&self, error: &ServeError) {
        let count = match error {
            ServeError::Full { .. } => &self.full,
            ServeError::Late => &self.late,
            ServeError::Writer(_) | ServeError::Length { .. } => &self.writer,
            ServeError::Model(_) | ServeError::Panicked(_) => &self.model,
            ServeError::Draining | ServeError::Failed(_) | ServeError::Stopped => &self.ended,
        };
        add(count, 1);
    }
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

fn add(count: &AtomicU64, number: usize) {
    count.fetch_add(number as u64, Ordering::Relaxed);
}
