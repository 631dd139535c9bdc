//! Carries out each command of a stream, on the thread that calls it.
//!
//! Commands are carried out where they lie in the queue: they are large, and moving them would cost more than many do.

use super::bytes::{call_twin, copy_rows, fill_rows};
use super::replay::{Replay, replay};
use std::time::Instant;
use warpline_driver::Command;
use warpline_driver::reentry::{self, Caller};

/// Carries a command out on this thread, once; `replaying` says how, if it is a graph. A panic in a twin or a host function passes
/// through.
///
/// # Safety
/// What [`DriverStream::submit`](warpline_driver::DriverStream::submit) asks for holds now: every address is valid for the
/// access the command makes, and nothing conflicts with it.
#[inline]
pub(super) unsafe fn execute(command: &mut Command, replaying: &Replay<'_>) {
    match command {
        Command::Launch(launch) => {
            // SAFETY: the twin needs arguments that fit its parameters and slices that are valid and its own; our caller
            // promises both.
            unsafe { call_twin(launch.kernel.twin, &launch.args) }
        }
        // SAFETY: `copy_rows` needs what our caller promises.
        Command::Copy(copy) => unsafe { copy_rows(copy) },
        // SAFETY: `fill_rows` needs what our caller promises.
        Command::Fill(fill) => unsafe { fill_rows(fill) },
        Command::Call(function) => {
            let function = std::mem::replace(&mut function.0, Box::new(|| {}));
            let _calling = reentry::calling(Caller::HostFunction);
            function();
        }
        // SAFETY: `replay` needs of each step what our caller promises of all of them.
        Command::Graph(graph) => unsafe { replay(graph, replaying) },
        Command::Foreign => {}
        Command::Stamp(cell) => {
            cell.set(Instant::now());
        }
        // The strand got past it: there is nothing to do.
        Command::Wait(_) | Command::Edge(_) | Command::Elided => {}
    }
}
