//! The effects of instructions that checks watch, from their opcodes.

use super::form::Opcode;
use super::variables::bytes_of;
use crate::exec::effect::{Moved, Scope};

/// Returns what a load, a store or an atomic operation moves in each lane, and its order.
pub(super) fn moved(op: &Opcode<'_>, elements: usize) -> Moved {
    let is_atomic = matches!(op.name, "atom" | "red");
    // PTX ISA 9.7.9.8, ld, and 9.7.9.11, st: "weak" without one of these.
    let is_strong =
        is_atomic || ["volatile", "relaxed", "acquire", "release", "mmio"].iter().any(|part| op.has(part));
    let releases = (op.has("release") || op.has("acq_rel")).then(|| scope(op));
    let bytes = bytes_of(op.last()).unwrap_or(1) as u8;
    Moved { bytes, elements: elements as u8, is_strong, scope: scope(op), releases }
}

/// Returns the scope of a fence, or of an access that is strong. PTX ISA 9.7.13.4, membar and
/// fence: `membar.gl` is that of the device.
pub(super) fn scope(op: &Opcode<'_>) -> Scope {
    match () {
        () if op.has("cta") => Scope::Block,
        () if op.has("cluster") => Scope::Cluster,
        () => Scope::Device,
    }
}
