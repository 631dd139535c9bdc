//! Gates: a stream stands still until the test says so.

use crate::order::Site;
use crate::shared::Stream;
use std::sync::Arc;
use warpline_driver::timeline::Timeline;
use warpline_driver::{Command, Point, Result};

/// Holds a stream until it is opened. Dropping it opens it.
#[derive(Debug)]
pub struct Gate {
    timeline: Arc<Timeline>,
}

impl Gate {
    /// Lets the stream go on.
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.timeline.complete(1);
    }
}

impl Stream {
    /// Holds what is enqueued from now on until the returned gate is opened or dropped. Takes a
    /// ticket, as an op does.
    ///
    /// CUDA frees memory by waiting for the whole device. So memory that is given back to the
    /// driver while a gate of the process is closed is freed after the last gate has opened. An
    /// allocation that has to have cached memory freed first blocks its thread until then: the
    /// thread that opens the gate is to make no large allocation before.
    ///
    /// On a GPU a closed gate also holds other streams that share its hardware queue. There are 8
    /// of those by default and up to 32 with `CUDA_DEVICE_MAX_CONNECTIONS=32`, and streams are
    /// spread over them: hold few streams at once, and run tests that do one a process.
    ///
    /// On a CUDA device without stream memory operations, or where the driver registers no memory,
    /// a host function waits, and host functions of other streams may have to wait for it.
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
