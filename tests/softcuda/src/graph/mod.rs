//! Graphs: captured nodes, and the edges between them.
//!
//! A capture creates a graph and adds nodes to it. When the capture ends, the graph belongs to the
//! caller, who can instantiate ([`exec`]) and destroy it. Only its handle refers to a graph: an
//! executable graph shares the nodes, not the graph.

pub(crate) mod exec;
mod order;
mod pin;
mod program;
mod run;
mod update;

use crate::abi::{CUgraph, CUgraphNode};
use crate::errors::{Outcome, refuse};
use crate::slab::Slab;
use parking_lot::Mutex;
pub(crate) use program::{Node, Program};
pub(crate) use run::Run;
use std::sync::Arc;

/// The kind in a node's handle, at the place where other handles have theirs.
const NODE_KIND: u64 = 11 << 56;

/// A graph.
pub(crate) struct Graph {
    index: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: Vec<Placed>,
    /// True while a capture adds nodes.
    growing: bool,
}

/// A node and the nodes that it runs after, all of them captured before it.
struct Placed {
    node: Arc<Node>,
    after: Vec<usize>,
}

static GRAPHS: Slab<Graph> = Slab::new(6);

/// Creates an empty graph for a capture.
pub(crate) fn open() -> (CUgraph, &'static Graph) {
    let (index, graph) = GRAPHS.take(|index| Graph { index, state: Mutex::default() });
    *graph.state.lock() = State { nodes: Vec::new(), growing: true };
    (CUgraph(GRAPHS.publish(index)), graph)
}

fn named(handle: CUgraph) -> Outcome<&'static Graph> {
    match GRAPHS.get(handle.0) {
        Some(graph) => Ok(graph),
        None => refuse!(INVALID_VALUE, "the graph is {}", GRAPHS.what_is(handle.0)),
    }
}

/// Destroys a graph. Executable graphs made from it remain.
pub(crate) fn destroy(handle: CUgraph) -> Outcome {
    if named(handle)?.state.lock().growing {
        refuse!(INVALID_VALUE, "the capture of the graph has not ended");
    }
    discard(handle);
    Ok(())
}

/// Revokes a graph's handle and drops its nodes.
pub(crate) fn discard(handle: CUgraph) {
    if let Some(graph) = GRAPHS.revoke(handle.0) {
        let ended = std::mem::take(&mut *graph.state.lock());
        drop(ended);
        GRAPHS.recycle(graph.index);
    }
}

/// Returns the handles of a graph's nodes, in the order of their capture.
pub(crate) fn nodes(handle: CUgraph) -> Outcome<Vec<CUgraphNode>> {
    let graph = named(handle)?;
    let count = graph.state.lock().nodes.len();
    Ok((0..count).map(|node| graph.node_handle(node)).collect())
}

impl Graph {
    /// Adds a node and returns its number.
    pub(crate) fn add(&self, node: Arc<Node>, after: Vec<usize>) -> usize {
        let nodes = &mut self.state.lock().nodes;
        nodes.push(Placed { node, after });
        nodes.len() - 1
    }

    /// Closes the graph to further nodes. Returns false if it has nodes that none of `last` is or
    /// runs after.
    pub(crate) fn close(&self, last: &[usize]) -> bool {
        let state = &mut *self.state.lock();
        state.growing = false;
        let mut found = vec![false; state.nodes.len()];
        let mut open = last.to_vec();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut found[node], true) {
                open.extend(&state.nodes[node].after);
            }
        }
        found.iter().all(|found| *found)
    }

    /// Returns the handle of a node.
    pub(crate) fn node_handle(&self, node: usize) -> CUgraphNode {
        CUgraphNode(NODE_KIND | (self.index as u64) << 32 | (node as u64 + 1))
    }

    /// Returns the program of an executable graph that is made from the graph now.
    fn program(&self) -> Outcome<Program> {
        let state = self.state.lock();
        if state.growing {
            refuse!(INVALID_VALUE, "the capture of the graph has not ended");
        }
        Ok(Program::new(state.nodes.iter().map(|placed| (&placed.node, &placed.after[..]))))
    }
}
