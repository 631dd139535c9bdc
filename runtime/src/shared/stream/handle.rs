//! The handle users hold. What it can do is in `stream/`.

use super::core::StreamCore;
use std::sync::Arc;

/// A stream: a linear sequence of work on one device. A cheap handle; all clones are the same stream.
///
/// Calling a method puts work at the stream's end at once. Work of one stream runs in that order; between streams there is
/// no order but what [`wait_stream`](Self::wait_stream), [`wait_event`](Self::wait_event) and
/// [`wait_for`](Self::wait_for) state, or what the host has observed by awaiting.
///
/// When the last handle is gone the stream closes; what was put on it still runs.
#[derive(Clone)]
pub struct Stream {
    /// Also in `_closing`, which would be one more line to fetch for each op.
    core: Arc<StreamCore>,
    _closing: Arc<Closing>,
}

/// Closes the stream when the last handle is dropped.
struct Closing(Arc<StreamCore>);

impl Drop for Closing {
    fn drop(&mut self) {
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
