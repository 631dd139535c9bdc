//! Work that others put on a stream, for those who trace or profile: one op, from where its turn begins to where it ends.
//!
//! The turn has the stream to itself, so between the two events stands what was enqueued in it and nothing else. It ends before
//! its marker is written: when the ticket is reached both events were passed.

use crate::api::CUstream;
use crate::completion::track::Track;
use crate::profiling::nvtx::{self, Range};
use crate::profiling::spans::{Begun, Spans};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use warpline_driver::timeline::{Progress, Ticket};
use warpline_driver::{Command, Site};

/// Foreign work that is being enqueued by this thread, until it is dropped.
pub(crate) struct Enqueuing {
    track: Arc<Track>,
    stream: CUstream,
    ticket: Ticket,
    site: Site,
    begun: Option<Begun>,
    _range: Option<Range>,
}

impl Enqueuing {
    /// After the op's submission, with the context current.
    pub(crate) fn begin(track: &Arc<Track>, stream: CUstream, ticket: Ticket, site: Site) -> Self {
        Enqueuing {
            track: track.clone(),
            stream,
            ticket,
            site,
            begun: Spans::begin(track.context, stream, &Command::Foreign),
            _range: nvtx::range(site, track.label(), ticket),
        }
    }
}

impl Drop for Enqueuing {
    fn drop(&mut self) {
        let Some(begun) = self.begun.take() else { return };
        let context = self.track.context;
        // The others may have left another context current.
        let ended = context
            .enter()
            .and_then(|_entered| self.track.spans.end(context, self.stream, begun, self.ticket, self.site));
        if let Err(failed) = ended {
            context.note_failure(failed);
        }
        fence(Ordering::SeqCst);
        self.track.wanted();
    }
}
