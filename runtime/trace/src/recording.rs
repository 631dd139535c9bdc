//! A recording: tracks of ops, each op with its times.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(super) struct Recording {
    pub(super) tracks: BTreeMap<TrackKey, Track>,
    /// Names and source lines: few texts, shared by many ops.
    texts: HashSet<Arc<str>>,
}

/// A stream, or a track of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrackKey {
    /// The number of the runtime in the process; 0 for the host.
    pub(super) runtime: u64,
    pub(super) stream: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    pub(super) device: String,
    pub(super) label: String,
    /// The ops, by ticket.
    pub(super) ops: BTreeMap<u64, Op>,
}

/// One op: what it is, and its times in nanoseconds since the recorder was made.
#[derive(Clone, Debug, Default)]
pub(super) struct Op {
    pub(super) name: Arc<str>,
    pub(super) kind: Arc<str>,
    pub(super) site: Arc<str>,
    pub(super) bytes: u64,
    /// The op that this op waits for, of the same runtime: its stream and its ticket.
    pub(super) waits_for: Option<(u64, u64)>,
    pub(super) enqueued: Option<u64>,
    pub(super) started: Option<u64>,
    pub(super) finished: Option<u64>,
}

impl Recording {
    pub(super) fn len(&self) -> usize {
        self.tracks.values().map(|track| track.ops.len()).sum()
    }

    /// Returns two times for each wait for another stream, sorted by the first: when the awaited op
    /// ended, and when the wait ended.
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

    /// Returns the name of a track's device, with the runtime if the recording has several
    /// runtimes.
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
    /// Returns when the op started and finished, if it ran.
    pub(super) fn ran(&self) -> Option<(u64, u64)> {
        let (started, finished) = (self.started?, self.finished?);
        Some((started, finished.max(started)))
    }
}
