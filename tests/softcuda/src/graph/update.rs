//! The differences allowed between an executable graph and the graph that updates it.
//!
//! The new graph may have other arguments, shapes, kernels, host functions, words, and addresses on
//! the same device. It must have the same edges and the same order of capture.

use super::program::{Node, Program};
use crate::memory;
use crate::op::Op;

/// The reason to refuse an update: a `CUgraphExecUpdateResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Change {
    /// The nodes or the edges.
    Topology = 2,
    /// The kind of a node's operation.
    NodeType = 3,
    /// The context of a kernel.
    Function = 4,
    /// The context, the device or the rows of a copy or a fill, or the context of another
    /// operation.
    Parameters = 5,
}

impl Change {
    /// Returns the first change that an update does not allow.
    pub(crate) fn between(old: &Program, new: &Program) -> Option<Change> {
        if old.after != new.after {
            return Some(Change::Topology);
        }
        old.nodes.iter().zip(&new.nodes).find_map(|(old, new)| Change::of_node(old, new))
    }

    fn of_node(old: &Node, new: &Node) -> Option<Change> {
        if std::mem::discriminant(&old.op) != std::mem::discriminant(&new.op) {
            return Some(Change::NodeType);
        }
        if !std::ptr::eq(old.context, new.context) {
            return Some(if matches!(new.op, Op::Launch(_)) { Change::Function } else { Change::Parameters });
        }
        let devices = |op: &Op| -> Vec<_> { op.addresses().into_iter().map(memory::device_of).collect() };
        let at_home = || devices(&old.op) == devices(&new.op);
        let fits = match (&old.op, &new.op) {
            (Op::Copy(old), Op::Copy(new)) => {
                old.is_as(new) || old.has_one_row() && new.has_one_row() && at_home()
            }
            (Op::Fill(old), Op::Fill(new)) => {
                old.is_as(new) || old.has_one_row() && new.has_one_row() && at_home()
            }
            _ => true,
        };
        (!fits).then_some(Change::Parameters)
    }
}
