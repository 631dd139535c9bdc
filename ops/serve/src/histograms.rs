//! The histograms of a batcher, for the exporters of the crate `metrics`.

use metrics::{Histogram, Unit, describe_histogram, histogram};
use std::time::Duration;

const WAIT: &str = "warpline_batcher_wait_seconds";
const ROWS: &str = "warpline_batcher_batch_rows";
const TIME: &str = "warpline_batcher_batch_seconds";

/// The histograms of a batcher.
pub(crate) struct Histograms {
    wait: Histogram,
    rows: Histogram,
    time: Histogram,
}

impl Histograms {
    /// Returns the histograms of the recorder that is installed now.
    pub(crate) fn of(label: &str) -> Self {
        describe_histogram!(WAIT, Unit::Seconds, "How long a row was queued until its batch was taken");
        describe_histogram!(ROWS, Unit::Count, "The number of rows of a batch");
        describe_histogram!(TIME, Unit::Seconds, "The time of a batch, from its taking to its answer");
        let label = label.to_string();
        Histograms {
            wait: histogram!(WAIT, "batcher" => label.clone()),
            rows: histogram!(ROWS, "batcher" => label.clone()),
            time: histogram!(TIME, "batcher" => label),
        }
    }

    /// Notes a batch that was taken, and how long each of its rows had been queued.
    pub(crate) fn taken(&self, rows: usize, waited: &[Duration]) {
        self.rows.record(rows as f64);
        for wait in waited {
            self.wait.record(*wait);
        }
    }

    /// Notes the time of a batch, from its taking to its answer.
    pub(crate) fn ran(&self, time: Duration) {
        self.time.record(time);
    }
}
