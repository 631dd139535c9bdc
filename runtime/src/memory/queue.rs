//! The requests that wait for a device's memory, in the order of their calls.
//!
//! # Rules
//! 1. Only the first request may take memory. While one waits, later calls join behind it, even if
//!    a cached block would serve them.
//! 2. Any thread may serve the queue. It holds the lock `growing`, tries the first request without
//!    the queue's lock, and leaves the outcome here for its owner. So a request whose task is not
//!    polled stops no other one. What it was granted counts as allocated from then on.
//! 3. An owner looks for its outcome after each of three events: the end of the use that the first
//!    request waits for; a free, or a step of the queue; a new piece of host code. It registers
//!    for them before it looks.
//! 4. An owner that goes away leaves the queue. Its outcome, if there is one, is returned.
// Decision: docs/decisions/0065-memory-waits.md
#![forbid(unsafe_code)]

use super::pool::{Grant, Request, ReuseOrder};
use super::snapshot::MemoryWaiters;
use crate::order::Use;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use warpline_driver::Error;

/// The order that a waiting request is judged by.
pub(crate) type SharedOrder = Arc<dyn ReuseOrder + Send + Sync>;

/// The outcome of a request.
pub(crate) type Outcome = Result<Grant, Error>;

/// A request that waits.
#[derive(Clone)]
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) request: Request,
    pub(super) len_bytes: usize,
    /// The bytes that it takes from what others could get.
    bytes: usize,
    pub(super) order: SharedOrder,
    since: Instant,
}

/// The requests that wait.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    outcomes: Vec<(u64, Outcome)>,
    /// The number of requests so far.
    joined: u64,
    /// The use that the first request waits for.
    pub(super) awaited: Option<Use>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of requests that wait, and the bytes that they are to get.
    pub(super) fn figures(&self) -> (usize, usize) {
        (self.waiting.len(), self.bytes())
    }

    pub(super) fn bytes(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.bytes).fold(0, usize::saturating_add)
    }

    /// Adds a request at the end. `bytes`: those that it takes from what others could get. Returns
    /// its number.
    pub(super) fn join(
        &mut self,
        request: Request,
        (len_bytes, bytes): (usize, usize),
        order: SharedOrder,
    ) -> u64 {
        self.joined += 1;
        let (number, since) = (self.joined, Instant::now());
        self.waiting.push_back(Waiting { number, request, len_bytes, bytes, order, since });
        number
    }

    pub(super) fn first(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    /// Leaves the outcome of a request for its owner. Returns the outcome as the error if its
    /// owner went away.
    pub(super) fn settle(&mut self, number: u64, outcome: Outcome) -> Result<(), Outcome> {
        self.awaited = None;
        if self.leave(number).is_none() {
            return Err(outcome);
        }
        self.outcomes.push((number, outcome));
        Ok(())
    }

    /// Takes the outcome of a request, if it has one.
    pub(super) fn take_outcome(&mut self, number: u64) -> Option<Outcome> {
        let at = self.outcomes.iter().position(|(of, _)| *of == number)?;
        Some(self.outcomes.swap_remove(at).1)
    }

    /// Removes a request that waits.
    pub(super) fn leave(&mut self, number: u64) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| waiting.number == number)?;
        self.waiting.remove(at)
    }

    /// Returns the requests that wait, for reports.
    pub(super) fn waiters(&self) -> Option<MemoryWaiters> {
        let first = self.first()?;
        let (requests, bytes) = self.figures();
        let (first_bytes, first_site, first_since) =
            (first.len_bytes, first.request.site, first.since.elapsed());
        Some(MemoryWaiters { requests, bytes, first_bytes, first_site, first_since })
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}
