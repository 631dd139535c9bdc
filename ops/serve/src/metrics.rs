//! Figures of batchers and devices for the exporters of the crate `metrics`.
//!
//! They are read when the exporter asks for them. A slot records its histograms itself, once for
//! each batch.

use crate::{Batcher, BatcherStats, Rows};
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use std::mem::replace;
use std::time::Duration;
use warpline_runtime::Device;

const QUEUED: &str = "warpline_batcher_queued_rows";
const OLDEST: &str = "warpline_batcher_oldest_wait_seconds";
const RUNNING: &str = "warpline_batcher_running_rows";
const BATCHES: &str = "warpline_batcher_batches_total";
const CALLS: &str = "warpline_batcher_calls_total";
const THROWN_AWAY: &str = "warpline_batcher_thrown_away_rows_total";
const UP: &str = "warpline_device_up";
const MEMORY: &str = "warpline_device_memory_bytes";
const OPS: &str = "warpline_device_ops_total";
const IN_FLIGHT: &str = "warpline_device_ops_in_flight";
const REFUSALS: &str = "warpline_device_refusals_total";
const PINNED: &str = "warpline_pinned_memory_bytes";

/// One of the counts.
type Count = fn(&BatcherStats) -> u64;

fn describe() {
    describe_gauge!(QUEUED, Unit::Count, "Rows that count against max_queued");
    describe_gauge!(OLDEST, Unit::Seconds, "How long the oldest queued row has waited");
    describe_gauge!(RUNNING, Unit::Count, "Rows whose batch runs");
    describe_counter!(BATCHES, Unit::Count, "Batches that were computed");
    describe_counter!(CALLS, Unit::Count, "Calls that have ended, by outcome");
    describe_counter!(THROWN_AWAY, Unit::Count, "Rows that were computed for callers who had left");
}

impl<I: Rows, O: Rows> Batcher<I, O> {
    /// Sets the gauges and counters of this batcher to its [`stats`](Batcher::stats). Call it just
    /// before the exporter renders.
    ///
    /// All of them have the label `batcher`, the batcher's
    /// [`label`](crate::BatcherBuilder::label).
    ///
    /// | figure | |
    /// |---|---|
    /// | `warpline_batcher_queued_rows` | gauge: rows that count against `max_queued` |
    /// | `warpline_batcher_oldest_wait_seconds` | gauge: the wait of the oldest queued row |
    /// | `warpline_batcher_running_rows` | gauge: rows whose batch runs |
    /// | `warpline_batcher_batches_total` | counter: batches that were computed |
    /// | `warpline_batcher_calls_total` | counter: calls that have ended, by `outcome` |
    /// | `warpline_batcher_thrown_away_rows_total` | counter: rows of callers who had left |
    ///
    /// The label `outcome` is `answered`, `left`, `full`, `late`, `writer`, `model` or `ended`.
    ///
    /// Its slots record three histograms by themselves, in the recorder that was installed when
    /// the batcher was built: `warpline_batcher_wait_seconds`, `warpline_batcher_batch_rows` and
    /// `warpline_batcher_batch_seconds`.
    ///
    /// An exporter may keep the samples of histograms until somebody reads them. That of
    /// Prometheus does: call its `run_upkeep` every few seconds.
    ///
    /// # Examples
    /// ```
    /// use metrics_exporter_prometheus::PrometheusHandle;
    /// use warpline::prelude::*;
    /// use warpline::serve::{Batcher, record_device_metrics};
    ///
    /// type Digits = Batcher<(f32,), (f32,)>;
    ///
    /// /// The body of the answer to `GET /metrics`.
    /// fn metrics(digits: &Digits, device: &Device, prometheus: &PrometheusHandle) -> String {
    ///     digits.record_metrics();
    ///     record_device_metrics(device);
    ///     prometheus.render()
    /// }
    /// ```
    pub fn record_metrics(&self) {
        describe();
        let stats = self.stats();
        let label = self.shared().label.to_string();
        gauge!(QUEUED, "batcher" => label.clone()).set(stats.queued as f64);
        let oldest = self.shared().queue.lock().oldest();
        let oldest_wait = oldest.map_or(Duration::ZERO, |since| since.elapsed());
        gauge!(OLDEST, "batcher" => label.clone()).set(oldest_wait);
        gauge!(RUNNING, "batcher" => label.clone()).set(stats.running as f64);
        // The difference, since a counter of this name may exist from an earlier batcher.
        let before = replace(&mut *self.shared().recorded.lock(), stats);
        let more = |of: Count| of(&stats).saturating_sub(of(&before));
        counter!(BATCHES, "batcher" => label.clone()).increment(more(|stats| stats.batches));
        counter!(THROWN_AWAY, "batcher" => label.clone()).increment(more(|stats| stats.thrown_away));
        let outcomes: [(_, Count); 7] = [
            ("answered", |stats| stats.answered),
            ("left", |stats| stats.left),
            ("full", |stats| stats.full),
            ("late", |stats| stats.late),
            ("writer", |stats| stats.writer),
            ("model", |stats| stats.model),
            ("ended", |stats| stats.ended),
        ];
        for (outcome, of) in outcomes {
            counter!(CALLS, "batcher" => label.clone(), "outcome" => outcome).increment(more(of));
        }
    }
}

