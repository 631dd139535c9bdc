//! The layout of the picture, in pixels.

use super::super::recording::{Op, Recording, Track, TrackKey};
use super::axis::{self, time};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const WIDTH: f64 = 1400.0;
const MARGIN: f64 = 28.0;
pub(super) const BAR: f64 = 20.0;
const ROW: f64 = 36.0;
const GROUP: f64 = 30.0;
/// The upper edge of the rows.
const TOP: f64 = 128.0;
/// The approximate width of a character of a label.
pub(super) const CHARACTER: f64 = 6.7;
/// Longer labels are cut; their tooltip has the whole label.
const LABEL_CHARACTERS: usize = 26;
/// A bar narrower than this is drawn together with its neighbours.
const NARROWEST: f64 = 0.75;
/// Arrows between the same two rows are drawn once if their ends are nearer than this.
const NEAR: f64 = 2.0;

/// A whole picture.
pub(super) struct Scene {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) height: f64,
    /// The left and right ends of the time axis.
    pub(super) left: f64,
    pub(super) right: f64,
    /// Both ends, in nanoseconds since the recorder was made.
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) ticks: Vec<(f64, String)>,
    pub(super) groups: Vec<Group>,
    pub(super) rows: Vec<Row>,
    pub(super) arrows: Vec<Arrow>,
    /// The kinds that occur, in the order of the legend.
    pub(super) kinds: Vec<&'static str>,
}

/// The rows of one device.
pub(super) struct Group {
    /// The baseline of the device's name.
    pub(super) y: f64,
    pub(super) name: String,
}

pub(super) struct Row {
    /// The upper edge of the row's bars.
    pub(super) y: f64,
    /// The part of the name that fits; `name` is the whole name.
    pub(super) label: String,
    pub(super) name: String,
    pub(super) bars: Vec<Bar>,
}

/// One op, or several ops that are too narrow to be told apart.
pub(super) struct Bar {
    pub(super) x: f64,
    pub(super) width: f64,
    pub(super) kind: &'static str,
    /// The op's ticket, if the bar is one op.
    pub(super) ticket: Option<u64>,
    /// The op's name, if it fits into the bar.
    pub(super) text: Option<Arc<str>>,
    pub(super) tooltip: String,
}

/// An arrow from the end of the awaited op to the end of the wait.
pub(super) struct Arrow {
    /// The row and ticket of each end.
    pub(super) from: (usize, u64),
    pub(super) to: (usize, u64),
    pub(super) start: (f64, f64),
    pub(super) end: (f64, f64),
    pub(super) tooltip: String,
}

/// The kinds of ops, in the order of the legend. An op of any other kind counts as the last one.
pub(super) const KINDS: [&str; 7] = ["host", "copy", "kernel", "fill", "call", "wait", "other"];

pub(super) fn kind_of(op: &Op) -> &'static str {
    KINDS.into_iter().find(|kind| **kind == *op.kind).unwrap_or("other")
}

/// Returns when the drawing of an op begins and ends. A wait is drawn from when it began to hold
/// its stream.
pub(super) fn shown(track: &Track, ticket: u64, op: &Op) -> Option<(u64, u64)> {
    let (started, finished) = op.ran()?;
    if kind_of(op) != "wait" {
        return Some((started, finished));
    }
    let before = ticket.checked_sub(1).and_then(|before| track.ops.get(&before)?.finished).unwrap_or(0);
    let held = op.enqueued.unwrap_or(started).max(before).min(started);
    Some((held, finished))
}

impl Scene {
    pub(super) fn new(recording: &Recording, title: String, (from, to): (u64, u64)) -> Self {
        let longest = recording.tracks.values().map(|track| track.label.chars().count()).max().unwrap_or(0);
        let label_width = longest.clamp(8, LABEL_CHARACTERS) as f64 * CHARACTER;
        let (left, right) = (MARGIN + 12.0 + label_width + 16.0, WIDTH - MARGIN);
        let scale = (right - left) / (to - from).max(1) as f64;
        let x = |at: u64| left + (at.clamp(from, to) - from) as f64 * scale;
        let most_ticks = ((right - left) / 110.0) as u64;

        let (mut groups, mut rows, mut places) = (Vec::<Group>::new(), Vec::new(), BTreeMap::new());
        let mut y = TOP;
        for (&key, track) in &recording.tracks {
            let device = recording.device_name(key);
            if groups.last().is_none_or(|group| group.name != device) {
                groups.push(Group { y: y + GROUP - 10.0, name: device });
                y += GROUP;
            }
            places.insert(key, rows.len());
            let (label, name) = (cut(&track.label), track.label.clone());
            rows.push(Row { y: y + (ROW - BAR) / 2.0, label, name, bars: bars(track, x) });
            y += ROW;
        }
        let arrows = arrows(recording, &places, &rows, (from, to), x);
        let kinds = KINDS
            .into_iter()
            .filter(|kind| {
                recording.tracks.values().any(|track| track.ops.values().any(|op| kind_of(op) == *kind))
            })
            .collect();
        Scene {
            title,
            subtitle: subtitle(recording, from, to),
            height: y + MARGIN,
            left,
            right,
            from,
            to,
            ticks: axis::ticks(to - from, most_ticks)
                .into_iter()
                .map(|(at, text)| (x(from + at), text))
                .collect(),
            groups,
            rows,
            arrows,
            kinds,
        }
    }

    /// Returns the y coordinate above the first row, where the lines of the axis begin.
    pub(super) fn top(&self) -> f64 {
        TOP
    }

