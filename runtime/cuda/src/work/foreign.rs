//! Traces and profiles foreign work on a stream as one op, from the start of its turn to its end.
//!
//! During its turn foreign work has the stream to itself, so only that work lies between the two
//! events. The turn ends before the marker is written: when the ticket is reached, the device has
//! passed both events.

use crate::api::CUstream;
use crate::completion::track::Track;
use crate::profiling::nvtx::{self, Range};
use crate::profiling::spans::{Begun, Spans};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use warpline_driver::timeline::{Progress, Ticket};
use warpline_driver::{Command, Site, op_events};

/// Foreign work that the calling thread is enqueuing, until this is dropped.
pub(crate) struct Enqueuing {
    track: Arc<Track>,
    stream: CUstream,
    ticket: Ticket,
    site: Site,
    begun: Option<Begun>,
    _range: Option<Range>,
}

impl Enqueuing {
    /// Begins to trace the op, after its submission and with the context current.
    pub(crate) fn begin(track: &Arc<Track>, stream: CUstream, ticket: Ticket, site: Site) -> Self {
        track.foreign_begins();
        Enqueuing {
            track: track.clone(),
            stream,
            ticket,
            site,
            begun: Spans::begin(track.context, stream, &Command::Foreign, &op_events::caller()),
            _range: nvtx::range(site, track.label(), ticket),
        }
    }
}

impl Drop for Enqueuing {
    fn drop(&mut self) {
        self.track.foreign_ends(self.ticket);
        let Some(begun) = self.begun.take() else { return };
        let context = self.track.context;
        // The foreign code may have left another context current.
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
