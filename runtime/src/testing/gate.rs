//! Gates that hold a stream until a test opens them.

use crate::order::Site;
use crate::shared::Stream;
use std::sync::Arc;
use warpline_driver::timeline::Timeline;
use warpline_driver::{Command, Point, Result};

/// A gate that holds a stream until it is opened. Dropping it opens it.
#[derive(Debug)]
pub struct Gate {
    timeline: Arc<Timeline>,
}

impl Gate {
    /// Opens the gate, so that the stream continues.
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.timeline.complete(1);
    }
}

impl Stream {
    /// Holds later work on this stream until the returned gate is opened or dropped. Takes a
    /// ticket, as an op does.
    ///
    /// CUDA frees memory by waiting for the whole device. So memory that is returned to the driver
    /// while a gate of the process is closed is freed after the last gate has opened. If an
    /// allocation needs cached memory to be freed first, it blocks its thread until then. So the
    /// thread that opens the gate must make no large allocation before.
    ///
    /// On a GPU a closed gate also holds other streams that share its hardware queue. There are 8
    /// of those by default and up to 32 with `CUDA_DEVICE_MAX_CONNECTIONS=32`, and streams are
    /// spread over them. Hold few streams at a time, and run each such test in its own process.
    ///
    /// On a CUDA device without stream memory operations, or if the driver registers no memory, a
    /// host function waits. Host functions of other streams may then have to wait for it.
    ///
    /// # Errors
    /// The stream is closed or its device has failed. `Driver` on a CUDA device on which a host
    /// function waits, while another gate is closed.
    #[track_caller]
    pub fn hold(&self) -> Result<Gate> {
        let gate = Gate { timeline: Arc::new(Timeline::new()) };
        let point = Point { timeline: gate.timeline.clone(), ticket: 1, event: None };
        self.core().enqueue_plain("wait", Site::here(&"hold"), |_| Command::Wait(point))?;
        Ok(gate)
    }
}
