//! What an executable graph does: operations, and which run after which. It never changes; launches share it.

use super::pin::Pin;
use crate::context::Context;
use crate::errors::{Code, Outcome};
use crate::module;
use crate::op::Op;
use crate::work::{Fault, HostRange, Ready};
use std::sync::Arc;
use std::time::Instant;

/// An operation that was captured.
pub(crate) struct Node {
    pub(crate) op: Op,
    /// That of the stream it was captured on.
    pub(crate) context: &'static Context,
    /// That of the stream too. The driver keeps it of kernels only.
    pub(crate) priority: i32,
    pins: Vec<Pin>,
}

/// The nodes, each behind those that it runs after.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// For each node, those that it runs after.
    pub(crate) after: Vec<Vec<usize>>,
    /// For each node, those that run after it.
    pub(crate) then: Vec<Vec<usize>>,
}

impl Node {
    /// Notes an operation, and which memory it names.
    pub(crate) fn new(op: Op, context: &'static Context, priority: i32) -> Self {
        let pins = op.addresses().into_iter().filter_map(Pin::on).collect();
        Node { op, context, priority, pins }
    }

    /// Whether it can start. `since` is when that was first asked.
    pub(crate) fn ready(&self, since: &mut Option<Instant>) -> Ready {
        // What cannot be done starts, and fails.
        if self.stands().is_ok() { self.op.ready(since) } else { Ready::Now }
    }

    /// Does it, if all its memory still stands.
    pub(crate) fn execute(&self) -> Result<(), Fault> {
        self.stands()?;
        self.op.execute(self.context)
    }

    /// Does what is done at the call where nothing runs: words are stored, the host is called.
    pub(crate) fn execute_at_call(&self) -> Result<(), Fault> {
        match self.op {
            Op::WriteWord(_) | Op::Call(_) => self.execute(),
            _ => Ok(()),
        }
    }

    fn stands(&self) -> Result<(), Fault> {
        if let Some(code) = self.context.poisoned() {
            return Err(Fault { code, why: "a graph has work of a context that is lost".into() });
        }
        match self.pins.iter().find(|pin| !pin.stands()) {
            Some(ended) => Err(Fault { code: Code::ILLEGAL_ADDRESS, why: ended.to_string() }),
            None => Ok(()),
        }
    }

    /// An error if its context or its function cannot be used any more.
    fn check(&self) -> Outcome {
        self.context.usable()?;
        if let Op::Launch(launch) = &self.op {
            module::function(launch.function)?;
        }
        Ok(())
    }
}

impl Program {
    /// The nodes of a graph, each with those that it runs after.
    pub(crate) fn new<'a>(graph: impl Iterator<Item = (&'a Arc<Node>, &'a [usize])>) -> Self {
        let mut program = Program::default();
        for (node, after) in graph {
            program.push(node, after.to_vec());
        }
        program
    }

    fn push(&mut self, node: &Arc<Node>, after: Vec<usize>) {
        let place = self.nodes.len();
        for before in &after {
            self.then[*before].push(place);
        }
        self.nodes.push(Arc::clone(node));
        self.after.push(after);
        self.then.push(Vec::new());
    }

    /// An error if it cannot be launched: a context is lost, or a module was unloaded.
    pub(crate) fn check(&self) -> Outcome {
        self.nodes.iter().try_for_each(|node| node.check())
    }

    /// The page-locked memory it touches.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        self.nodes.iter().flat_map(|node| node.op.host_ranges()).collect()
    }
}
