//! One launch of an executable graph, at the front of its stream: which nodes have ended, and which one is next.
//!
//! Nodes run one after the other, each when those that it runs after have ended. Among those that can start, the launch's
//! order decides; a node that waits for a word or for time lets the others pass. The stream has the launch at its front
//! until nothing is left, so that the whole is one piece of its work.

use super::order::{Order, Place};
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
    /// For each node, how many that it runs after have not ended.
    missing: Vec<usize>,
    /// The nodes that can start, by place, and since when they are asked.
    startable: BTreeMap<Place, Option<Instant>>,
    /// What [`ready`](Self::ready) found, or what has begun.
    chosen: Option<Place>,
    ended: usize,
}

impl Run {
    /// A launch that has done nothing yet.
    pub(crate) fn new(program: Arc<Program>, order: Order) -> Self {
        let missing: Vec<usize> = program.after.iter().map(Vec::len).collect();
        let first = missing.iter().enumerate().filter(|(_, missing)| **missing == 0);
        let startable =
            first.map(|(node, _)| (order.place(node, program.nodes[node].priority, 0), None)).collect();
        Run { program, order, missing, startable, chosen: None, ended: 0 }
    }

    /// Chooses the next node. Whether that, or the end of the launch, can come now.
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

    /// Whether the chosen node is a host function.
    pub(crate) fn is_call(&self) -> bool {
        self.chosen.is_some_and(|(.., node)| matches!(self.program.nodes[node].op, Op::Call(_)))
    }

    /// Begins the chosen node. None at the end of the launch.
    pub(crate) fn begin(&mut self) -> Option<Arc<Node>> {
        let place = self.chosen?;
        self.startable.remove(&place);
        Some(Arc::clone(&self.program.nodes[place.2]))
    }

    /// Notes that the node which had begun has ended.
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

    /// The page-locked memory that the launch touches, now or later.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        self.program.host_ranges()
    }
}
