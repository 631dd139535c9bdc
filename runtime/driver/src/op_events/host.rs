//! Host work that gets a track beside the streams, such as reading a dataset.
//!
//! The events are those of ops, with the runtime 0 and the device `host`. Host work is not enqueued
//! and has no enqueue event.

use super::listened_to;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// A row of host work in the recorder's picture, with one span after the other. A span should end
/// before the next one of its track begins.
#[derive(Debug)]
pub struct HostTrack {
    label: String,
    key: u64,
    spans: AtomicU64,
}

impl HostTrack {
    /// Creates a new track, even if another track has the same label.
    pub fn new(label: impl Into<String>) -> Self {
        static TRACKS: AtomicU64 = AtomicU64::new(0);
        let key = TRACKS.fetch_add(1, Ordering::Relaxed);
        HostTrack { label: label.into(), key, spans: AtomicU64::new(0) }
    }

    /// Begins a span, which lasts until the returned value is dropped.
    #[track_caller]
    pub fn span(&self, name: &'static str) -> HostSpan<'_> {
        let ticket = self.spans.fetch_add(1, Ordering::Relaxed) + 1;
        let span = HostSpan { track: self, ticket, name, location: Location::caller(), bytes: 0 };
        if listened_to() {
            span.emit("start");
        }
        span
    }
}

/// A span of host work in progress, which ends when this is dropped.
#[derive(Debug)]
pub struct HostSpan<'a> {
    track: &'a HostTrack,
    ticket: u64,
    name: &'static str,
    location: &'static Location<'static>,
    bytes: u64,
}

impl HostSpan<'_> {
    /// Sets the number of bytes that the work handles.
    pub fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    #[cold]
    fn emit(&self, phase: &'static str) {
        tracing::trace!(
            target: "warpline::op",
            phase,
            runtime = 0_u64,
            device = "host",
            stream = self.track.label.as_str(),
            stream_key = self.track.key,
            ticket = self.ticket,
            op = self.name,
            kind = "host",
            file = self.location.file(),
            line = self.location.line(),
            bytes = self.bytes,
        );
    }
}

impl Drop for HostSpan<'_> {
    fn drop(&mut self) {
        if listened_to() {
            self.emit("end");
        }
    }
}
