//! The time of a step: loading, copying and computing, each alone, and all of them overlapped.
//!
//! The load on a machine changes within a second. The parts and the whole are therefore measured
//! alternately, in several rounds, and the medians are compared.

use super::model::Mlp;
use super::steps::Steps;
use super::train::{Settings, Training};
use futures::TryStreamExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use warpline::Result;
use warpline::prelude::*;

/// The number of epochs of each part in a round.
const EPOCHS: u64 = 4;
/// The number of overlapped steps in a round: enough that the start of the pipeline weighs little.
const STEPS: u64 = 2_000;
const ROUNDS: usize = 9;
/// No round begins after this time, so that large data sets are measured in fewer rounds.
const TIME: Duration = Duration::from_secs(20);

/// The times of a step in several rounds.
#[derive(Debug, Default)]
pub(crate) struct Overlap {
    alone: Vec<Alone>,
    overlapped: Vec<Duration>,
}

impl Overlap {
    /// Measures new trainings on `device`, whose data has `steps_per_epoch` batches.
    pub(crate) async fn measure(device: &Device, settings: &Settings, steps_per_epoch: u64) -> Result<Self> {
        let settings = Settings { epochs: STEPS.div_ceil(steps_per_epoch.max(1)), ..settings.clone() };
        let mut overlap = Overlap::default();
        let began = Instant::now();
        while overlap.rounds() == 0 || (overlap.rounds() < ROUNDS && began.elapsed() < TIME) {
            let training = Training::new(device, &settings)?;
            overlap.alone.push(Alone::measure(&training, &settings).await?);
            let began = Instant::now();
            let steps = training.run(&settings, |_| {}).await?;
            overlap.overlapped.push(began.elapsed() / steps.max(1) as u32);
        }
        Ok(overlap)
    }

    pub(crate) fn rounds(&self) -> usize {
        self.overlapped.len()
    }

    /// Returns the median of each part.
    pub(crate) fn alone(&self) -> Alone {
        let part = |time: fn(&Alone) -> Duration| median(self.alone.iter().map(time));
        Alone { load: part(|a| a.load), copy: part(|a| a.copy), compute: part(|a| a.compute) }
    }

    /// Returns the median time of an overlapped step.
    pub(crate) fn overlapped(&self) -> Duration {
        median(self.overlapped.iter().copied())
    }
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort();
    times[times.len() / 2]
}

/// The times of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// The time to read, decode and shuffle a batch.
    pub(crate) load: Duration,
    /// The time to copy it from pinned memory to the device.
    pub(crate) copy: Duration,
    /// The time to train on it, with batches already on the device.
    pub(crate) compute: Duration,
}

impl Alone {
    /// Returns the time of a step whose parts run one after the other.
    pub(crate) fn sum(&self) -> Duration {
        self.load + self.copy + self.compute
    }

    /// Returns the least time of an overlapped step: the reader loads and copies, while another
    /// thread computes.
    pub(crate) fn bound(&self) -> Duration {
        (self.load + self.copy).max(self.compute)
    }

    /// Returns the share of the gap between the sum and the bound that steps of this time gain,
    /// in percent. Noise may put it outside 0 to 100.
    pub(crate) fn gained(&self, overlapped: Duration) -> f64 {
        let [sum, bound, overlapped] = [self.sum(), self.bound(), overlapped].map(|time| time.as_secs_f64());
        100.0 * (sum - overlapped) / (sum - bound)
    }

    pub(crate) async fn measure(training: &Training, settings: &Settings) -> Result<Self> {
        let (load, batches) = load(training, settings).await?;
        Ok(Alone {
            load,
            copy: copy(training, &batches).await?,
            compute: compute(training, settings, &batches).await?,
        })
    }
}

/// Returns the time to load a batch, and the batches of one epoch, which stay on the device.
async fn load(training: &Training, settings: &Settings) -> Result<(Duration, Vec<(Tensor, Tensor)>)> {
    let mut batches = settings.training(&training.copy)?.epochs(0..EPOCHS);
    let mut kept = Vec::new();
    while let Some(batch) = batches.try_next().await? {
        if batch.epoch == 0 {
            kept.push(batch.tensors());
        }
    }
    training.copy.synchronize().await?;
    let stats = batches.stats();
    Ok((stats.reading / stats.batches.max(1) as u32, kept))
}

/// Returns the time of the two copies of a batch, into fresh memory as in the loader. The copies
/// are enqueued without waiting in between.
async fn copy(training: &Training, batches: &[(Tensor, Tensor)]) -> Result<Duration> {
    const TIMES: u32 = 2000;
    let (stream, device) = (&training.copy, training.copy.device());
    let (x, labels) = batches.first().map_or((0, 0), |(x, labels)| (x.len(), labels.len()));
    let x = Arc::new(device.pinned::<f32>(x).await?);
    let labels = Arc::new(device.pinned::<i64>(labels).await?);
    let began = Instant::now();
    for _ in 0..TIMES {
        stream.copy_from_shared(&stream.alloc(x.len())?, &x).queued()?;
        stream.copy_from_shared(&stream.alloc(labels.len())?, &labels).queued()?;
    }
    stream.synchronize().await?;
    Ok(began.elapsed() / TIMES)
}

/// Returns the time of a step of another model, over batches in device memory.
async fn compute(training: &Training, settings: &Settings, batches: &[(Tensor, Tensor)]) -> Result<Duration> {
    let (stream, device) = (&training.compute, training.compute.device());
    let model = stream.enter(|| Mlp::new(settings.seed, &device))?;
    let mut steps = Steps::new(&model, stream, settings);
    let mut took = Duration::ZERO;
    let mut timed = 0;
    // The first round warms caches and the allocator, and captures the graphs if steps are graphs.
    for round in 0..=EPOCHS {
        let began = Instant::now();
        for (x, labels) in batches {
            stream.enter(|| steps.step(x, labels))?;
        }
        stream.synchronize().await?;
        if round > 0 {
            took += began.elapsed();
            timed += batches.len() as u32;
        }
    }
    Ok(took / timed.max(1))
}
