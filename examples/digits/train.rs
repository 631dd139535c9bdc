//! The training: a copy stream brings batches while a compute stream trains on the earlier ones.

use super::model::{Mlp, Sgd};
use super::steps::Steps;
use futures::{FutureExt, TryStreamExt};
use std::collections::VecDeque;
use std::path::PathBuf;
use warpline::Result;
use warpline::ops::data::{Batches, Csv};
use warpline::prelude::*;

/// Every fifth row belongs to the test set.
const TEST_EVERY: u64 = 5;
/// The number of rows in the shuffle buffer. The whole file would fit, but a data set too large for
/// memory has a buffer smaller than the data.
const SHUFFLE_ROWS: usize = 512;
/// The number of steps enqueued ahead of the device: enough that it never idles, and a bound for
/// the memory of their batches.
const STEPS_AHEAD: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) file: PathBuf,
    pub(crate) epochs: u64,
    pub(crate) batch_size: usize,
    pub(crate) seed: u64,
    pub(crate) prefetch: usize,
    pub(crate) sgd: Sgd,
    /// Launches each step as a graph.
    pub(crate) graph: bool,
}

/// The defaults of the example.
impl Default for Settings {
    fn default() -> Self {
        Settings {
            file: concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/digits.csv.gz").into(),
            epochs: 60,
            batch_size: 32,
            seed: 1,
            // About 2 ms of reading. With fewer batches the reader runs out of pinned memory
            // whenever the scheduler delays another thread.
            prefetch: 32,
            sgd: Sgd { lr: 0.05, momentum: 0.9 },
            graph: false,
        }
    }
}

impl Settings {
    fn rows(&self) -> Csv {
        Csv::new(&self.file, 65).classes(10).scale(1.0 / 16.0)
    }

    /// Returns the shuffled training rows. Every epoch reads them again.
    pub(crate) fn training(&self, copy: &Stream) -> Result<Batches<(f32, i64)>> {
        Loader::sequential(self.rows().keep(|row| row % TEST_EVERY != 0))
            .batch_size(self.batch_size)
            .shuffle(self.seed)
            .shuffle_capacity(SHUFFLE_ROWS)
            .prefetch(self.prefetch)
            .on(copy)
            .build()
    }

    fn testing(&self, copy: &Stream) -> Result<Batches<(f32, i64)>> {
        Loader::sequential(self.rows().keep(|row| row % TEST_EVERY == 0))
            .batch_size(self.batch_size)
            .on(copy)
            .build()
    }
}

/// The two streams, and the model, which belongs to the compute stream.
pub(crate) struct Training {
    pub(crate) copy: Stream,
    pub(crate) compute: Stream,
    pub(crate) model: Mlp,
}

/// The progress of a training.
pub(crate) enum Progress {
    /// A step has been enqueued.
    Step,
    /// The mean loss over an epoch's steps has arrived.
    Loss { epoch: u64, loss: f32 },
}

impl Training {
    pub(crate) fn new(device: &Device, settings: &Settings) -> Result<Self> {
        let copy = device.stream().label("copy").build()?;
        let compute = device.stream().label("compute").build()?;
        let model = compute.enter(|| Mlp::new(settings.seed, device))?;
        Ok(Training { copy, compute, model })
    }

    /// Trains for all epochs and returns the number of steps.
    pub(crate) async fn run(&self, settings: &Settings, mut tell: impl FnMut(Progress)) -> Result<u64> {
        let Training { copy, compute, model } = self;
        let mut batches = settings.training(copy)?.epochs(0..settings.epochs);
        let mut steps = Steps::new(model, compute, settings);
        let mut losses = Losses::default();
        let mut ahead = VecDeque::new();
        let mut enqueued = 0;
        while let Some(batch) = batches.try_next().await? {
            // Wait for the copy of this batch alone, not for those of later batches.
            compute.wait_event(&batch.copied);
            let (x, labels) = batch.tensors();
            compute.enter(|| losses.add(batch.epoch, &steps.step(&x, &labels)?))?;
            tell(Progress::Step);
            enqueued += 1;

            // The batch is dropped here. Its memory is reused once the step has finished.
            ahead.push_back(compute.record_event());
            if ahead.len() > STEPS_AHEAD
                && let Some(step) = ahead.pop_front()
            {
                step.await?;
            }
            losses.arrived(&mut tell)?;
        }
        compute.enter(|| losses.end_epoch());
        compute.synchronize().await?;
        losses.arrived(&mut tell)?;
        Ok(enqueued)
    }

    /// Returns the number of rows of the test set that the model classifies correctly, and the
    /// number of all its rows.
    pub(crate) async fn test(&self, settings: &Settings) -> Result<(i64, u64)> {
        let Training { copy, compute, model } = self;
        let mut batches = settings.testing(copy)?;
        let right = compute.enter(|| Tensor::full([], 0_i64, &compute.device())).queued()?;
        while let Some(batch) = batches.try_next().await? {
            compute.wait_event(&batch.copied);
            let (x, labels) = batch.tensors();
            compute.enter(|| right.add_(model.logits(&x).argmax().count_equal(&labels))).queued()?;
        }
        Ok((compute.enter(|| right.item()).await?, batches.stats().rows))
    }
}

/// The mean loss of each epoch: added up on the device, copied back at the end of the epoch, and
/// reported once it has arrived. The host never waits for it.
#[derive(Default)]
struct Losses {
    epoch: u64,
    steps: u64,
    sum: Option<Tensor>,
    on_their_way: VecDeque<(u64, Pending<f32>)>,
}

impl Losses {
    fn add(&mut self, epoch: u64, loss: &Tensor) -> Result<()> {
        if epoch != self.epoch {
            self.end_epoch();
            self.epoch = epoch;
        }
        self.steps += 1;
        let sum = match &mut self.sum {
            Some(sum) => sum,
            none => none.insert(Tensor::zeros([], &loss.device()).queued()?),
        };
        sum.add_(loss).queued().map(drop)
    }

    fn end_epoch(&mut self) {
        if let Some(sum) = self.sum.take() {
            let mean = sum.mul(1.0 / self.steps as f32).item();
            self.on_their_way.push_back((self.epoch, mean));
        }
        self.steps = 0;
    }

    fn arrived(&mut self, tell: &mut impl FnMut(Progress)) -> Result<()> {
        while let Some((epoch, loss)) = self.on_their_way.front_mut() {
            let Some(loss) = loss.now_or_never() else { break };
            tell(Progress::Loss { epoch: *epoch, loss: loss? });
            self.on_their_way.pop_front();
        }
        Ok(())
    }
}
