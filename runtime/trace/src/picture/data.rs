//! Every op of the picture as JSON, for the page's script and for readers who want the numbers.
//!
//! `tracks[row].ops[i]` is `[ticket, kind, name, site, bytes, enqueued, shown from, started,
//! finished, wait]`. Kind, name and site are indices into the lists of that name. Times are
//! nanoseconds since `from`, or `null`; times before the window are negative. `wait` is the `[row,
//! ticket]` of the awaited op, or `null`.
// Decision: docs/decisions/0052-every-op-is-in-the-file-as-json.md

use super::super::json::quoted;
use super::super::recording::{Op, Recording, TrackKey};
use super::scene::{KINDS, Scene, kind_of, shown};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Texts that many ops share, each stored once.
#[derive(Default)]
struct Texts {
    places: BTreeMap<Arc<str>, usize>,
    list: Vec<String>,
}

impl Texts {
    fn place(&mut self, text: &Arc<str>) -> usize {
        *self.places.entry(text.clone()).or_insert_with(|| {
            self.list.push(quoted(text));
            self.list.len() - 1
        })
    }

    fn json(&self) -> String {
        format!("[{}]", self.list.join(","))
    }
}

pub(super) fn json(recording: &Recording, scene: &Scene) -> String {
    let rows: BTreeMap<_, _> = recording.tracks.keys().enumerate().map(|(row, key)| (*key, row)).collect();
    let (mut names, mut sites, mut tracks) = (Texts::default(), Texts::default(), Vec::new());
    let time = |at: Option<u64>| {
        at.map_or_else(|| "null".to_owned(), |at| (i128::from(at) - i128::from(scene.from)).to_string())
    };
    for ((key, track), row) in recording.tracks.iter().zip(&scene.rows) {
        let op = |(ticket, op): (&u64, &Op)| {
            let kind = KINDS.iter().position(|kind| *kind == kind_of(op)).expect("it is one of them");
            let shown_from = time(shown(track, *ticket, op).map(|(from, _)| from));
            let (enqueued, started, finished) = (time(op.enqueued), time(op.started), time(op.finished));
            let wait = op.waits_for.and_then(|(stream, awaited)| {
                Some(format!("[{},{awaited}]", rows.get(&TrackKey { stream, ..*key })?))
            });
            format!(
                "[{ticket},{kind},{},{},{},{enqueued},{shown_from},{started},{finished},{}]",
                names.place(&op.name),
                sites.place(&op.site),
                op.bytes,
                wait.as_deref().unwrap_or("null")
            )
        };
        let ops: Vec<_> = track.ops.iter().map(op).collect();
        tracks.push(format!(
            r#"{{"device":{},"label":{},"runtime":{},"stream":{},"y":{},"ops":[{}]}}"#,
            quoted(&recording.device_name(*key)),
            quoted(&track.label),
            key.runtime,
            key.stream,
            row.y,
            ops.join(",\n")
        ));
    }
    let kinds: Vec<_> = KINDS.iter().map(|kind| quoted(kind)).collect();
    format!(
        "{{\"unit\":\"ns\",\"from\":{},\"to\":{},\"left\":{},\"right\":{},\"kinds\":[{}],\n\"names\":{},\n\"sites\":{},\n\"tracks\":[\n{}\n]}}",
        scene.from,
        scene.to,
        scene.left,
        scene.right,
        kinds.join(","),
        names.json(),
        sites.json(),
        tracks.join(",\n")
    )
}
