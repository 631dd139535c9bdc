//! The figures of the service, in the text format of Prometheus.
//!
//! The batcher and its device set their figures in the recorder of the service. It is not that of
//! the process, so that tests can have a service each.

use crate::service::Service;
use metrics::{describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::fmt;
use std::future::{Future, poll_fn};
use std::iter::successors;
use std::pin::pin;
use warpline::serve::record_device_metrics;

const READY: &str = "warpline_serve_ready";
const VERSION: &str = "warpline_serve_model_version";

/// The upper bounds of the buckets of times, in seconds.
const SECONDS: [f64; 16] =
    [1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The recorder of a service.
pub(crate) struct Figures {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Figures {
    /// Makes the recorder of a service whose batches have at most this many rows.
    ///
    /// # Errors
    /// If the exporter refuses the bounds of a histogram.
    pub(crate) fn new(max_rows: usize) -> anyhow::Result<Self> {
        // Without bounds the exporter renders summaries, and quantiles of several processes cannot
        // be combined.
        let recorder = PrometheusBuilder::new()
            .set_buckets(&SECONDS)?
            .set_buckets_for_metric(Matcher::Suffix("_rows".to_owned()), &rows(max_rows))?
            .build_recorder();
        let handle = recorder.handle();
        with_local_recorder(&recorder, || {
            describe_gauge!(READY, "1 if requests are answered, and 0 otherwise");
            describe_gauge!(VERSION, "The version of the model");
        });
        Ok(Figures { recorder, handle })
    }

    /// Polls a future with the recorder: a batcher that it builds records its histograms here.
    pub(crate) async fn record<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| with_local_recorder(&self.recorder, || future.as_mut().poll(cx))).await
    }

    /// Returns the figures of the service.
    pub(crate) fn render(&self, service: &Service) -> String {
        with_local_recorder(&self.recorder, || {
            gauge!(READY).set(if service.why_not_ready().is_none() { 1.0 } else { 0.0 });
            gauge!(VERSION).set(service.version() as f64);
            service.batcher.record_metrics();
            record_device_metrics(&service.device);
        });
        self.keep_up();
        self.handle.render()
    }

    /// Sums up the samples of histograms.
    pub(crate) fn keep_up(&self) {
        self.handle.run_upkeep();
    }
}

/// Returns the upper bounds of the buckets of rows: powers of two, and the largest batch.
fn rows(max_rows: usize) -> Vec<f64> {
    let powers = successors(Some(1_usize), |power| power.checked_mul(2));
    powers.take_while(|power| *power < max_rows).chain([max_rows]).map(|rows| rows as f64).collect()
}

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figures").finish_non_exhaustive()
    }
}