/// Sets the gauges and counters of a device to its statistics. Call it just before the exporter
/// renders.
///
/// All of them have the label `device`, such as `cuda:0`.
///
/// | figure | |
/// |---|---|
/// | `warpline_device_up` | gauge: 1 while the device accepts work, otherwise 0 |
/// | `warpline_device_ops_total` | counter: ops that its streams have accepted |
/// | `warpline_device_ops_in_flight` | gauge: those that are not known to have ended |
/// | `warpline_device_refusals_total` | counter, by `kind`: refused ops and allocations |
/// | `warpline_device_memory_bytes` | gauge, by `state`, of which there are five |
/// | `warpline_pinned_memory_bytes` | gauge, by `state`: `live` and `cached` |
///
/// The states of device memory are `live`, `cached`, `graphs`, `budgets` (granted) and
/// `budgets_used`. A `kind` is the name of an [`ErrorKind`](warpline_runtime::ErrorKind), such as
/// `OutOfMemory`. [`OpStats`](warpline_runtime::OpStats) says what is counted. Ops have no kind
/// here, since nothing is counted where they are enqueued. Several runtimes that open one device
/// share its figures: a counter shows the highest of theirs.
pub fn record_device_metrics(device: &Device) {
    describe_gauge!(UP, "Whether the device accepts work");
    describe_counter!(OPS, Unit::Count, "Ops that the device's streams have accepted");
    describe_gauge!(IN_FLIGHT, Unit::Count, "Ops that have not ended, as far as the host knows");
    describe_counter!(REFUSALS, Unit::Count, "Ops and allocations that were refused, by kind");
    describe_gauge!(MEMORY, Unit::Bytes, "Memory of the device, by state");
    describe_gauge!(PINNED, Unit::Bytes, "Page-locked memory, by state");
    let label = device.id().to_string();
    gauge!(UP, "device" => label.clone()).set(if device.health().is_ready() { 1.0 } else { 0.0 });
    let ops = device.op_stats();
    counter!(OPS, "device" => label.clone()).absolute(ops.enqueued);
    gauge!(IN_FLIGHT, "device" => label.clone()).set(ops.in_flight as f64);
    for (kind, refused) in ops.refused {
        let kind = format!("{kind:?}");
        counter!(REFUSALS, "device" => label.clone(), "kind" => kind).absolute(refused);
    }
    let memory = device.memory_stats();
    let states = [
        ("live", memory.allocated_bytes),
        ("cached", memory.reserved_bytes.saturating_sub(memory.allocated_bytes)),
        ("graphs", memory.graph_bytes),
        ("budgets", memory.budget_bytes),
        ("budgets_used", memory.budget_used_bytes),
    ];
    for (state, bytes) in states {
        gauge!(MEMORY, "device" => label.clone(), "state" => state).set(bytes as f64);
    }
    let pinned = device.pinned_stats();
    let cached = pinned.reserved_bytes.saturating_sub(pinned.allocated_bytes);
    for (state, bytes) in [("live", pinned.allocated_bytes), ("cached", cached)] {
        gauge!(PINNED, "device" => label.clone(), "state" => state).set(bytes as f64);
    }
}
