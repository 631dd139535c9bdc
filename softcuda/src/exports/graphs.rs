//! Graphs: what a capture left, and what is instantiated from it.

use crate::abi::{CUgraph, CUgraphExec, CUgraphNode, CUstream, InOut, Out};
use crate::door::exports;
use crate::graph::{self, exec};

exports! {
    fn cuGraphGetNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: InOut<usize>) {
        let found = graph::nodes(graph)?;
        if nodes.is_null() {
            return count.set(found.len());
        }
        let room = count.get()?;
        let kept = room.min(found.len());
        let handles = found.into_iter().map(Some).chain(std::iter::repeat(None));
        for (index, handle) in handles.take(room).enumerate() {
            nodes.set_at(index, handle.unwrap_or(CUgraphNode(0)))?;
        }
        count.set(kept)
    }

    fn cuGraphDestroy(graph: CUgraph) {
        graph::destroy(graph)
    }

    fn cuGraphInstantiateWithFlags(out: Out<CUgraphExec>, graph: CUgraph, flags: u64) {
        out.set(exec::instantiate(graph, flags)?)
    }

    fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) {
        exec::upload(exec, stream)
    }

    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) {
        exec::launch(exec, stream)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        exec::destroy(exec)
    }
}
