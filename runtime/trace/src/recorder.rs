//! A recorder of the ops of streams, which writes Chrome/Perfetto trace JSON or a picture.
//!
//! It is a [`tracing_subscriber::Layer`] that listens to the target `warpline::op`. An op's device
//! time is the time between its start and end events.
// Decision: docs/decisions/0051-picture-is-drawn-from-tracing-events.md

use super::perfetto;
use super::picture::Picture;
use super::recording::{Recording, TrackKey};
use parking_lot::Mutex;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use warpline_driver::op_events::moment;

/// Records every op of every stream while it is installed.
///
/// A cheap handle: install its layer, and keep the handle to write the file. The recording takes
/// about 260 bytes of memory per op until the last handle and the layer are dropped.
///
/// A CUDA device reports the start and the end of an op only after the op has finished. Await
/// `device.synchronize()` before writing; otherwise the latest ops have no times.
///
/// # Examples
/// ```
/// use tracing_subscriber::layer::SubscriberExt;
/// let recorder = warpline::trace::Recorder::new();
/// let subscriber = tracing_subscriber::registry().with(recorder.layer());
/// tracing::subscriber::with_default(subscriber, || { /* streams at work */ });
/// let mut json = Vec::new();
/// recorder.write(&mut json).unwrap();
/// let mut picture = Vec::new();
/// recorder.picture().write_svg(&mut picture).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    began: Instant,
    recording: Mutex<Recording>,
}

// No caller's code runs under the lock.
impl std::panic::UnwindSafe for Recorder {}
impl std::panic::RefUnwindSafe for Recorder {}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Creates a recorder with an empty recording, whose time 0 is now.
    pub fn new() -> Self {
        Recorder(Arc::new(Shared { began: Instant::now(), recording: Mutex::default() }))
    }

    /// Creates a recorder and installs it for the whole process. This is for programs that have no
    /// subscriber of their own.
    ///
    /// # Errors
    /// Returns an error if a global subscriber is already set. In that case, add
    /// [`layer`](Self::layer) to that subscriber.
    pub fn install() -> Result<Self, tracing::subscriber::SetGlobalDefaultError> {
        let recorder = Recorder::new();
        let subscriber = tracing_subscriber::registry().with(recorder.layer());
        tracing::subscriber::set_global_default(subscriber)?;
        Ok(recorder)
    }

    /// Returns the layer to add to a subscriber. It listens only to ops and does not affect the
    /// events of other layers.
    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        self.clone().with_filter(filter_fn(|metadata| metadata.target() == TARGET))
    }

    /// Returns the number of ops recorded so far.
    pub fn len(&self) -> usize {
        self.0.recording.lock().len()
    }

    /// Returns true if no op has been recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the time since the recording began, for use with [`Picture::between`].
    pub fn elapsed(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// Writes the trace to a file, as JSON.
    ///
    /// # Errors
    /// Returns the errors of creating and writing the file.
    pub fn write_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut file = io::BufWriter::new(std::fs::File::create(path)?);
        self.write(&mut file)?;
        file.flush()
    }

    /// Writes the trace, as JSON.
    ///
    /// # Errors
    /// Returns the errors of writing to `to`.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        perfetto::write(&self.copy(), to)
    }

    /// Returns everything recorded so far as a picture.
    pub fn picture(&self) -> Picture {
        Picture::new(self.copy())
    }

    /// Draws everything recorded so far into a file whose name ends in `.svg` or `.html`.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the name has another extension, and the errors of creating and
    /// writing the file.
    pub fn write_picture_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.picture().write_file(path)
    }

    fn copy(&self) -> Recording {
        self.0.recording.lock().clone()
    }
}

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != TARGET {
            return;
        }
        let now = moment().saturating_duration_since(self.0.began).as_nanos() as u64;
        let mut fields = Fields::default();
        event.record(&mut fields);
        let now = now.saturating_sub(fields.ago_ns);
        let site = format!("{}:{}", fields.file, fields.line);
        let mut recording = self.0.recording.lock();
        let [name, kind, site] = [&fields.op, &fields.kind, &site].map(|text| recording.shared(text));
        let track = recording.tracks.entry(fields.track).or_default();
        let op = track.ops.entry(fields.ticket).or_default();
        match fields.phase.as_str() {
            "edge" => return op.waits_for = Some((fields.from_stream, fields.from_ticket)),
            "start" => op.started = Some(now),
            "end" => op.finished = Some(now),
            // The event comes after the fact: the device may have begun the op meanwhile.
            _ => op.enqueued = Some(op.started.map_or(now, |started| started.min(now))),
        }
        if op.name.is_empty() {
            (op.name, op.kind, op.site) = (name, kind, site);
            (track.device, track.label) = (fields.device, fields.stream);
        }
        // The host knows the number of bytes only at the end.
        op.bytes = fields.bytes;
    }
}

const TARGET: &str = "warpline::op";

#[derive(Default)]
struct Fields {
    phase: String,
    track: TrackKey,
    device: String,
    stream: String,
    ticket: u64,
    op: String,
    kind: String,
    file: String,
    line: u64,
    bytes: u64,
    from_stream: u64,
    from_ticket: u64,
    /// For events that are reported later: how many nanoseconds ago they happened.
    ago_ns: u64,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        let slot = match field.name() {
            "runtime" => &mut self.track.runtime,
            "stream_key" => &mut self.track.stream,
            "ticket" => &mut self.ticket,
            "line" => &mut self.line,
            "bytes" => &mut self.bytes,
            "from_stream_key" => &mut self.from_stream,
            "from_ticket" => &mut self.from_ticket,
            "ago_ns" => &mut self.ago_ns,
            _ => return,
        };
        *slot = value;
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let slot = match field.name() {
            "phase" => &mut self.phase,
            "device" => &mut self.device,
            "stream" => &mut self.stream,
            "op" => &mut self.op,
            "kind" => &mut self.kind,
            "file" => &mut self.file,
            _ => return,
        };
        *slot = value.to_owned();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
