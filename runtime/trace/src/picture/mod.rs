//! A recording as a picture: a row per stream, a bar per op, an arrow per wait.
//!
//! `scene.rs` computes the layout and `svg.rs` draws it. `data.rs` writes every op into the file as
//! JSON, even if it is too narrow to be drawn. `page.rs` adds the script that zooms.

mod axis;
mod data;
mod page;
mod scene;
mod svg;

use super::recording::{Op, Recording};
use scene::{Scene, kind_of};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// A picture of everything recorded, or of a window of it.
///
/// [`Recorder::picture`](super::Recorder::picture) makes it.
///
/// Each stream is a row under its device; the rows of host work come first. A bar is an op from its
/// start to its end, with its name, time and source line as a tooltip. Ops that are too narrow to
/// be seen are merged into one bar. An arrow leads from the end of the op that a stream waited for
/// to the end of the wait. The time that a wait held its stream is hatched. A wait that added no
/// order is not drawn.
///
/// The file is self-contained. It holds every op of the window as JSON: in the SVG's `<metadata>`,
/// or in the page's `<script type="application/json">`.
#[derive(Debug)]
#[must_use = "it is drawn by `write_file` and its like"]
pub struct Picture {
    recording: Recording,
    title: String,
    window: Option<(u64, u64)>,
}

impl Picture {
    pub(super) fn new(recording: Recording) -> Self {
        Picture { recording, title: "Timeline".to_owned(), window: None }
    }

    /// Sets the title at the top of the picture.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Draws only this window of the recording's time, for instance a few steps in the middle.
    ///
    /// [`Recorder::elapsed`](super::Recorder::elapsed) returns the time at a step.
    pub fn between(mut self, from: Duration, to: Duration) -> Self {
        let nanos = |time: Duration| time.as_nanos().try_into().unwrap_or(u64::MAX);
        self.window = Some((nanos(from), nanos(to).max(nanos(from))));
        self
    }

    /// Draws only a window of this length, chosen where the most waits between streams ended.
    ///
    /// The window also shows the ops that those waits waited for. It lies within the middle half of
    /// the recording's time, or in its middle if there was no such wait.
    pub fn at_waits(mut self, length: Duration) -> Self {
        let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let (first, last) = whole(&self.recording);
        let quarter = (last - first) / 4;
        let waits = self.recording.waits();
        let from = |ended: u64| ended.saturating_sub(length / 8);
        let shown = |ended: u64| {
            let to = from(ended).saturating_add(length);
            let after = waits.partition_point(|(other, _)| *other < from(ended));
            let near = waits[after..].iter().take_while(|(other, _)| *other <= to);
            near.filter(|(_, waited)| *waited <= to).count()
        };
        let middle = waits.iter().map(|(ended, _)| *ended);
        let middle = middle.filter(|ended| (first + quarter..=last - quarter).contains(ended));
        let from = middle.max_by_key(|ended| shown(*ended)).map_or(first + (last - first) / 2, from);
        self.window = Some((from, from.saturating_add(length)));
        self
    }

    /// Writes the picture to a file: an SVG if its name ends in `.svg`, a zoomable page if it ends
    /// in `.html`.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the name has another extension, and the errors of creating and
    /// writing the file.
    pub fn write_file(self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let page = match path.extension().and_then(OsStr::to_str) {
            Some("svg") => false,
            Some("html") => true,
            _ => {
                let why = format!(
                    "no timeline can be written to {}: its name ends neither in .svg nor in .html; choose one of the two",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        };
        let mut file = io::BufWriter::new(std::fs::File::create(path)?);
        if page {
            self.write_html(&mut file)?
        } else {
            self.write_svg(&mut file)?
        }
        file.flush()
    }

    /// Writes the picture as an SVG.
    ///
    /// # Errors
    /// Returns the errors of writing to `to`.
    pub fn write_svg(self, to: &mut impl Write) -> io::Result<()> {
        let (scene, data) = self.prepared();
        svg::write(&scene, Some(&data), to)
    }

    /// Writes the picture as an HTML page.
    ///
    /// The wheel zooms, the mouse moves the picture, and a double click shows everything again.
    ///
    /// # Errors
    /// Returns the errors of writing to `to`.
    pub fn write_html(self, to: &mut impl Write) -> io::Result<()> {
        let (scene, data) = self.prepared();
        page::write(&scene, &data, to)
    }

    /// Returns the scene and its JSON, without the ops that the window does not show.
    fn prepared(mut self) -> (Scene, String) {
        if let Some((from, to)) = self.window {
            for track in self.recording.tracks.values_mut() {
                track.ops.retain(|_, op| is_between(op, from, to));
            }
        }
        self.recording.tracks.retain(|_, track| !track.ops.is_empty());
        let window = self.window.unwrap_or_else(|| whole(&self.recording));
        let scene = Scene::new(&self.recording, self.title, window);
        let data = data::json(&self.recording, &scene);
        (scene, data)
    }
}

fn is_between(op: &Op, from: u64, to: u64) -> bool {
    // A wait is drawn from when it began to hold its stream, which is after it was enqueued.
    let began = if kind_of(op) == "wait" { op.enqueued.or(op.started) } else { op.started.or(op.enqueued) };
    let began = began.unwrap_or(0);
    began <= to && op.finished.unwrap_or(began) >= from
}

/// Returns the first start and the last end.
fn whole(recording: &Recording) -> (u64, u64) {
    let ran = || recording.tracks.values().flat_map(|track| track.ops.values()).filter_map(Op::ran);
    let from = ran().map(|(started, _)| started).min().unwrap_or(0);
    (from, ran().map(|(_, finished)| finished).max().unwrap_or(0).max(from))
}
