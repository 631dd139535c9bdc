//! A graph on the CPU device: its plan, whose steps run one after the other as one op of a stream.
//!
//! With threads, steps run in the order in which they were captured. A seeded schedule draws an
//! order that the plan's waits allow, anew for each launch, so that a forgotten wait shows.

use super::bytes::fill_rows;
use super::choose::Chooser;
use super::kernels::Launching;
use std::cell::Cell;
use warpline_driver::{DriverGraph, Plan, Site, Step, Work, copy_rows};

/// The options for running a graph's steps, and the step that is running.
#[derive(Default)]
pub(super) struct Replay {
    /// The seed from which the order of branches is drawn. With `None` they run as captured.
    pub(super) seed: Option<u64>,
    /// The step that is running.
    pub(super) at: Cell<Option<Site>>,
}

/// Runs all steps of a graph, up to the first one that fails.
///
/// # Errors
/// The fault of a kernel's PTX.
///
/// # Safety
/// The requirements of [`execute`](super::execute::execute) hold for each step.
pub(super) unsafe fn replay(
    graph: &DriverGraph,
    launching: &Launching<'_>,
    how: &Replay,
) -> Result<(), String> {
    let plan = graph.downcast_ref::<Plan>().expect("a graph of this driver");
    match how.seed {
        None => {
            for step in &plan.steps {
                // SAFETY: the caller promises it for each step, and steps were captured in an order
                // that respects their waits.
                unsafe { run(step, launching, how) }?;
            }
        }
        Some(seed) => {
            let mut chooser = Chooser::new(seed);
            let numbers = |free: &[usize]| free.iter().map(|&stream| stream as u64).collect::<Vec<_>>();
            for at in plan.order(|free| chooser.choose(&numbers(free))) {
                // SAFETY: as above; the order respects the waits.
                unsafe { run(&plan.steps[at], launching, how) }?;
            }
        }
    }
    how.at.set(None);
    Ok(())
}

/// # Safety
/// The requirements of [`execute`](super::execute::execute) hold.
unsafe fn run(step: &Step, launching: &Launching<'_>, how: &Replay) -> Result<(), String> {
    how.at.set(Some(step.site));
    match &step.work {
        // SAFETY: the caller keeps the kernel's rule.
        Work::Launch(launch) => return unsafe { launching.launch(launch) },
        // SAFETY: the caller vouches for the rows.
        Work::Copy(copy) => unsafe { copy_rows(copy) },
        // SAFETY: as above.
        Work::Fill(fill) => unsafe { fill_rows(fill) },
        Work::Wait { .. } => {}
    }
    Ok(())
}
