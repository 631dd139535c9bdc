//! The stream handle that users hold.
//!
//! Its methods are in `stream/`.

use super::core::StreamCore;
use std::sync::Arc;

/// A handle to a stream: a linear sequence of work on one device.
///
/// Handles are cheap to clone; all clones refer to the same stream.
///
/// Calling a method puts work at the end of the stream immediately. Work on one stream runs in that
/// order. The only order between streams is the order that [`wait_stream`](Self::wait_stream),
/// [`wait_event`](Self::wait_event) and [`wait_for`](Self::wait_for) state, or that the host has
/// observed by awaiting.
///
/// Dropping the last handle closes the stream. Work that was put on it still runs, and later uses
/// of its memory are ordered after it.
#[derive(Clone)]
pub struct Stream {
    /// Also in `_closing`, where reaching it would fetch one more cache line for each op.
    core: Arc<StreamCore>,
    _closing: Arc<Closing>,
}

/// Closes the stream when the last handle is dropped.
struct Closing(Arc<StreamCore>);

impl Drop for Closing {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            // The stream too would take locks when it is dropped.
            std::mem::forget(self.0.clone());
            return;
        }
        let core = self.0.clone();
        crate::background::run_where_it_may_block(move || core.close());
    }
}

impl Stream {
    pub(crate) fn new(core: Arc<StreamCore>) -> Self {
        Stream { _closing: Arc::new(Closing(core.clone())), core }
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }
}
