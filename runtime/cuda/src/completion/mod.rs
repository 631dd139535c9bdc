//! Markers: how the device says how far a stream is, and who looks.

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

/// What a context's streams say their progress with.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) words: Words,
    /// Whether the words passed their self-test.
    pub(crate) has_words: OnceLock<bool>,
    pub(crate) events: EventPool,
    pub(crate) timed_events: EventPool,
    pub(crate) tracks: Mutex<Vec<Weak<Track>>>,
}

impl Default for Completion {
    fn default() -> Self {
        let words = Words::default();
        // If it fails now, whoever takes the first word learns why.
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
    /// The streams that there are.
    pub(crate) fn live_tracks(&self) -> Vec<Arc<Track>> {
        self.tracks.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// That of them which a timeline follows.
    pub(crate) fn followed_by(&self, timeline: &Arc<Timeline>) -> Option<Arc<Track>> {
        self.live_tracks().into_iter().find(|track| track.is_followed_by(timeline))
    }

    /// A number that grows when work of the device completes. It falls when a stream is dropped.
    pub(crate) fn completed(&self) -> u64 {
        self.live_tracks().iter().map(|track| track.passed()).sum()
    }
}
