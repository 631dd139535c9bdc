//! Gates that hold a stream until a test opens them.
// Decision: docs/decisions/0015-gate-is-a-timeline.md

use crate::order::Site;
use crate::shared::{ClosedGate, Stream};
use std::sync::Arc;
use warpline_driver::timeline::Timeline;
use warpline_driver::{Command, Point, Result};

/// A gate that holds a stream until it is opened. Dropping it opens it.
#[must_use = "dropping the gate opens it: keep it, and call `open()`"]
#[derive(Debug)]
pub struct Gate {
    timeline: Arc<Timeline>,
    /// Dropped after the gate has opened.
    _closed: ClosedGate,
}

impl Gate {
    /// Opens the gate. The stream then continues.
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        self.timeline.complete(1);
    }
}

impl Stream {
    /// Holds later work on this stream until the returned gate is opened or dropped. Takes a
    /// ticket, as an op does.
    ///
    /// CUDA frees memory by waiting for the whole device. Memory that is returned to the driver
    /// while a gate of the process is closed is therefore freed after the last gate has opened. An
    /// allocation that needs this memory blocks its thread until then. The thread that opens the
    /// gate must not make a large allocation before it does.
    ///
    /// On a GPU a closed gate also holds other streams that share its hardware queue. There are 8
    /// of those by default and up to 32 with `CUDA_DEVICE_MAX_CONNECTIONS=32`, and streams are
    /// spread over them. Hold few streams at a time, and run each such test in its own process.
    ///
    /// On a CUDA device without stream memory operations, or if the driver registers no memory, the
    /// gate is a host function that waits. Host functions of other streams may then have to wait
    /// for it.
    ///
    /// Needs the feature `test-util`.
    ///
    /// # Errors
    /// The errors of any op, as in [`launch`](Self::launch); `Captured` in a capture; `Driver` if
    /// the gate has to be a host function and another gate is closed.
    #[track_caller]
    pub fn hold(&self) -> Result<Gate> {
        let site = Site::here(&"hold");
        let gate = Gate {
            timeline: Arc::new(Timeline::new()),
            _closed: ClosedGate::of(&self.core().device.runtime.closed_gates),
        };
        let point = Point { timeline: gate.timeline.clone(), ticket: 1, event: None };
        let place = self.core().enqueue_plain("wait", site, |ticket| {
            self.core().note_gate(site, ticket, gate.timeline.clone());
            Command::Wait(point)
        })?;
        self.core().device.runtime.host_code.added();
        place.is_not_awaited(self.core());
        Ok(gate)
    }
}
