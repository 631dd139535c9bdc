//! What can stand in a stream's queue, when it can start, and what it does.

use crate::context::Context;
use crate::errors::Code;
use crate::event::Event;
use crate::graph::Run;
use crate::memory::{self, Allocation};
use crate::op::Op;
use crate::stream::Stream;
use std::time::Instant;

/// A fault of the device: it poisons the context.
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) why: String,
}

/// One piece of work.
pub(crate) enum Work {
    /// Hold the stream until another has done `ticket`.
    Wait { on: &'static Stream, ticket: u64 },
    /// Note the time for an event, unless it was recorded again since.
    Stamp { event: &'static Event, record: u64 },
    /// Do an operation.
    Op(Op),
    /// Run a graph: its nodes one by one while it is at the front, and then itself, which ends it.
    Graph(Box<Run>),
    /// Give device memory back.
    Free(&'static Allocation),
}

/// Host memory that work touches.
#[derive(Clone, Copy)]
pub(crate) struct HostRange {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl HostRange {
    /// Whether both share a byte.
    pub(crate) fn meets(self, other: HostRange) -> bool {
        self.start < other.start + other.len && other.start < self.start + self.len
    }
}

/// Whether work can start.
pub(crate) enum Ready {
    /// It can.
    Now,
    /// When another stream has done a ticket.
    After(&'static Stream, u64),
    /// Not before then; look again.
    At(Instant),
    /// It has started, and takes until then.
    Underway(Instant),
    /// On the thread for host functions.
    OnHostThread,
}

impl Work {
    /// Whether it can start. `since` is when that was first asked.
    pub(crate) fn ready(&mut self, since: &mut Option<Instant>) -> Ready {
        match self {
            Work::Wait { on, ticket } if !on.reached(*ticket) => Ready::After(on, *ticket),
            Work::Op(op) => op.ready(since),
            Work::Graph(run) => run.ready(),
            _ => Ready::Now,
        }
    }

    /// Whether it, or what comes next in it, runs on the thread for host functions.
    pub(crate) fn is_call(&self) -> bool {
        match self {
            Work::Op(op) => matches!(op, Op::Call(_)),
            Work::Graph(run) => run.is_call(),
            _ => false,
        }
    }

    /// Does it.
    pub(crate) fn execute(self, context: &'static Context) -> Result<(), Fault> {
        match self {
            Work::Wait { .. } | Work::Graph(_) => {}
            Work::Stamp { event, record } => event.stamp(record),
            Work::Op(op) => return op.execute(context),
            Work::Free(allocation) => memory::release(allocation),
        }
        Ok(())
    }

    /// The page-locked memory it touches.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        match self {
            Work::Op(op) => op.host_ranges(),
            Work::Graph(run) => run.host_ranges(),
            _ => Vec::new(),
        }
    }
}
