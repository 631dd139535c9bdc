//! Carries out each command of a stream on the calling thread.
//!
//! Commands are carried out in place in the queue: they are large, and moving one would often cost
//! more than carrying it out.

use super::bytes::fill_rows;
use super::kernels::Launching;
use super::replay::{Replay, replay};
use std::time::Instant;
use warpline_driver::reentry::{self, Caller};
use warpline_driver::{Command, copy_rows};

/// Carries out a command on this thread, once. `launching` runs its kernels, and `replaying` says
/// how the steps of a graph run. A panic in a twin or a host function passes through.
///
/// # Errors
/// The fault of a kernel's PTX.
///
/// # Safety
/// The requirements of [`DriverStream::submit`](warpline_driver::DriverStream::submit) hold now:
/// every address is valid for the access that the command makes, and nothing conflicts with it.
#[inline]
pub(super) unsafe fn execute(
    command: &mut Command,
    launching: &Launching<'_>,
    replaying: &Replay,
) -> Result<(), String> {
    match command {
        // SAFETY: a kernel needs arguments that fit its parameters and slices that are valid and
        // exclusively its own. Our caller promises both.
        Command::Launch(launch) => return unsafe { launching.launch(launch) },
        // SAFETY: `copy_rows` needs what our caller promises.
        Command::Copy(copy) => unsafe { copy_rows(copy) },
        Command::StagedCopy(_) => unreachable!("another device copies from and to a CPU device"),
        // SAFETY: `fill_rows` needs what our caller promises.
        Command::Fill(fill) => unsafe { fill_rows(fill) },
        Command::Call(function) | Command::HostWork(function) => {
            let function = std::mem::replace(&mut function.0, Box::new(|| {}));
            let _calling = reentry::calling(Caller::HostFunction);
            function();
        }
        // SAFETY: `replay` needs for each step what our caller promises for all of them.
        Command::Graph(graph) => return unsafe { replay(graph, launching, replaying) },
        Command::Foreign => {}
        Command::Stamp(cell) => {
            cell.set(Instant::now());
        }
        // The strand has already passed the wait: there is nothing to do.
        Command::Wait(_) | Command::Edge(_) | Command::Elided => {}
    }
    Ok(())
}
