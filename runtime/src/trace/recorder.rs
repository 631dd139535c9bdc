//! Keeps what streams did, and writes it as Chrome/Perfetto trace JSON: one track a stream.
//!
//! A [`tracing_subscriber::Layer`] that listens to the target `warpline::op`. Device time is between an op's start and end
//! events.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Records every op of every stream while it is installed.
///
/// A cheap handle: install its layer and keep it to write the file. It keeps one record of about 100 bytes an
/// op until it is dropped.
///
/// # Examples
/// ```
/// use tracing_subscriber::layer::SubscriberExt;
/// let recorder = warpline_runtime::trace::Recorder::new();
/// let subscriber = tracing_subscriber::registry().with(recorder.layer());
/// tracing::subscriber::with_default(subscriber, || { /* streams at work */ });
/// let mut json = Vec::new();
/// recorder.write(&mut json).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Recording>);

#[derive(Debug)]
struct Recording {
    began: Instant,
    ops: Mutex<BTreeMap<(u64, u64), Op>>,
}

/// One op: what it is and when it was where, in nanoseconds since the recorder was made.
#[derive(Clone, Debug, Default)]
struct Op {
    device: String,
    stream: String,
    name: String,
    site: String,
    bytes: u64,
    enqueued: Option<u64>,
    started: Option<u64>,
    finished: Option<u64>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// An empty recording whose time 0 is now.
    pub fn new() -> Self {
        Recorder(Arc::new(Recording { began: Instant::now(), ops: Mutex::default() }))
    }

    /// A recorder that is installed for the whole process: for programs that have no subscriber of their own.
    ///
    /// # Errors
    /// If a global subscriber is set already; then add [`layer`](Self::layer) to that one.
    pub fn install() -> Result<Self, tracing::subscriber::SetGlobalDefaultError> {
        let recorder = Recorder::new();
        let subscriber = tracing_subscriber::registry().with(recorder.layer());
        tracing::subscriber::set_global_default(subscriber)?;
        Ok(recorder)
    }

    /// The layer to add to a subscriber: it listens to ops alone and leaves other layers what they listen to.
    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        self.clone().with_filter(filter_fn(|metadata| metadata.target() == TARGET))
    }

    /// Ops recorded so far.
    pub fn len(&self) -> usize {
        self.0.ops.lock().len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the trace to a file.
    ///
    /// # Errors
    /// Those of creating and writing the file.
    pub fn write_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut file = io::BufWriter::new(std::fs::File::create(path)?);
        self.write(&mut file)?;
        file.flush()
    }

    /// Writes the trace.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let ops = self.0.ops.lock().clone();
        let mut devices = BTreeMap::new();
        for op in ops.values() {
            let next = devices.len() + 1;
            devices.entry(op.device.as_str()).or_insert(next);
        }
        let mut lines = Vec::new();
        for (device, pid) in &devices {
            let name = json(device);
            lines.push(format!(
                r#"{{"ph":"M","name":"process_name","pid":{pid},"tid":0,"args":{{"name":{name}}}}}"#
            ));
        }
        let mut named = None;
        for ((stream, ticket), op) in &ops {
            let pid = devices[op.device.as_str()];
            let tid = stream + 1;
            if named != Some(stream) {
                named = Some(stream);
                let name = json(&op.stream);
                lines.push(format!(
                    r#"{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"args":{{"name":{name}}}}}"#
                ));
            }
            let (Some(started), Some(finished)) = (op.started, op.finished) else { continue };
            let (name, site) = (json(&op.name), json(&op.site));
            let (at, took) = (micros(started), micros(finished.saturating_sub(started)));
            let waited = op.enqueued.map_or(0, |enqueued| started.saturating_sub(enqueued));
            lines.push(format!(
                r#"{{"ph":"X","cat":"op","name":{name},"pid":{pid},"tid":{tid},"ts":{at},"dur":{took},"args":{{"ticket":{ticket},"bytes":{},"site":{site},"queued_us":{}}}}}"#,
                op.bytes,
                micros(waited),
            ));
        }
        write!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n"))
    }
}

/// Nanoseconds as the microseconds that the format wants, exactly.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

fn json(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != TARGET {
            return;
        }
        let now = self.0.began.elapsed().as_nanos() as u64;
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut ops = self.0.ops.lock();
        let op = ops.entry((fields.stream_key, fields.ticket)).or_default();
        match fields.phase.as_str() {
            "enqueue" => op.enqueued = Some(now),
            "start" => op.started = Some(now),
            _ => op.finished = Some(now),
        }
        if op.name.is_empty() {
            op.device = fields.device;
            op.stream = fields.stream;
            op.name = fields.op;
            op.site = format!("{}:{}", fields.file, fields.line);
            op.bytes = fields.bytes;
        }
    }
}

const TARGET: &str = "warpline::op";

#[derive(Default)]
struct Fields {
    phase: String,
    device: String,
    stream: String,
    stream_key: u64,
    ticket: u64,
    op: String,
    file: String,
    line: u64,
    bytes: u64,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "stream_key" => self.stream_key = value,
            "ticket" => self.ticket = value,
            "line" => self.line = value,
            "bytes" => self.bytes = value,
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let slot = match field.name() {
            "phase" => &mut self.phase,
            "device" => &mut self.device,
            "stream" => &mut self.stream,
            "op" => &mut self.op,
            "file" => &mut self.file,
            _ => return,
        };
        *slot = value.to_owned();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
