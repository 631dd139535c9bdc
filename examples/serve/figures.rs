//! The figures of the service, in the text format of Prometheus.
//!
//! The batcher and its device set their figures in the recorder of the service. It is not that of
//! the process, so that tests can have a service each.

use crate::service::Service;
use metrics::{describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use warpline::serve::record_device_metrics;

const READY: &str = "warpline_serve_ready";
const VERSION: &str = "warpline_serve_model_version";

/// The recorder of a service.
pub(crate) struct Figures {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Figures {
    pub(crate) fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        with_local_recorder(&recorder, || {
            describe_gauge!(READY, "1 if requests are answered, and 0 otherwise");
            describe_gauge!(VERSION, "The version of the model");
        });
        Figures { recorder, handle }
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

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figures").finish_non_exhaustive()
    }
}