    /// Returns the y coordinate below the last row.
    pub(super) fn bottom(&self) -> f64 {
        self.height - MARGIN + 6.0
    }
}

fn subtitle(recording: &Recording, from: u64, to: u64) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let streams = recording.tracks.keys().filter(|key| key.runtime > 0).count();
    let unfinished = recording
        .tracks
        .values()
        .flat_map(|track| track.ops.values())
        .filter(|op| op.ran().is_none())
        .count();
    let unfinished =
        if unfinished == 0 { String::new() } else { format!(", {unfinished} of them unfinished") };
    format!(
        "{}, {}{unfinished}; {}, from {} of the recording",
        count(streams, "stream"),
        count(recording.len(), "op"),
        time(to - from),
        time(from)
    )
}

fn cut(label: &str) -> String {
    if label.chars().count() <= LABEL_CHARACTERS {
        return label.to_owned();
    }
    label.chars().take(LABEL_CHARACTERS - 1).chain(['…']).collect()
}

/// Adjacent ops that are too narrow to be seen, from left to right.
#[derive(Default)]
struct Narrow {
    x: f64,
    end: f64,
    ops: usize,
    busy: u64,
    first: Option<(Bar, u64)>,
    /// The time of each kind. The bar gets the colour of the kind that took longest.
    kinds: BTreeMap<&'static str, u64>,
}

impl Narrow {
    fn bar(self) -> Option<Bar> {
        let (first, _) = self.first?;
        let width = (self.end - self.x).max(NARROWEST);
        if self.ops == 1 {
            return Some(Bar { width, ..first });
        }
        let kind = self.kinds.into_iter().max_by_key(|(_, took)| *took).map_or("other", |(kind, _)| kind);
        let tooltip = format!("{} ops, {} in all; zoom in to tell them apart", self.ops, time(self.busy));
        Some(Bar { x: self.x, width, kind, ticket: None, text: None, tooltip })
    }
}

fn bars(track: &Track, x: impl Fn(u64) -> f64) -> Vec<Bar> {
    let mut bars = Vec::new();
    let mut narrow = Narrow::default();
    for (&ticket, op) in &track.ops {
        let Some((from, to)) = shown(track, ticket, op) else { continue };
        let (begin, end) = (x(from), x(to));
        let (width, kind) = (end - begin, kind_of(op));
        let fits = op.name.chars().count() as f64 * CHARACTER + 8.0 <= width;
        let text = (fits && kind != "wait").then(|| op.name.clone());
        let bar = Bar {
            x: begin,
            width,
            kind,
            ticket: Some(ticket),
            text,
            tooltip: tooltip(track, ticket, op, to - from),
        };
        if width >= NARROWEST {
            bars.extend(std::mem::take(&mut narrow).bar());
            bars.push(bar);
            continue;
        }
        if narrow.ops > 0 && begin > narrow.end.max(narrow.x + NARROWEST) {
            bars.extend(std::mem::take(&mut narrow).bar());
        }
        if narrow.ops == 0 {
            narrow.x = begin;
            narrow.first = Some((bar, ticket));
        }
        narrow.end = end;
        narrow.ops += 1;
        narrow.busy += to - from;
        *narrow.kinds.entry(kind).or_default() += to - from;
    }
    bars.extend(narrow.bar());
    bars
}

fn tooltip(track: &Track, ticket: u64, op: &Op, took: u64) -> String {
    let held = if kind_of(op) == "wait" { "held " } else { "" };
    let mut text =
        format!("{}: {held}{}\n{}, ticket {ticket}\n{}", op.name, time(took), track.label, op.site);
    if op.bytes > 0 {
        text += &format!("\n{} bytes", op.bytes);
    }
    if let (Some(enqueued), Some(started)) = (op.enqueued, op.started) {
        text += &format!("\nqueued for {}", time(started.saturating_sub(enqueued)));
    }
    text
}

fn arrows(
    recording: &Recording,
    places: &BTreeMap<TrackKey, usize>,
    rows: &[Row],
    (from, to): (u64, u64),
    x: impl Fn(u64) -> f64,
) -> Vec<Arrow> {
    let mut arrows = Vec::<Arrow>::new();
    for (key, track) in &recording.tracks {
        // The last arrow drawn from each row to this one.
        let mut last = BTreeMap::<usize, (f64, f64)>::new();
        for (&ticket, op) in &track.ops {
            let Some((stream, awaited)) = op.waits_for else { continue };
            let source_key = TrackKey { stream, ..*key };
            let Some(source_track) = recording.tracks.get(&source_key) else { continue };
            let source = source_track.ops.get(&awaited).and_then(Op::ran);
            let (Some((_, ended)), Some((_, waited))) = (source, op.ran()) else { continue };
            if ended < from || waited > to {
                continue;
            }
            let (source_row, row) = (places[&source_key], places[key]);
            let (start_x, end_x) = (x(ended), x(waited));
            let near =
                |(start, end): &(f64, f64)| (start - start_x).abs() < NEAR && (end - end_x).abs() < NEAR;
            if last.get(&source_row).is_some_and(near) {
                continue;
            }
            last.insert(source_row, (start_x, end_x));
            let (above, below) = (rows[source_row].y, rows[row].y);
            let (start_y, end_y) = if above < below { (above + BAR, below) } else { (above, below + BAR) };
            arrows.push(Arrow {
                from: (source_row, awaited),
                to: (row, ticket),
                start: (start_x, start_y),
                end: (end_x, end_y),
                tooltip: format!(
                    "{} on {} waits for {}, ticket {awaited}\n{}",
                    op.name, track.label, source_track.label, op.site
                ),
            });
        }
    }
    arrows
}
