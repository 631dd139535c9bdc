//! A network trained on real data while the data is read and copied.
//!
//! A perceptron of 64 pixels, 128 hidden units and 10 digits learns to read handwritten digits.
//! Every epoch reads and decodes the compressed file again, as if it were too large for memory.
//! This happens on blocking threads of tokio. A copy stream brings the batches to the device, and a
//! compute stream trains on the earlier ones meanwhile. At the end the program measures the parts
//! and the whole in several rounds, and reports how much of the possible overlap it reached.
//!
//! ```sh
//! cargo run --release -p warpline-examples --example digits
//! cargo run --release -p warpline-examples --example digits -- --epochs 10 --trace digits.html
//! cargo run --release -p warpline-examples --example digits -- --graph
//! cargo run --release -p warpline-examples --features save --example digits -- \
//!     --save digits.safetensors
//! ```
//! `--graph` captures the step once for each shape of a batch. From then on a step is two copies
//! and one launch, and the weights are the same bit for bit.
//!
//! `--trace` draws the work of the streams: as a page with zoom (`.html`), as a picture of a few
//! steps (`.svg`), or for <https://ui.perfetto.dev> (`.json`). `--save` writes the weights under
//! the names that they have in PyTorch's `Sequential(Linear(64, 128), ReLU(), Linear(128, 10))`.
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! anyhow = "1"
//! clap = { version = "4", features = ["derive"] }
//! futures = "0.3"
//! tokio = { version = "1", features = ["full"] }
//! tracing-subscriber = "0.3"
//! warpline = { path = "../warpline", features = ["clap", "csv", "trace"] }
//!
//! [features]
//! save = ["dep:safetensors"]
//!
//! [dependencies.safetensors]
//! version = "0.7"
//! optional = true
//! ```

mod machine;
mod measure;
mod model;
#[cfg(feature = "save")]
mod save;
mod steps;
mod train;

use anyhow::Context;
use clap::Parser;
use measure::Overlap;
use model::SIZES;
use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tracing_subscriber::prelude::*;
use train::{Progress, Settings, Training};
use warpline::DeviceArgs;
use warpline::trace::Recorder;

/// The number of steps whose time the SVG picture covers, in the middle half of the training.
const DRAWN_STEPS: u32 = 6;

#[derive(Parser)]
#[command(about = "Trains a small network on handwritten digits, loading and computing at the same time")]
struct Options {
    /// The data: rows of 64 pixels from 0 to 16 and a digit, no header, gzip-compressed or not.
    #[arg(default_value_os_t = Settings::default().file)]
    file: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// The number of passes over the data.
    #[arg(long, allow_negative_numbers = true, default_value_t = Settings::default().epochs, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    epochs: u64,
    /// The number of rows in a batch.
    #[arg(long, allow_negative_numbers = true, default_value_t = Settings::default().batch_size as u32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch_size: u32,
    /// The seed of the initial weights and of the order of the rows.
    #[arg(long, allow_negative_numbers = true, default_value_t = Settings::default().seed)]
    seed: u64,
    /// The number of batches to read and copy ahead.
    #[arg(long, allow_negative_numbers = true, default_value_t = Settings::default().prefetch as u32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    prefetch: u32,
    /// Captures the training step as a graph and launches the graph.
    #[arg(long)]
    graph: bool,
    /// Draws the work of the streams into FILE, which ends in .html, .svg or .json.
    #[arg(long, value_name = "FILE", value_parser = drawable)]
    trace: Option<PathBuf>,
    /// Writes the weights into FILE. Needs the feature `save`.
    #[arg(long, value_name = "FILE", value_parser = savable)]
    save: Option<PathBuf>,
}

fn drawable(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "svg" | "json") => Ok(path),
        _ => Err("the name has to end in .html, .svg or .json, which says what is drawn".into()),
    }
}

fn savable(path: &str) -> Result<PathBuf, String> {
    if cfg!(feature = "save") {
        Ok(path.into())
    } else {
        Err("this program was built without its feature `save`; build it with --features save".into())
    }
}

/// Checks that a file can be written, so that a mistake shows before the training and not after it.
fn can_be_written(path: &Path) -> anyhow::Result<()> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).with_context(|| format!("cannot write {}", path.display()))
}

