//! What a step costs where nothing overlaps: loading, copying and computing, each alone.

use super::model::Mlp;
use super::steps::Steps;
use super::train::{Settings, Training};
use futures::TryStreamExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use warpline::Result;
use warpline::prelude::*;

const EPOCHS: u64 = 4;

/// Times of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// Reading, decoding and shuffling a batch.
    pub(crate) load: Duration,
    /// Copying it from pinned memory to the device.
    pub(crate) copy: Duration,
    /// Training on it, from batches that are on the device already.
    pub(crate) compute: Duration,
}

impl Alone {
    pub(crate) async fn measure(training: &Training, settings: &Settings) -> Result<Self> {
        let (load, batches) = load(training, settings).await?;
        Ok(Alone {
            load,
            copy: copy(training, &batches).await?,
            compute: compute(training, settings, &batches).await?,
        })
    }
}

/// Also returns an epoch's batches, which stay on the device.
async fn load(training: &Training, settings: &Settings) -> Result<(Duration, Vec<(Tensor, Tensor)>)> {
    let mut batches = settings.training(&training.copy)?.epochs(0..EPOCHS);
    let mut kept = Vec::new();
    while let Some(batch) = batches.try_next().await? {
        if batch.epoch == 0 {
            kept.push((batch.x, batch.labels));
        }
    }
    training.copy.synchronize().await?;
    let stats = batches.stats();
    Ok((stats.reading / stats.batches.max(1) as u32, kept))
}

/// A batch's two copies, one batch behind the other, into fresh memory as the loader makes it.
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

/// Steps of another model over batches in device memory.
async fn compute(training: &Training, settings: &Settings, batches: &[(Tensor, Tensor)]) -> Result<Duration> {
    let (stream, device) = (&training.compute, training.compute.device());
    let model = stream.enter(|| Mlp::new(settings.seed, &device))?;
    let mut steps = Steps::new(&model, stream, settings);
    let mut took = Duration::ZERO;
    let mut timed = 0;
    // The first round warms caches and the allocator, and captures what is captured.
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
