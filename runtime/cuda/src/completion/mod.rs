//! Progress tracking for streams: the markers that a device completes, and the reactor thread that
//! watches them.
// Decision: docs/decisions/0030-completion-is-a-word-the-device-writes.md

pub(crate) mod events;
pub(crate) mod reactor;
pub(crate) mod thread;
pub(crate) mod track;
pub(crate) mod watch;
pub(crate) mod words;

use events::EventPool;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};
use track::Track;
use warpline_driver::timeline::Timeline;
use words::Words;

/// The state that a context's streams use to report their progress.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) words: Words,
    /// The result of the words' self-test.
    pub(crate) has_words: OnceLock<bool>,
    pub(crate) events: EventPool,
    pub(crate) timed_events: EventPool,
    pub(crate) tracks: Mutex<Vec<Weak<Track>>>,
}

impl Default for Completion {
    fn default() -> Self {
        let words = Words::default();
        // If this fails, taking the first word tries again and returns the error.
        let _ = words.grow();
        Completion {
            words,
            has_words: OnceLock::new(),
            events: EventPool::untimed(),
            timed_events: EventPool::timed(),
            tracks: Mutex::default(),
        }
    }
}

impl Completion {
    /// Returns the tracks of all streams that exist.
    pub(crate) fn live_tracks(&self) -> Vec<Arc<Track>> {
        self.tracks.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the live track that `timeline` follows, if there is one.
    pub(crate) fn followed_by(&self, timeline: &Arc<Timeline>) -> Option<Arc<Track>> {
        self.live_tracks().into_iter().find(|track| track.is_followed_by(timeline))
    }

    /// Returns a number that grows when work on the device completes. It falls when a stream is
    /// dropped.
    pub(crate) fn completed(&self) -> u64 {
        self.live_tracks().iter().map(|track| track.passed()).sum()
    }
}
