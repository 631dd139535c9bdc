//! What was recorded: tracks of ops, each with its times.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(super) struct Recording {
    pub(super) tracks: BTreeMap<TrackKey, Track>,
    /// Names and lines: few, on many ops.
    texts: HashSet<Arc<str>>,
}

/// A stream, or a track of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrackKey {
    /// The runtime's number in the process; 0: the host.
    pub(super) runtime: u64,
    pub(super) stream: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    pub(super) device: String,
    pub(super) label: String,
    /// By ticket.
    pub(super) ops: BTreeMap<u64, Op>,
}

/// One op: what it is and when it was where, in nanoseconds since the recorder was made.
#[derive(Clone, Debug, Default)]
pub(super) struct Op {
    pub(super) name: Arc<str>,
    pub(super) kind: Arc<str>,
    pub(super) site: Arc<str>,
    pub(super) bytes: u64,
    /// The op it waits for, of the same runtime: the stream, and the ticket.
    pub(super) waits_for: Option<(u64, u64)>,
    pub(super) enqueued: Option<u64>,
    pub(super) started: Option<u64>,
    pub(super) finished: Option<u64>,
}

impl Recording {
    pub(super) fn len(&self) -> usize {
        self.tracks.values().map(|track| track.ops.len()).sum()
    }

    /// When what was waited for ended, and when the wait did, by the former: of waits for another stream.
    pub(super) fn waits(&self) -> Vec<(u64, u64)> {
        let ended =
            |track: &Track, ticket: &u64| track.ops.get(ticket).and_then(Op::ran).map(|(_, ended)| ended);
        let mut waits = Vec::new();
        for (key, track) in &self.tracks {
            waits.extend(track.ops.iter().filter_map(|(ticket, op)| {
                let (stream, awaited) = op.waits_for?;
                let source = self.tracks.get(&TrackKey { stream, ..*key })?;
                Some((ended(source, &awaited)?, ended(track, ticket)?))
            }));
        }
        waits.sort_unstable();
        waits
    }

    pub(super) fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.texts.get(text) {
            return shared.clone();
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(shared.clone());
        shared
    }

    /// The device of a track as it is to be called where several runtimes may be in one recording.
    pub(super) fn device_name(&self, key: TrackKey) -> String {
        let device = &self.tracks[&key].device;
        let first = self.tracks.keys().find(|key| key.runtime > 0).map_or(0, |key| key.runtime);
        match self.tracks.keys().all(|key| key.runtime == 0 || key.runtime == first) || key.runtime == 0 {
            true => device.clone(),
            false => format!("{device} of runtime {}", key.runtime),
        }
    }
}

impl Op {
    /// When it ran, if it did.
    pub(super) fn ran(&self) -> Option<(u64, u64)> {
        let (started, finished) = (self.started?, self.finished?);
        Some((started, finished.max(started)))
    }
}
