//! A data pipeline with overlap: while the device computes on one batch, the next is copied and the
//! one after it is read.
//!
//! Reads a gzip-compressed CSV of 8x8 images twice. The first pass computes the mean and the
//! deviation of each column on the device. The second pass standardizes the batches with them and
//! measures the result: mean 0 and deviation 1. The program compares both with results that the
//! host computes in f64.
//!
//! ```sh
//! cargo run --release -p warpline-examples --example pipeline
//! cargo run --release -p warpline-examples --example pipeline -- --device cpu \
//!     --batch-rows 128 --slots 3 --trace pipeline.html digits.csv.gz
//! ```
//! `--trace` writes a timeline: `.svg` for a picture, `.html` for a page with zoom, `.json` for
//! <https://ui.perfetto.dev>.
//!
//! ```text
//!   blocking thread            copy stream                    compute stream
//!   gzip, CSV → pinned ──────→ copy_into(slot) ─ wait_event ─→ step(slot)
//!            ↑ sent.await ───────┘    ↑────────── wait_event ────┘
//! ```
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! anyhow = "1"
//! clap = { version = "4", features = ["derive"] }
//! csv = "1"
//! flate2 = "1"
//! tokio = { version = "1", features = ["full"] }
//! tracing-subscriber = "0.3"
//! warpline = { path = "../warpline", features = ["clap", "trace"] }
//! ```

use anyhow::{Context, ensure};
use clap::Parser;
use csv::{ByteRecord, ReaderBuilder};
use flate2::read::MultiGzDecoder;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tracing_subscriber::prelude::*;
use warpline::DeviceArgs;
use warpline::ops::{self, ColumnMoments};
use warpline::prelude::*;
use warpline::trace::{HostTrack, Recorder};

/// The number of columns: 64 pixels and a label.
const COLUMNS: usize = 65;
/// The largest difference from the f64 values of the host that f32 results may have.
const TOLERANCE: f64 = 1e-5;

#[derive(Parser)]
#[command(about = "Column statistics of a gzip-compressed CSV of 8x8 images, computed on a device")]
struct Options {
    /// The file: rows of 65 numbers, no header.
    #[arg(default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz"))]
    file: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// The number of rows in a batch.
    #[arg(long, allow_negative_numbers = true, default_value = "128", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch_rows: u32,
    /// The number of device buffers, which batches use round-robin.
    #[arg(long, allow_negative_numbers = true, default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: u32,
    /// Writes the work of the streams: a picture (.svg), a page with zoom (.html) or Perfetto JSON
    /// (.json).
    #[arg(long, value_name = "FILE", value_parser = trace_file)]
    trace: Option<PathBuf>,
}

