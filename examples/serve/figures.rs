//! The figures of the service, in the text format of Prometheus.

use crate::service::Service;
use std::fmt::Write;

/// Returns the figures of a service. Each is a gauge: a value of this moment.
pub(crate) fn figures(service: &Service) -> String {
    let (memory, pinned) = (service.device.memory_stats(), service.device.pinned_stats());
    let is_ready = service.why_not_ready().is_none();
    let figures = [
        ("ready", "1 if requests are answered, and 0 otherwise", usize::from(is_ready)),
        ("device_failed", "1 if the device has failed", usize::from(memory.is_lost)),
        ("queued_rows", "rows that wait for a batch", service.batcher.queued()),
        ("max_queued_rows", "rows that may wait for a batch", service.settings.max_queued),
        ("device_allocated_bytes", "device memory in use", memory.allocated_bytes),
        ("device_peak_allocated_bytes", "the most device memory in use so far", memory.peak_allocated_bytes),
        ("device_reserved_bytes", "device memory in use and cached", memory.reserved_bytes),
        ("pinned_allocated_bytes", "pinned memory in use", pinned.allocated_bytes),
        ("pinned_reserved_bytes", "pinned memory in use and cached", pinned.reserved_bytes),
    ];
    let mut text = String::new();
    for (name, help, value) in figures {
        write_gauge(&mut text, name, help, value as u64);
    }
    write_gauge(&mut text, "model_version", "the version of the model", service.version());
    text
}

fn write_gauge(text: &mut String, name: &str, help: &str, value: u64) {
    let name = format!("warpline_serve_{name}");
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}").expect("a String takes all");
}