/// Checks that the data, the trace and the weights are different files.
fn one_file_each(options: &Options) -> anyhow::Result<()> {
    let named = [Some(&options.file), options.trace.as_ref(), options.save.as_ref()];
    let mut real: Vec<_> = named.into_iter().flatten().filter_map(|path| path.canonicalize().ok()).collect();
    real.sort();
    if let Some(twice) = real.windows(2).find(|pair| pair[0] == pair[1]) {
        anyhow::bail!("{} is named twice; the data, --trace and --save take a file each", twice[0].display());
    }
    Ok(())
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
    for path in options.trace.iter().chain(&options.save) {
        can_be_written(path)?;
    }
    one_file_each(&options)?;
    let device = options.device.device()?;
    let settings = Settings {
        file: options.file.clone(),
        epochs: options.epochs,
        batch_size: options.batch_size as usize,
        seed: options.seed,
        prefetch: options.prefetch as usize,
        graph: options.graph,
        ..Settings::default()
    };
    let [pixels, hidden, digits] = SIZES;
    println!("{pixels}-{hidden}-{digits} perceptron on {device}, seed {}", settings.seed);

    let training = Training::new(&device, &settings)?;
    // This also finds a bad row of the test set before the training.
    let (guessed, rows) = training.test(&settings).await?;
    let percent = |right: i64| 100.0 * right as f64 / rows as f64;
    println!("accuracy {:.2} % before training", percent(guessed));

    device.reset_peak_memory_stats();
    let mut show = Show::new(&settings);
    let began = Instant::now();
    let steps = training.run(&settings, |progress| show.tell(progress)).await?;
    let a_step = began.elapsed() / steps.max(1) as u32;
    show.clear();
    let (memory, pinned) = (device.memory_stats(), device.pinned_stats());

    let (right, rows) = training.test(&settings).await?;
    println!(
        "accuracy {:.2} % ({right} of {rows}), loss {:.6} after {} epochs, {steps} steps",
        percent(right),
        show.loss,
        settings.epochs,
    );
    // Draw before the measurements, which are not part of the training.
    if let (Some(recorder), Some(path)) = (&recorder, &options.trace) {
        // A GPU reports the times of an op only after the op has finished.
        device.synchronize().await?;
        let drawn =
            draw(recorder, path, a_step).with_context(|| format!("cannot write {}", path.display()))?;
        println!("trace of {drawn} in {}", path.display());
    }
    if recorder.is_none() {
        print_overlap(&Overlap::measure(&device, &settings, steps / settings.epochs).await?);
        let ratio = tokio::task::spawn_blocking(machine::two_threads).await?;
        println!("two busy threads of this machine do {ratio:.1} times the work of one");
    } else {
        println!("overlap not measured: recording takes time of its own");
    }
    println!(
        "peaks while training: {:.1} KiB of device memory, {:.1} KiB pinned",
        memory.peak_allocated_bytes as f64 / 1024.0,
        pinned.peak_allocated_bytes as f64 / 1024.0
    );
    #[cfg(feature = "save")]
    if let Some(path) = &options.save {
        save::save(&training, path).await.with_context(|| format!("cannot save to {}", path.display()))?;
        println!("weights in {}", path.display());
    }
    Ok(())
}

/// The progress, as a line that appears only on a terminal, and the latest loss.
struct Show {
    epochs: u64,
    loss: f32,
    on_terminal: bool,
}

impl Show {
    fn new(settings: &Settings) -> Self {
        Show { epochs: settings.epochs, loss: f32::NAN, on_terminal: std::io::stderr().is_terminal() }
    }

    fn tell(&mut self, progress: Progress) {
        if let Progress::Loss { epoch, loss } = progress {
            self.loss = loss;
            if self.on_terminal {
                eprint!("\repoch {} of {}, loss {loss:.4}", epoch + 1, self.epochs);
            }
        }
    }

    fn clear(&self) {
        if self.on_terminal {
            // Erase to the end of the line (ECMA-48, EL).
            eprint!("\r\x1b[K");
        }
    }
}

/// Draws the recording. Returns a description of what was drawn: everything, except in an SVG
/// picture, which covers a few steps.
fn draw(recorder: &Recorder, path: &Path, a_step: Duration) -> std::io::Result<String> {
    let all = format!("{} ops", recorder.len());
    if path.extension().is_some_and(|extension| extension == "json") {
        recorder.write_file(path)?;
        return Ok(all);
    }
    let timeline = recorder.picture().title("Training on handwritten digits");
    if path.extension().is_some_and(|extension| extension == "svg") {
        let length = a_step * DRAWN_STEPS;
        timeline.at_waits(length).write_file(path)?;
        return Ok(format!("{} µs in the middle", length.as_micros()));
    }
    timeline.write_file(path).map(|()| all)
}

fn print_overlap(overlap: &Overlap) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let (alone, overlapped) = (overlap.alone(), overlap.overlapped());
    println!(
        "a step in µs, medians of {} rounds, each part alone: load {:.1}, copy {:.1}, compute {:.1}",
        overlap.rounds(),
        micros(alone.load),
        micros(alone.copy),
        micros(alone.compute)
    );
    let gained = match alone.gained(overlapped) {
        share @ 0.0..=100.0 => format!("{share:.0} % of the gap was gained"),
        share if share < 0.0 => "nothing of the gap was gained".to_owned(),
        _ => "no share of the gap: the load on the machine changed".to_owned(),
    };
    println!(
        "one after the other {:.1}; bound max(load + copy, compute) {:.1}; overlapped {:.1}: {gained}",
        micros(alone.sum()),
        micros(alone.bound()),
        micros(overlapped),
    );
}
