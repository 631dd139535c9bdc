//! One launch of an executable graph, at the front of its stream: the nodes that have ended, and
//! the node that is next.
//!
//! Nodes run one after the other, each once the nodes that it runs after have ended. Among the
//! nodes that can start, the launch's order decides. A node that waits for a word or for time lets
//! the others pass. The launch stays at the front of its stream until no node is left, so that it
//! is one piece of the stream's work.

use super::order::{Order, Rank};
use super::program::{Node, Program};
use crate::op::Op;
use crate::work::{HostRange, Ready};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A launch.
pub(crate) struct Run {
    program: Arc<Program>,
    order: Order,
    /// For each node, the number of nodes that it runs after and that have not ended.
    missing: Vec<usize>,
    /// The nodes that can start, by place. Each has the time when it was first asked, if it had to
    /// wait.
    startable: BTreeMap<Rank, Option<Instant>>,
    /// The node that [`ready`](Self::ready) chose, or that has begun.
    chosen: Option<Rank>,
    ended: usize,
}

impl Run {
    /// Creates a launch that has run no node yet.
    pub(crate) fn new(program: Arc<Program>, order: Order) -> Self {
        let missing: Vec<usize> = program.after.iter().map(Vec::len).collect();
        let first = missing.iter().enumerate().filter(|(_, missing)| **missing == 0);
        let startable =
            first.map(|(node, _)| (order.place(node, program.nodes[node].priority, 0), None)).collect();
        Run { program, order, missing, startable, chosen: None, ended: 0 }
    }

    /// Chooses the next node. Returns when it can start, or when the launch can end.
    pub(crate) fn ready(&mut self) -> Ready {
        self.chosen = None;
        let mut soonest: Option<Instant> = None;
        for (place, since) in &mut self.startable {
            match self.program.nodes[place.2].ready(since) {
                Ready::At(when) | Ready::Underway(when) => {
                    soonest = Some(soonest.map_or(when, |sooner| sooner.min(when)));
                }
                ready => {
                    self.chosen = Some(*place);
                    return ready;
                }
            }
        }
        soonest.map_or(Ready::Now, Ready::At)
    }

    /// Returns true if the chosen node is a host function.
    pub(crate) fn is_call(&self) -> bool {
        self.chosen.is_some_and(|(.., node)| matches!(self.program.nodes[node].op, Op::Call(_)))
    }

    /// Begins the chosen node. Returns none at the end of the launch.
    pub(crate) fn begin(&mut self) -> Option<Arc<Node>> {
        let place = self.chosen?;
        self.startable.remove(&place);
        Some(Arc::clone(&self.program.nodes[place.2]))
    }

    /// Notes that the node that had begun has ended.
    pub(crate) fn end(&mut self) {
        let Some((.., node)) = self.chosen.take() else { return };
        self.ended += 1;
        for next in &self.program.then[node] {
            self.missing[*next] -= 1;
            if self.missing[*next] == 0 {
                let priority = self.program.nodes[*next].priority;
                self.startable.insert(self.order.place(*next, priority, self.ended), None);
            }
        }
    }

    /// Returns the page-locked and mapped memory that the launch touches, now or later.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        self.program.host_ranges()
    }
}
