//! A request to put an op on a stream: its accesses, and how they are checked.

use super::backlog::{After, Staging};
use super::core::StreamCore;
use crate::memory::{Asker, HostGrant, InFlight, PinnedPool, Want};
use crate::order::Site;
use crate::shared::{Operand, unserved};
use std::mem::replace;
use std::sync::Arc;
use warpline_driver::timeline::{Keep, Ticket};
use warpline_driver::{Claim, Command, Error, ErrorKind, Plan, Point, Result};

/// Builds the command of an op from its ticket. Called at most once.
pub(crate) type Build<'a> = &'a mut dyn FnMut(Ticket) -> Command;

/// The effect of an op on its operands, which says how they may overlap.
#[derive(Clone, Copy)]
pub(crate) enum Effect<'a> {
    /// No written operand overlaps another one.
    Apart,
    /// A written operand may be exactly another operand.
    InPlace,
    /// The op is a graph, which is many ops in one: its operands may overlap, and exceed the limit
    /// of one op. `claims` are further bytes that it touches, by absolute address, for modes in
    /// which the order check does not keep ops apart.
    Graph { plan: &'a Plan, claims: &'a [Claim] },
}

impl<'a> Effect<'a> {
    #[inline]
    pub(crate) fn claims(self) -> &'a [Claim] {
        match self {
            Effect::Graph { claims, .. } => claims,
            Effect::Apart | Effect::InPlace => &[],
        }
    }
}

/// The devices on which an op's operands may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The stream's own.
    Own,
    /// Also others of the stream's backend, as in copies between them.
    Backend,
    /// Also CPU devices, as in copies between backends.
    Cpu,
}

/// The terms on which a stream admits an op.
pub(crate) enum Terms {
    /// It waits for foreign work to end, and takes room on a stream that limits work in flight.
    Usual,
    /// It takes no room.
    WithoutRoom,
    /// The calling thread holds the stream's turn for foreign work. The driver waits for the point,
    /// if there is one, right before the op.
    ForeignTurn(Option<Point>),
}

impl Terms {
    /// Takes the point that the driver waits for right before the op.
    pub(super) fn take_gate(&mut self) -> Option<Point> {
        if let Terms::ForeignTurn(gate) = self { gate.take() } else { None }
    }
}

/// The page-locked memory of an op. The op enters the pool's order when it takes its ticket
/// (`memory/pinned/waits.rs`, rule 4).
pub(crate) enum HostMemory<'a> {
    /// It needs none, or has a buffer of the program.
    None,
    /// It has some of this pool, or room for some.
    InHand(&'a PinnedPool),
    /// It had some, and requests waited for memory of that pool. It was not enqueued, and nothing
    /// was marked.
    Overtaken,
    /// It is to join the queue.
    Wanted(Box<(Wanted, HostGrant)>),
    /// It has joined the queue, with this number.
    Waiting(u64),
}

/// Page-locked memory that a copy waits for.
pub(crate) struct Wanted {
    pub(crate) pool: Arc<PinnedPool>,
    pub(crate) len_bytes: usize,
    pub(crate) copy: Arc<InFlight>,
}

impl HostMemory<'_> {
    /// Enters the pool's order for an op of this ticket. The caller has the stream's lock.
    #[cold]
    pub(super) fn enter(&mut self, core: &StreamCore, site: Site, ticket: Ticket) -> Result<()> {
        *self = match replace(self, HostMemory::None) {
            // A copy on a borrowed stream is never held back, nor is anything before it.
            HostMemory::InHand(pool) if pool.is_awaited() && !core.admission.is_borrowed() => {
                HostMemory::Overtaken
            }
            HostMemory::Wanted(wanted) => {
                let (Wanted { pool, len_bytes, copy }, grant) = *wanted;
                copy.enqueued(ticket);
                let returns = copy.returns().cloned();
                let want = Want { lens_bytes: &[len_bytes], site, asker: Asker::Copy { returns, grant } };
                let runtime = &core.device.runtime;
                let number = pool.join(want, &|copy| runtime.host_code_before_copy(copy));
                HostMemory::Waiting(number.map_err(|error| unserved(&site.on(&core.label), error))?)
            }
            entered => entered,
        };
        match self {
            HostMemory::Overtaken => Err(Error::new(ErrorKind::Full, "its memory is wanted before")),
            _ => Ok(()),
        }
    }
}

/// A request to put an op on a stream.
pub(crate) struct Request<'a> {
    /// `Command::kind`, for traces.
    pub(crate) kind: &'static str,
    pub(crate) site: Site,
    pub(crate) operands: &'a [Operand<'a>],
    pub(crate) effect: Effect<'a>,
    pub(crate) reach: Reach,
    pub(crate) terms: Terms,
    pub(crate) host: HostMemory<'a>,
    pub(crate) payload: Payload,
}

/// The load that an op brings along for its way to the driver.
#[derive(Default)]
pub(crate) struct Payload {
    /// A value that is held until the op has run.
    pub(crate) keep: Option<Keep>,
    /// Bytes moved, for traces; 0 means the bytes of its operands.
    pub(crate) bytes: u64,
    /// The reason to hold the op back.
    pub(super) after: Option<After>,
}

impl<'a> Request<'a> {
    #[inline]
    pub(crate) fn new(kind: &'static str, site: Site, operands: &'a [Operand<'a>]) -> Self {
        Self::with_effect(kind, site, operands, Effect::Apart)
    }

    #[inline]
    pub(crate) fn with_effect(
        kind: &'static str,
        site: Site,
        operands: &'a [Operand<'a>],
        effect: Effect<'a>,
    ) -> Self {
        Request {
            kind,
            site,
            operands,
            effect,
            reach: Reach::Own,
            terms: Terms::Usual,
            host: HostMemory::None,
            payload: Payload::default(),
        }
    }

    pub(crate) fn keeping(mut self, keep: Keep) -> Self {
        self.payload.keep = Some(keep);
        self
    }

    /// Holds the op back until its host memory is there.
    pub(crate) fn wait_for(&mut self, memory: Arc<Staging>) {
        self.payload.after = Some(After::Memory(memory));
    }

    pub(crate) fn with_reach(self, reach: Reach) -> Self {
        Request { reach, ..self }
    }

    pub(crate) fn on_terms(self, terms: Terms) -> Self {
        Request { terms, ..self }
    }

    /// Returns whether the calling thread holds the stream's turn for foreign work.
    #[inline]
    pub(super) fn holds_turn(&self) -> bool {
        matches!(self.terms, Terms::ForeignTurn(_))
    }

    #[inline]
    pub(super) fn is_graph(&self) -> bool {
        matches!(self.effect, Effect::Graph { .. })
    }

    /// Returns the bytes that the op moves or touches, for traces.
    pub(super) fn bytes(&self) -> u64 {
        let touched = || self.operands.iter().map(|operand| operand.range.len_bytes()).sum();
        if self.payload.bytes > 0 { self.payload.bytes } else { touched() }
    }
}
