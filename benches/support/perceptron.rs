//! A 64-128-10 perceptron and its batches of 32 in device memory: the model of
//! `benches/pytorch_step.py`, for training op by op or by a graph.
//!
//! A step has 14 ops: forward, softmax cross entropy, backward with the gradients written out, and
//! SGD with momentum on four parameters.

use std::time::Instant;
use warpline::prelude::*;
use warpline::{Generator, Result};

const BATCH: usize = 32;
const SIZES: [usize; 3] = [64, 128, 10];
/// The number of batches, used round-robin.
const BATCHES: usize = 16;
const LR: f32 = 0.01;
const MOMENTUM: f32 = 0.9;

/// A parameter and its velocity.
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

/// The rows of a batch and their classes.
struct Batch {
    x: Tensor,
    labels: Tensor,
}

pub struct Perceptron {
    stream: Stream,
    w1: Param,
    b1: Param,
    w2: Param,
    b2: Param,
    batches: Vec<Batch>,
    /// The inputs of the captured step, its graph, and its loss.
    graph: Option<(Batch, Graph, Tensor)>,
}

impl Perceptron {
    /// Makes a model on `stream`. Its steps are launches of a graph if `graph`.
    pub fn new(stream: &Stream, graph: bool) -> Result<Self> {
        stream.enter(|| {
            let mut model = Self::op_by_op(stream)?;
            if graph {
                let device = stream.device();
                let x = Tensor::empty([BATCH, SIZES[0]], &device).queued()?;
                let labels = Tensor::empty([BATCH], (DType::I64, &device)).queued()?;
                let inputs = Batch { x, labels };
                let (graph, loss) = stream.capture(|_| model.step_on(&inputs))?;
                model.graph = Some((inputs, graph, loss));
            }
            Ok(model)
        })
    }

    fn op_by_op(stream: &Stream) -> Result<Self> {
        let (device, generator) = (&stream.device(), Generator::new(1));
        let [inputs, hidden, classes] = SIZES;
        let param = |shape: &[usize], deviation| Param::new(shape, deviation, &generator, device);
        let mut batches = Vec::new();
        for batch in 0..BATCHES {
            let labels: Vec<i64> = (0..BATCH).map(|row| ((row * 7 + batch * 3) % classes) as i64).collect();
            batches.push(Batch {
                x: Tensor::empty([BATCH, inputs], device).normal_from_(&generator, 0.0, 1.0).queued()?,
                labels: Tensor::from_host(&labels, [BATCH], device).queued()?,
            });
        }
        Ok(Perceptron {
            stream: stream.clone(),
            w1: param(&[hidden, inputs], 0.1)?,
            b1: param(&[hidden], 0.0)?,
            w2: param(&[classes, hidden], 0.1)?,
            b2: param(&[classes], 0.0)?,
            batches,
            graph: None,
        })
    }

    /// Enqueues one step. Returns the loss before it.
    fn step_on(&self, Batch { x, labels }: &Batch) -> Result<Tensor> {
        let h = x.linear(&self.w1.value, &self.b1.value).relu().queued()?;
        let (loss, dy) = h.linear(&self.w2.value, &self.b2.value).cross_entropy(labels).queued()?;
        let dh = dy.matmul(&self.w2.value).relu_backward(&h).queued()?;
        self.w2.step(dy.t().matmul(&h))?;
        self.b2.step(dy.sum_rows())?;
        self.w1.step(dh.t().matmul(x))?;
        self.b1.step(dh.sum_rows())?;
        Ok(loss)
    }

    fn step(&self, at: usize) -> Result<Tensor> {
        let batch = &self.batches[at % BATCHES];
        let Some((inputs, graph, loss)) = &self.graph else { return self.step_on(batch) };
        inputs.x.copy_(&batch.x).queued()?;
        inputs.labels.copy_(&batch.labels).queued()?;
        graph.launch(&self.stream).queued()?;
        Ok(loss.clone())
    }

    /// Trains for `steps` steps and waits for the loss of every `look`-th. Returns the last loss it
    /// read.
    pub fn train(&self, steps: usize, look: usize) -> Result<f32> {
        let mut last = f32::NAN;
        self.stream.enter(|| {
            for at in 1..=steps {
                let loss = self.step(at)?;
                if at % look == 0 {
                    last = loss.item().blocking_wait()?;
                }
            }
            Ok(last)
        })
    }

    /// Returns the steps per second.
    pub fn rate(&self, steps: usize, look: usize) -> Result<f64> {
        let start = Instant::now();
        let loss = self.train(steps, look)?;
        assert!(loss.is_finite(), "the loss is {loss}");
        Ok(steps as f64 / start.elapsed().as_secs_f64())
    }
}
