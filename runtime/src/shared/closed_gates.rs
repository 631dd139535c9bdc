//! The number of closed gates of tests on the streams of a runtime.

#[cfg(feature = "test-util")]
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of closed gates on the streams of a runtime.
#[derive(Debug, Default)]
pub(crate) struct ClosedGates(AtomicUsize);

impl ClosedGates {
    pub(super) fn are_some(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// One of the [`ClosedGates`] of a runtime, until it is dropped.
#[cfg(feature = "test-util")]
#[derive(Debug)]
pub(crate) struct ClosedGate(Arc<ClosedGates>);

#[cfg(feature = "test-util")]
impl ClosedGate {
    pub(crate) fn of(gates: &Arc<ClosedGates>) -> Self {
        gates.0.fetch_add(1, Ordering::Relaxed);
        ClosedGate(gates.clone())
    }
}

#[cfg(feature = "test-util")]
impl Drop for ClosedGate {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
