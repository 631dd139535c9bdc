//! The `tracing` events that report what a CUDA device does differently, and why.

use warpline_driver::{Site, Ticket};

pub(crate) fn no_completion_words(ordinal: u32, why: Option<String>) {
    let why = why.unwrap_or_else(|| "the device does not write them, or not within a second".to_owned());
    tracing::warn!(target: "warpline", device = ordinal, why, "completion words are not used; events are polled instead");
}

/// Warns that the list of visible devices changed too late. Without a subscriber it is a line on
/// standard error.
pub(crate) fn visible_devices_changed(change: &str) {
    if !tracing::dispatcher::has_been_set() {
        return eprintln!("warpline: {change}");
    }
    tracing::warn!(target: "warpline", "{change}");
}

pub(crate) fn completion_word_lost(stream: &str) {
    tracing::error!(target: "warpline", stream, "the stream is idle, but its completion word does \
        not show it; the stream now completes by events");
}

pub(crate) fn queue_is_full(first: bool, stream: &str) {
    if first {
        tracing::warn!(
            target: "warpline",
            stream,
            "more than a thousand ops are in flight on one stream, about as many as the driver's \
             queue holds; further calls block until it has room: limit the stream with \
             max_in_flight and await room()"
        );
    }
}

pub(crate) fn no_profiler(why: &str) {
    tracing::warn!(target: "warpline", why, "the named profiler could not be loaded; it receives \
        no ranges of ops");
}

pub(crate) fn no_library(why: &str) {
    tracing::info!(target: "warpline", why, "a library is not used; warpline's own kernels run instead");
}

/// Reports what did the work of an op for which there is a library: the library, or the kernel of
/// this name.
pub(crate) fn which_ran(device: u32, stream: &str, ticket: Ticket, site: &Site, by: &str, why: &str) {
    let (op, file, line) = (site.op(), site.location.file(), site.location.line());
    tracing::debug!(target: "warpline", op, by, why, device, stream, ticket, file, line, "which ran");
}

pub(crate) fn not_freed(device: u32, why: &str) {
    tracing::error!(target: "warpline", device, why, "the driver did not free memory or a graph, or did \
        not unlock memory, which stays so until the process ends");
}

pub(crate) fn subscriber_panicked() {
    tracing::error!(target: "warpline", "a tracing subscriber panicked while it handled the event \
        of an op");
}

pub(crate) fn twin_panicked(kernel: &str, why: &str) {
    tracing::error!(target: "warpline", kernel, why, "the CPU form of a kernel panicked under the software CUDA driver");
}
