//! A recording as Chrome/Perfetto trace JSON: a process per device, a track per stream, and an
//! arrow for each wait that took a ticket.

use super::json::quoted;
use super::recording::{Recording, TrackKey};
use std::collections::BTreeMap;
use std::io::{self, Write};

pub(super) fn write(recording: &Recording, to: &mut impl Write) -> io::Result<()> {
    let mut lines = Vec::new();
    let mut devices = BTreeMap::new();
    let mut places = BTreeMap::new();
    for (&key, track) in &recording.tracks {
        let device = recording.device_name(key);
        let next = devices.len() + 1;
        let pid = *devices.entry(device.clone()).or_insert_with(|| {
            lines.push(metadata("process_name", next, 0, &device));
            next
        });
        // Perfetto requires tracks to be numbered across all processes.
        let tid = places.len() + 1;
        places.insert(key, (pid, tid));
        lines.push(metadata("thread_name", pid, tid, &track.label));
    }
    for (key, track) in &recording.tracks {
        let (pid, tid) = places[key];
        for (ticket, op) in &track.ops {
            let Some((started, finished)) = op.ran() else { continue };
            let (name, site) = (quoted(&op.name), quoted(&op.site));
            let (at, took) = (micros(started), micros(finished - started));
            let queued = micros(op.enqueued.map_or(0, |enqueued| started.saturating_sub(enqueued)));
            let (kind, bytes) = (quoted(&op.kind), op.bytes);
            lines.push(format!(
                r#"{{"ph":"X","cat":{kind},"name":{name},"pid":{pid},"tid":{tid},"ts":{at},"dur":{took},"args":{{"ticket":{ticket},"bytes":{bytes},"site":{site},"queued_us":{queued}}}}}"#,
            ));
            let Some((stream, awaited)) = op.waits_for else { continue };
            let from = TrackKey { stream, ..*key };
            let Some(source) = recording.tracks.get(&from).and_then(|track| track.ops.get(&awaited)) else {
                continue;
            };
            let (Some((source_start, _)), (from_pid, from_tid)) = (source.ran(), places[&from]) else {
                continue;
            };
            let id = lines.len();
            // An arrow must leave from within a bar, and only a bar's beginning counts as within
            // it.
            for (phase, pid, tid, at) in
                [(r#""s""#, from_pid, from_tid, source_start), (r#""f","bp":"e""#, pid, tid, started)]
            {
                lines.push(format!(
                    r#"{{"ph":{phase},"cat":"edge","name":{name},"id":{id},"pid":{pid},"tid":{tid},"ts":{}}}"#,
                    micros(at)
                ));
            }
        }
    }
    write!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n"))
}

fn metadata(what: &str, pid: usize, tid: usize, name: &str) -> String {
    let name = quoted(name);
    format!(r#"{{"ph":"M","name":"{what}","pid":{pid},"tid":{tid},"args":{{"name":{name}}}}}"#)
}

/// Formats nanoseconds exactly, as the microseconds that the format requires.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}
