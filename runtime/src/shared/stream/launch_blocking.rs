//! Waiting for each op of a CPU device where it is enqueued, as `CUDA_LAUNCH_BLOCKING=1` requests.
//!
//! It is for debugging: the effect of an op is there when its call returns, and a fault is the
//! error of the call that caused it. A CUDA device does the same (`runtime/cuda/src/stream/`).
//!
//! # Rules
//! 1. Kernels, copies, fills and launches of graphs are waited for, on the calling thread, after
//!    the stream's lock was released. Host functions and foreign work are not: they may wait for
//!    the thread that enqueued them. Nor are waits and events.
//! 2. Waiting observes nothing, so the order check gives the same verdicts as without it.
//! 3. If the device fails meanwhile, the call is refused with the device's error.
//! 4. With a seeded schedule the calling thread runs ops, in the order that the seed draws, until
//!    its own op has run or nothing can run.
//!
//! An op is **not** waited for where that could be for ever:
//! * in a waker, and on the threads of the runtime, which must not block (`reentry.rs`); a host
//!   function and a kernel's CPU form enqueue nothing at all;
//! * while a test's gate is closed on any stream of the runtime: the calling thread may be the one
//!   that opens it;
//! * behind work that waits on the host for another backend (`backlog.rs`);
//! * in a capture, which runs nothing.
//!
//! # What remains
//! An op waits for the host functions before it. One that waits for the calling thread is then
//! waited for in vain, on every device.

use super::core::StreamCore;
use super::host_waits::block_until;
use super::request::Request;
use warpline_driver::timeline::Ticket;
use warpline_driver::{Result, reentry};

/// Waits until an op of this device has run, unless the rules say otherwise. Called while no
/// lock is held.
///
/// # Errors
/// The error of the device, if it failed before the op had run.
#[cold]
pub(super) fn wait_for_launch(core: &StreamCore, request: &Request<'_>, ticket: Ticket) -> Result<()> {
    let is_waited_for = !request.holds_turn() && matches!(request.kind, "kernel" | "copy" | "fill" | "graph");
    let behind_a_gate = || core.device.runtime.closed_gates.are_some();
    if !is_waited_for || !reentry::may_block() || behind_a_gate() || core.state.lock().has_backlog() {
        return Ok(());
    }
    let has_run = || core.progress.timeline.reached(ticket);
    if core.device.runs_in_turns {
        while !has_run() && core.fault().is_none() && core.device.runtime.turn() {}
    } else {
        block_until(core, &core.progress.timeline, ticket, || has_run() || core.fault().is_some());
    }
    // The op may have run just before the device failed: read the fault first.
    let fault = core.fault().cloned();
    match fault {
        Some(fault) if !has_run() => Err(fault),
        _ => Ok(()),
    }
}
