//! Counts of a device's ops and refusals.
//!
//! Nothing is counted per op: the ops of a stream are its tickets. A stream that leaves the
//! runtime adds them to those of former streams. Refusals are counted one by one, where errors are
//! made.
#![forbid(unsafe_code)]

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use warpline_driver::timeline::Ticket;
use warpline_driver::{Error, ErrorKind};

/// Statistics of one device's ops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpStats {
    /// The number of ops that its streams have accepted since the device was opened, waits for
    /// other streams included. A launch of a graph is one op. It never falls.
    pub enqueued: u64,
    /// The number of those that have not ended, as far as the host knows. On a CUDA device it may
    /// learn that an op has ended only when something awaits that op or a later one.
    pub in_flight: u64,
    /// The number of ops and allocations of device memory that were refused, by the kind of the
    /// error. Among them are the calls that a failed device refuses, but not the ops that were in
    /// flight when it failed. Refused waits, pinned memory, budgets, steps of a capture, and calls
    /// on tensors whose arguments do not fit together are not counted.
    pub refused: BTreeMap<ErrorKind, u64>,
}

/// The counts of a device. The lock is a leaf.
#[derive(Default)]
pub(crate) struct Tally {
    /// Ops of streams that have left the runtime.
    former: AtomicU64,
    /// The highest number of ops that was reported.
    reported: AtomicU64,
    refused: Mutex<BTreeMap<ErrorKind, u64>>,
}

impl Tally {
    #[cold]
    pub(crate) fn refuses(&self, error: &Error) {
        *self.refused.lock().entry(error.kind()).or_default() += 1;
    }

    /// Adds the ops of a stream that has left the runtime. Not before, or both numbers of `stats`
    /// could have them.
    pub(crate) fn left(&self, issued: Ticket) {
        self.former.fetch_add(issued, Ordering::Release);
    }

    /// Returns the statistics. `present` returns the numbers of the ops that the present streams
    /// have accepted, and of those in flight.
    pub(crate) fn stats(&self, present: impl FnOnce() -> (u64, u64)) -> OpStats {
        // Before the present streams, so that none counts twice: `left` comes after a stream's
        // leave.
        let former = self.former.load(Ordering::Acquire);
        let (accepted, in_flight) = present();
        // A stream that left meanwhile is counted the next time. Until then the highest number
        // stands.
        let enqueued = former + accepted;
        let before = self.reported.fetch_max(enqueued, Ordering::Relaxed);
        OpStats { enqueued: enqueued.max(before), in_flight, refused: self.refused.lock().clone() }
    }
}
