//! Training steps of a small multi-layer perceptron on one stream of the CPU device: how many a second.
//!
//! 64 inputs, 128 hidden units, 10 classes, batches of 32 that are on the device already. A step is forward, softmax cross
//! entropy, backward with the gradients written out, and SGD with momentum on four parameters: 14 ops. The host enqueues ahead and
//! waits for the loss of every hundredth step; a second row waits for that of every step, as a synchronous program would.
//! `benches/versus_pytorch` runs the same steps in PyTorch.

mod support;

use std::time::Instant;
use support::{Options, Sample, Table, instructions, measure::short};
use warpline::prelude::*;
use warpline::{Generator, Result};

const BATCH: usize = 32;
const SIZES: [usize; 3] = [64, 128, 10];
/// Batches that are there, used in turn.
const BATCHES: usize = 16;
const LR: f32 = 0.01;
const MOMENTUM: f32 = 0.9;

/// A parameter with its velocity.
struct Param {
    value: Tensor,
    velocity: Tensor,
}

impl Param {
    fn new(shape: &[usize], deviation: f32, generator: &Generator, device: &Device) -> Result<Self> {
        let value = Tensor::empty(shape, device).normal_from_(generator, 0.0, deviation).queued()?;
        let velocity = Tensor::zeros(shape, device).queued()?;
        Ok(Param { value, velocity })
    }

    fn step(&self, grad: Pending<Tensor>) -> Result<()> {
        self.value.sgd_(grad, &self.velocity, LR, MOMENTUM).queued().map(drop)
    }
}

struct Model {
    w1: Param,
    b1: Param,
    w2: Param,
    b2: Param,
    batches: Vec<(Tensor, Tensor)>,
}

impl Model {
    fn new(device: &Device) -> Result<Self> {
        let generator = Generator::new(1);
        let [inputs, hidden, classes] = SIZES;
        let param = |shape: &[usize], deviation| Param::new(shape, deviation, &generator, device);
        let mut batches = Vec::new();
        for batch in 0..BATCHES {
            let labels: Vec<i64> = (0..BATCH).map(|row| ((row * 7 + batch * 3) % classes) as i64).collect();
            batches.push((
                Tensor::empty([BATCH, inputs], device).normal_from_(&generator, 0.0, 1.0).queued()?,
                Tensor::from_host(&labels, [BATCH], device).queued()?,
            ));
        }
        Ok(Model {
            w1: param(&[hidden, inputs], 0.1)?,
            b1: param(&[hidden], 0.0)?,
            w2: param(&[classes, hidden], 0.1)?,
            b2: param(&[classes], 0.0)?,
            batches,
        })
    }

    /// One step; the loss before it.
    fn step(&self, at: usize) -> Result<Tensor> {
        let (x, labels) = &self.batches[at % BATCHES];
        let h = x.linear(&self.w1.value, &self.b1.value).relu().queued()?;
        let (loss, dy) = h.linear(&self.w2.value, &self.b2.value).cross_entropy(labels).queued()?;
        let dh = dy.matmul(&self.w2.value).relu_backward(&h).queued()?;
        self.w2.step(dy.t().matmul(&h))?;
        self.b2.step(dy.sum_rows())?;
        self.w1.step(dh.t().matmul(x))?;
        self.b1.step(dh.sum_rows())?;
        Ok(loss)
    }

    /// `steps` steps, waiting for the loss of every `look`-th: the last loss.
    fn train(&self, steps: usize, look: usize) -> Result<f32> {
        let mut last = f32::NAN;
        for at in 1..=steps {
            let loss = self.step(at)?;
            if at % look == 0 {
                last = loss.item().wait()?;
            }
        }
        Ok(last)
    }

    /// Steps a second.
    fn rate(&self, steps: usize, look: usize) -> Result<f64> {
        let start = Instant::now();
        let loss = self.train(steps, look)?;
        assert!(loss.is_finite(), "the loss is {loss}");
        Ok(steps as f64 / start.elapsed().as_secs_f64())
    }
}

/// What `benches/versus_pytorch` asks for: `--steps STEPS LOOK`, one rate.
fn one_run() -> Option<(usize, usize)> {
    let mut args = std::env::args().skip_while(|arg| arg != "--steps").skip(1);
    let mut number = || args.next().map(|text| text.parse().expect("--steps STEPS LOOK"));
    Some((number()?, number()?))
}

/// For callgrind: without threads, so that nobody spins and both sides count.
fn counted(steps: usize) -> Result<()> {
    let runtime = Runtime::builder().schedule(Schedule::Seeded(1)).build()?;
    let device = runtime.device(DeviceId::Cpu(0))?;
    let stream = device.new_stream()?;
    let model = stream.enter(|| Model::new(&device))?;
    stream.enter(|| model.train(steps, 100))?;
    stream.synchronize().wait()
}

fn main() -> Result<()> {
    let options = Options::from_command_line();
    if let Some((_, times)) = &options.only {
        return counted(*times as usize);
    }
    let (_runtime, device) = support::cpu();
    let stream = device.new_stream()?;
    let model = stream.enter(|| Model::new(&device))?;
    if let Some((steps, look)) = one_run() {
        let rate = stream.enter(|| model.rate(steps, look).and_then(|_| model.rate(steps, look)))?;
        println!("{rate}");
        return Ok(());
    }
    let table = Table::new("step: a 64-128-10 perceptron, batches of 32 (steps a second)");
    let steps = options.scaled(10_000) / 100 * 100;
    for (name, look) in
        [("steps a second, loss read every 100", 100), ("steps a second, loss read every step", 1)]
    {
        let mut rates = Sample::default();
        for round in 0..=options.rounds(9) {
            let rate = stream.enter(|| model.rate(steps, look))?;
            if round > 0 {
                rates.0.push(rate);
            }
        }
        let against = "benches/versus_pytorch";
        table.row(name, &short(rates.median()), "", against, &rates.spread(), "3 × PyTorch", None);
    }
    if let Some(counted) = instructions::count_between("step", 100, 400) {
        table.note("a step, instructions of both sides", &short(counted.total));
    }
    Ok(())
}
