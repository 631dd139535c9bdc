//! Graphs made by captures, and the executable graphs instantiated from them.

use crate::abi::{CUgraph, CUgraphExec, CUgraphNode, CUstream, GraphUpdate, InOut, Out};
use crate::door::exports;
use crate::errors::refuse;
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

    fn cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, info: Out<GraphUpdate>) {
        let change = exec::update(exec, graph)?;
        let result = change.map_or(0, |change| change as u32);
        info.set(GraphUpdate { result, error_node: CUgraphNode(0), error_from_node: CUgraphNode(0) })?;
        match change {
            Some(change) => refuse!(GRAPH_EXEC_UPDATE_FAILURE, "what changed: {change:?}"),
            None => Ok(()),
        }
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        exec::destroy(exec)
    }
}
