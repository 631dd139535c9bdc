//! Training steps, enqueued op by op or as a graph captured once for each shape of a batch.

use super::model::{Mlp, Sgd};
use super::train::Settings;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use warpline::prelude::*;
use warpline::{Graph, Result};

/// The steps of one model on one stream.
pub(crate) struct Steps<'a> {
    model: &'a Mlp,
    stream: &'a Stream,
    sgd: Sgd,
    /// The graphs by the number of rows of a batch, if steps are graphs. The last batch of an epoch
    /// is smaller.
    graphs: Option<HashMap<usize, StepGraph>>,
}

/// A captured step on the batch in `x` and `labels`. Each launch leaves its loss in `loss`.
struct StepGraph {
    x: Tensor,
    labels: Tensor,
    loss: Tensor,
    graph: Graph,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(model: &'a Mlp, stream: &'a Stream, settings: &Settings) -> Self {
        Steps { model, stream, sgd: settings.sgd, graphs: settings.graph.then(HashMap::new) }
    }

    /// Enqueues one step on a batch, with the stream current. Returns the mean loss before it,
    /// which a later step may overwrite.
    pub(crate) fn step(&mut self, x: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let Steps { model, stream, sgd, graphs } = self;
        let Some(graphs) = graphs else { return model.step(x, labels, *sgd) };
        let step = match graphs.entry(labels.len()) {
            Entry::Occupied(captured) => captured.into_mut(),
            Entry::Vacant(new) => new.insert(StepGraph::capture(model, stream, x, labels, *sgd)?),
        };
        step.x.copy_(x).queued()?;
        step.labels.copy_(labels).queued()?;
        step.graph.launch(stream).queued()?;
        Ok(step.loss.clone())
    }
}

impl StepGraph {
    /// Captures a step for batches shaped like `x` and `labels`. Nothing runs yet.
    fn capture(model: &Mlp, stream: &Stream, x: &Tensor, labels: &Tensor, sgd: Sgd) -> Result<Self> {
        let like = |batch: &Tensor| Tensor::empty_like(batch).queued();
        let (x, labels) = (like(x)?, like(labels)?);
        let (graph, loss) = stream.capture(|_| model.step(&x, &labels, sgd))?;
        Ok(StepGraph { x, labels, loss, graph })
    }
}
