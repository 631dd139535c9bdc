//! The effect of each command on memory.

use std::time::Instant;
use warpline_driver::kernel::{Arg, Kernel};
use warpline_driver::reentry::{self, Caller};
use warpline_driver::{Command, DriverError, Fill, Plan, StagedStep, Work, copy_rows};

/// Refuses a kernel without a CPU form: this device runs nothing else.
pub(crate) fn check(kernel: &Kernel) -> Result<(), DriverError> {
    match kernel.twin {
        Some(_) => Ok(()),
        None => Err(DriverError::Refused(format!("{} has no CPU form; give it cpu", kernel.name).into())),
    }
}

/// Carries out a command on this thread. A panic of code outside this crate passes through.
///
/// # Safety
/// The requirements of [`DriverStream::submit`](warpline_driver::DriverStream::submit) hold now.
pub(crate) unsafe fn run(command: Command) {
    match command {
        // SAFETY: the requirements of `submit` cover the rows.
        Command::Copy(copy) => unsafe { copy_rows(&copy) },
        Command::StagedCopy(staged) => {
            for step in staged.steps() {
                // The memory of this device is the host's too, so both sorts of steps are alike.
                let (StagedStep::OnHost(rows) | StagedStep::OnDevice(rows)) = step;
                // SAFETY: the requirements of `submit` cover the rows and the staging memory.
                unsafe { copy_rows(&rows) };
            }
        }
        // SAFETY: the requirements of `submit` cover the rows.
        Command::Fill(fill) => unsafe { fill_rows(&fill) },
        // SAFETY: the requirements of `submit` cover the arguments.
        Command::Launch(launch) => unsafe { call_twin(launch.kernel, &launch.args) },
        Command::Graph(graph) => {
            let plan = graph.downcast_ref::<Plan>().expect("`instantiate` made it");
            for step in &plan.steps {
                // SAFETY: the requirements of `submit` cover each step, and no step waits for a
                // later one.
                unsafe { run_step(&step.work) };
            }
        }
        Command::Call(function) | Command::HostWork(function) => {
            let _calling = reentry::calling(Caller::HostFunction);
            (function.0)();
        }
        Command::Stamp(stamp) => stamp.set(Instant::now()),
        Command::Wait(_) | Command::Edge(_) | Command::Elided | Command::Foreign => {}
    }
}

/// # Safety
/// The requirements of [`run`] hold.
unsafe fn run_step(work: &Work) {
    match work {
        // SAFETY: the requirements of `run` cover the rows.
        Work::Copy(copy) => unsafe { copy_rows(copy) },
        // SAFETY: the requirements of `run` cover the rows.
        Work::Fill(fill) => unsafe { fill_rows(fill) },
        // SAFETY: the requirements of `run` cover the arguments.
        Work::Launch(launch) => unsafe { call_twin(launch.kernel, &launch.args) },
        Work::Wait { .. } => {}
    }
}

/// # Safety
/// The arguments meet the requirements of [`Twin`](warpline_driver::kernel::Twin).
unsafe fn call_twin(kernel: &Kernel, args: &[Arg]) {
    let twin = kernel.twin.expect("`check` refuses kernels without one");
    let _calling = reentry::calling(Caller::Twin);
    // SAFETY: the caller guarantees the requirements of the twin.
    unsafe { twin(args) }
}

/// # Safety
/// All rows can be written, and nothing else touches them during the call.
unsafe fn fill_rows(fill: &Fill) {
    let pattern = &fill.pattern.to_le_bytes()[..usize::from(fill.pattern_bytes)];
    for row in 0..fill.height {
        let start = fill.dst.offset((row * fill.pitch) as u64).0 as usize;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
        for (at, byte) in pattern.iter().cycle().take(fill.width_bytes).enumerate() {
            // SAFETY: `write` needs a byte of the row. The caller guarantees that.
            unsafe { start.wrapping_add(at).write(*byte) };
        }
    }
}