/// Parses a file name whose extension selects the form of the trace.
fn trace_file(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match extension(&path) {
        "svg" | "html" | "json" => Ok(path),
        _ => Err("its name has to end in .svg, .html or .json".to_owned()),
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(OsStr::to_str).unwrap_or_default()
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> anyhow::Result<()> {
    let recorder = options.trace.as_ref().map(|_| Recorder::new());
    if let Some(recorder) = &recorder {
        tracing_subscriber::registry().with(recorder.layer()).init();
    }
    let device = options.device.device()?;
    let mut pipeline = Pipeline::new(&device, &options)?;
    let compute = pipeline.compute.clone();

    let began = Instant::now();
    let raw = compute.enter(|| ColumnMoments::new(COLUMNS, &device))?;
    let rows = pipeline.pass(|x| raw.merge(x).queued()).await?;
    ensure!(rows > 0, "{} has no rows", options.file.display());
    let (mean, deviation) = compute.enter(|| raw.scales())?;

    let standard = compute.enter(|| ColumnMoments::new(COLUMNS, &device))?;
    pipeline
        .pass(|x| {
            ops::standardize_(x, &mean, &deviation).queued()?;
            standard.merge(x).queued()
        })
        .await?;
    let (standard_mean, standard_deviation) = compute.enter(|| standard.scales())?;

    let means = compute.read(&mean).await?;
    let deviations = compute.read(&deviation).await?;
    let standard_means = compute.read(&standard_mean).await?;
    let standard_deviations = compute.read(&standard_deviation).await?;
    let took = began.elapsed();

    print_columns("mean of each pixel", &means);
    print_columns("deviation of each pixel (1 where it never changes)", &deviations);
    let (memory, pinned) = (device.memory_stats(), device.pinned_stats());
    println!("{rows} rows, twice, in {} batches on {device}", pipeline.batches);
    println!("{} bytes copied; {:.1} ms in all", pipeline.bytes_copied, took.as_secs_f64() * 1e3);
    println!(
        "peaks: {} bytes of device memory, {} bytes pinned",
        memory.peak_allocated_bytes, pinned.peak_allocated_bytes
    );
    if let (Some(recorder), Some(path)) = (&recorder, &options.trace) {
        // A GPU reports the times of an op only after the op has finished.
        device.synchronize().await?;
        let written = match extension(path) {
            "json" => recorder.write_file(path),
            _ => recorder.picture().title("Pipeline: two passes over the digits").write_file(path),
        };
        written.with_context(|| format!("cannot write {}", path.display()))?;
        println!("trace of {} ops in {}", recorder.len(), path.display());
    }

    let (host_means, host_deviations) = on_the_host(&options.file)?;
    let zeros = vec![0.0; COLUMNS];
    let ones: Vec<f64> = host_deviations.iter().map(|_| 1.0).collect();
    let mut differences = Vec::new();
    for (what, device, host) in [
        ("mean", &means, &host_means),
        ("deviation", &deviations, &host_deviations),
        ("mean, standardized,", &standard_means, &zeros),
        ("deviation, standardized,", &standard_deviations, &ones),
    ] {
        let difference = largest_difference(device, host);
        println!("largest difference of a {what} from the host's: {difference:.1e}");
        differences.push(difference);
    }
    let worst = largest(differences);
    ensure!(
        worst <= TOLERANCE,
        "device and host differ by {worst:.1e}, more than the {TOLERANCE:.0e} that rounding explains"
    );
    Ok(())
}

/// Two streams, and device buffers that batches use round-robin.
struct Pipeline {
    file: PathBuf,
    copy: Stream,
    compute: Stream,
    slots: Vec<Slot>,
    /// The pinned buffers between passes.
    spare: Vec<Pinned<f32>>,
    batches: usize,
    bytes_copied: usize,
    /// The track of the reader in the trace.
    loading: Arc<HostTrack>,
}

struct Slot {
    device: Buffer<f32>,
    /// The newest copy into the buffer, which owns the pinned buffer.
    sent: Option<Pending<Pinned<f32>>>,
    /// An event after the newest step that used the buffer.
    used: Event,
}

/// Rows in pinned memory. At the end of the file they may not fill it.
struct Batch {
    host: Pinned<f32>,
    rows: usize,
}

impl Pipeline {
    fn new(device: &Device, options: &Options) -> warpline::Result<Self> {
        let copy = device.stream().label("copy").build()?;
        let compute = device.stream().label("compute").build()?;
        let len = options.batch_rows as usize * COLUMNS;
        let slot = || Ok(Slot { device: copy.alloc(len)?, sent: None, used: copy.record_event() });
        let slots = (0..options.slots).map(|_| slot()).collect::<warpline::Result<_>>()?;
        // One more than there are slots, so that the reader has a buffer while every slot has a
        // copy in flight.
        let spare = (0..=options.slots).map(|_| device.blocking_pinned(len)).collect::<Result<_, _>>()?;
        let loading = Arc::new(HostTrack::new("loading"));
        Ok(Pipeline {
            file: options.file.clone(),
            copy,
            compute,
            slots,
            spare,
            batches: 0,
            bytes_copied: 0,
            loading,
        })
    }

    /// Reads the file and enqueues `step` on the compute stream for each batch. Returns the number
    /// of rows.
    async fn pass(
        &mut self,
        mut step: impl FnMut(&Buffer<f32>) -> warpline::Result<()>,
    ) -> anyhow::Result<usize> {
        let (spare, spares) = mpsc::channel(self.slots.len() + 1);
        let (filled, mut batches) = mpsc::channel(self.slots.len() + 1);
        let rows = Rows::open(&self.file)?;
        let loading = self.loading.clone();
        let reader = tokio::task::spawn_blocking(move || read(rows, spares, filled, &loading));
        for host in self.spare.drain(..) {
            let _ = spare.send(host).await;
        }

        let (turns, mut total) = (self.slots.len(), 0);
        for turn in 0.. {
            let slot = &mut self.slots[turn % turns];
            // Return the buffer of the previous copy into this slot to the reader. That copy is a
            // round old, so there is rarely anything to wait for.
            if let Some(sent) = slot.sent.take() {
                let _ = spare.send(sent.await?).await;
            }
            let Some(Batch { host, rows }) = batches.recv().await else { break };
            self.bytes_copied += host.len() * size_of::<f32>();
            self.batches += 1;
            total += rows;

            self.copy.wait_event(&slot.used);
            slot.sent = Some(self.copy.copy_into(&slot.device, host));
            // The edge is from this copy alone, not from those of later batches.
            self.compute.wait_event(&self.copy.record_event());
            let x = slot.device.slice(..rows * COLUMNS)?;
            self.compute.enter(|| step(&x))?;
            slot.used = self.compute.record_event();
        }

        drop(spare);
        self.spare = reader.await??;
        for slot in &mut self.slots {
            if let Some(sent) = slot.sent.take() {
                self.spare.push(sent.await?);
            }
        }
        Ok(total)
    }
}

/// Fills the buffers from `spares` with rows and sends them on, until the file ends or the receiver
/// is dropped. Returns the remaining buffers.
fn read(
    mut rows: Rows,
    mut spares: mpsc::Receiver<Pinned<f32>>,
    filled: mpsc::Sender<Batch>,
    loading: &HostTrack,
) -> anyhow::Result<Vec<Pinned<f32>>> {
    let mut left = Vec::new();
    while let Some(mut host) = spares.blocking_recv() {
        let span = loading.span("read");
        let read = rows.read(&mut host)?;
        drop(span);
        if read == 0 {
            left.push(host);
            break;
        }
        if filled.blocking_send(Batch { host, rows: read }).is_err() {
            break;
        }
    }
    drop(filled);
    while let Some(host) = spares.blocking_recv() {
        left.push(host);
    }
    Ok(left)
}

/// A gzip-compressed CSV as rows of `COLUMNS` numbers.
struct Rows {
    path: PathBuf,
    csv: csv::Reader<MultiGzDecoder<File>>,
    record: ByteRecord,
}

impl Rows {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        // `flexible` accepts lines of any length, so that `parse` can report the number of fields.
        let csv =
            ReaderBuilder::new().has_headers(false).flexible(true).from_reader(MultiGzDecoder::new(file));
        Ok(Rows { path: path.to_owned(), csv, record: ByteRecord::new() })
    }

    /// Fills `to` with whole rows and returns their number, which is smaller only at the end of the
    /// file.
    fn read(&mut self, to: &mut [f32]) -> anyhow::Result<usize> {
        let mut read = 0;
        for row in to.chunks_exact_mut(COLUMNS) {
            let more = self.csv.read_byte_record(&mut self.record).with_context(|| {
                let (path, line) = (self.path.display(), self.csv.position().line());
                format!("{path}:{line}: cannot decompress")
            })?;
            if !more {
                break;
            }
            let line = self.record.position().map_or(0, |position| position.line());
            self.parse(row).with_context(|| format!("{}:{line}", self.path.display()))?;
            read += 1;
        }
        Ok(read)
    }

    fn parse(&self, row: &mut [f32]) -> anyhow::Result<()> {
        let fields = self.record.len();
        ensure!(fields == COLUMNS, "{fields} fields where {COLUMNS} are expected: 64 pixels and the label");
        for (column, (to, field)) in row.iter_mut().zip(&self.record).enumerate() {
            let number = str::from_utf8(field).ok().and_then(|field| field.trim().parse().ok());
            *to = number.filter(|number: &f32| number.is_finite()).with_context(|| {
                format!("field {} is \"{}\", not a finite number", column + 1, field.escape_ascii())
            })?;
        }
        Ok(())
    }
}

/// Returns the mean and the deviation of each column, in f64 with two passes over the rows.
fn on_the_host(path: &Path) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let mut rows = Rows::open(path)?;
    let (mut all, mut row) = (Vec::new(), [0.0; COLUMNS]);
    while rows.read(&mut row)? == 1 {
        all.push(row.map(f64::from));
    }
    let average = |of: &dyn Fn(&[f64; COLUMNS]) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let column = |c: usize| {
        let mean = average(&|row| row[c]);
        let deviation = average(&|row| (row[c] - mean).powi(2)).sqrt();
        (mean, if deviation == 0.0 { 1.0 } else { deviation })
    };
    Ok((0..COLUMNS).map(column).unzip())
}

fn largest_difference(device: &[f32], host: &[f64]) -> f64 {
    largest(device.iter().zip(host).map(|(&device, host)| (f64::from(device) - host).abs()))
}

/// Returns the largest of non-negative numbers, or NaN if one is NaN.
fn largest(numbers: impl IntoIterator<Item = f64>) -> f64 {
    numbers.into_iter().max_by(f64::total_cmp).unwrap_or(0.0)
}

fn print_columns(what: &str, columns: &[f32]) {
    println!("{what}");
    for line in columns[..64].chunks(8) {
        println!("{}", line.iter().map(|x| format!("{x:7.3}")).collect::<String>());
    }
    println!("and of the label: {:.3}\n", columns[64]);
}
