//! Gates: a stream stands still until the test says so.

use crate::driver::{Command, Point};
use crate::error::Result;
use crate::site::Site;
use crate::stream::Stream;
use crate::timeline::Timeline;
use std::sync::Arc;

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
    /// Holds what is enqueued from now on until the returned gate is opened. Takes a ticket.
    ///
    /// CUDA frees memory by waiting for the whole device. What runtimes and caches give back while
    /// a gate of the process is closed is freed when none is, but an allocation that needs cached
    /// memory given back waits for the gates.
    ///
    /// On a CUDA device without stream memory operations a host function waits, and host functions
    /// of other streams may have to wait for it.
    ///
    /// # Errors
    /// The stream is closed or its device has failed. `Driver` on a CUDA device without stream
    /// memory operations while another gate is closed.
    #[track_caller]
    pub fn hold(&self) -> Result<Gate> {
        let gate = Gate { timeline: Arc::new(Timeline::new()) };
        let point = Point { timeline: gate.timeline.clone(), ticket: 1, event: None };
        self.core().enqueue_plain("wait", Site::here(&"hold"), |_| Command::Wait(point))?;
        Ok(gate)
    }
}
