//! The program of an executable graph: its operations and their order. A program never changes, and
//! launches share it.

use super::pin::Pin;
use crate::context::Context;
use crate::errors::{Code, Outcome};
use crate::module;
use crate::op::Op;
use crate::work::{Fault, HostRange, Ready};
use std::sync::Arc;
use std::time::Instant;

/// A captured operation.
pub(crate) struct Node {
    pub(crate) op: Op,
    /// The context of the stream that it was captured on.
    pub(crate) context: &'static Context,
    /// The priority of that stream. The driver keeps it for kernels only.
    pub(crate) priority: i32,
    pins: Vec<Pin>,
}

/// The nodes of a graph, each stored after those that it runs after.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// For each node, the nodes that it runs after.
    pub(crate) after: Vec<Vec<usize>>,
    /// For each node, the nodes that run after it.
    pub(crate) then: Vec<Vec<usize>>,
}

impl Node {
    /// Creates a node and pins the memory that its operation names.
    pub(crate) fn new(op: Op, context: &'static Context, priority: i32) -> Self {
        let pins = op.addresses().into_iter().filter_map(Pin::on).collect();
        Node { op, context, priority, pins }
    }

    /// Returns when the node can start. `since` is the time of the first call, which a node that
    /// has to wait stores there.
    pub(crate) fn ready(&self, since: &mut Option<Instant>) -> Ready {
        // A node that cannot run starts immediately, and fails.
        if self.stands().is_ok() { self.op.ready(since) } else { Ready::Now }
    }

    /// Runs the node, if all its memory still exists.
    pub(crate) fn execute(&self) -> Result<(), Fault> {
        self.stands()?;
        self.op.execute(self.context)
    }

    /// Runs the node at the call, for `SOFTCUDA_IMMEDIATE`: only words are stored and host
    /// functions called.
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

    /// Checks that the context and the function of the node can still be used.
    fn check(&self) -> Outcome {
        self.context.usable()?;
        if let Op::Launch(launch) = &self.op {
            module::function(launch.function)?;
        }
        Ok(())
    }
}

impl Program {
    /// Creates a program from a graph's nodes, each with those that it runs after.
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

    /// Checks that the program can be launched: its contexts are usable and its modules still
    /// loaded.
    pub(crate) fn check(&self) -> Outcome {
        self.nodes.iter().try_for_each(|node| node.check())
    }

    /// Returns the page-locked and mapped memory that the program touches.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        self.nodes.iter().flat_map(|node| node.op.host_ranges()).collect()
    }
}
