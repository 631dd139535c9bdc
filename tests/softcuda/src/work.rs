//! The work in a stream's queue: when it can start and what it does.

use crate::context::Context;
use crate::errors::Code;
use crate::event::Event;
use crate::graph::Run;
use crate::memory::{self, Allocation};
use crate::op::Op;
use crate::stream::Stream;
use std::time::Instant;

/// A fault of the device, which poisons the context.
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) why: String,
}

/// One piece of work.
pub(crate) enum Work {
    /// Holds the stream until stream `on` reaches `ticket`.
    Wait { on: &'static Stream, ticket: u64 },
    /// Stores the time of an event, unless the event was recorded again since.
    Stamp { event: &'static Event, record: u64 },
    /// Runs an operation.
    Op(Op),
    /// Runs a graph: its nodes one by one while it is at the front, then the end of the launch.
    Graph(Box<Run>),
    /// Frees device memory.
    Free(&'static Allocation),
}

/// A range of host memory that work touches.
#[derive(Clone, Copy)]
pub(crate) struct HostRange {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl HostRange {
    /// Returns true if both ranges share a byte.
    pub(crate) fn meets(self, other: HostRange) -> bool {
        self.start < other.start + other.len && other.start < self.start + self.len
    }
}

/// The answer to when a piece of work can start.
pub(crate) enum Ready {
    /// It can start immediately.
    Now,
    /// It can start once another stream has reached a ticket.
    After(&'static Stream, u64),
    /// It cannot start before this time; its holder asks again then.
    At(Instant),
    /// It has started and runs until this time.
    Underway(Instant),
    /// It can start on the host-function thread.
    OnHostThread,
}

impl Work {
    /// Returns when the work can start. `since` is the time of the first call, which work that has
    /// to wait stores there.
    pub(crate) fn ready(&mut self, since: &mut Option<Instant>) -> Ready {
        match self {
            Work::Wait { on, ticket } if !on.reached(*ticket) => Ready::After(on, *ticket),
            Work::Op(op) => op.ready(since),
            Work::Graph(run) => run.ready(),
            _ => Ready::Now,
        }
    }

    /// Returns true if the work, or its next node, runs on the host-function thread.
    pub(crate) fn is_call(&self) -> bool {
        match self {
            Work::Op(op) => matches!(op, Op::Call(_)),
            Work::Graph(run) => run.is_call(),
            _ => false,
        }
    }

    /// Runs the work.
    pub(crate) fn execute(self, context: &'static Context) -> Result<(), Fault> {
        match self {
            Work::Wait { .. } | Work::Graph(_) => {}
            Work::Stamp { event, record } => event.stamp(record),
            Work::Op(op) => return op.execute(context),
            Work::Free(allocation) => memory::release(allocation),
        }
        Ok(())
    }

    /// Returns the page-locked and mapped memory that the work touches.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        match self {
            Work::Op(op) => op.host_ranges(),
            Work::Graph(run) => run.host_ranges(),
            _ => Vec::new(),
        }
    }
}
