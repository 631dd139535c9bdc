//! A request to put an op on a stream: its accesses, and how they are checked.

use super::backlog::{After, Staging};
use crate::order::Site;
use crate::shared::Operand;
use std::sync::Arc;
use warpline_driver::timeline::{Keep, Ticket};
use warpline_driver::{Claim, Command, Plan, Point};

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

/// A request to put an op on a stream.
pub(crate) struct Request<'a> {
    /// `Command::kind`, for traces.
    pub(crate) kind: &'static str,
    pub(crate) site: Site,
    pub(crate) operands: &'a [Operand<'a>],
    pub(crate) effect: Effect<'a>,
    pub(crate) reach: Reach,
    pub(crate) terms: Terms,
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
            payload: Payload::default(),
        }
    }

    pub(crate) fn keeping(mut self, keep: Keep) -> Self {
        self.payload.keep = Some(keep);
        self
    }

    /// Holds the op back until its host memory is there.
    pub(crate) fn waiting_for(mut self, memory: Arc<Staging>) -> Self {
        self.payload.after = Some(After::Memory(memory));
        self
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
