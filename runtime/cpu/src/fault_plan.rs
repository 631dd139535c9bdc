//! Faults on request, so that tests can observe a failing device.

use std::sync::atomic::{AtomicU64, Ordering};

/// The pieces of a device's work that fail. Pieces are counted from 1 over the whole device, in the
/// order in which they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The number of the op that fails the device instead of running. Waits are not counted.
    pub fail_op: Option<u64>,
    /// The number of the launch whose twin panics.
    pub panic_in_twin: Option<u64>,
}

/// A plan, and the ops and twins counted so far.
#[derive(Debug)]
pub(super) struct Planned {
    plan: FaultPlan,
    ops: AtomicU64,
    twins: AtomicU64,
}

impl Planned {
    pub(super) fn new(plan: FaultPlan) -> Self {
        Planned { plan, ops: AtomicU64::new(0), twins: AtomicU64::new(0) }
    }

    /// Counts an op and returns whether it is the one to fail.
    pub(super) fn fails_this_op(&self) -> bool {
        Some(self.ops.fetch_add(1, Ordering::Relaxed) + 1) == self.plan.fail_op
    }

    /// Counts a twin and returns whether it is the one to panic.
    pub(super) fn panics_in_this_twin(&self) -> bool {
        Some(self.twins.fetch_add(1, Ordering::Relaxed) + 1) == self.plan.panic_in_twin
    }
}
