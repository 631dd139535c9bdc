//! An op about to be enqueued: its accesses, and how they are checked.

use super::backlog::After;
use crate::order::Site;
use crate::shared::Operand;
use warpline_driver::timeline::{Keep, Ticket};
use warpline_driver::{Claim, Command, Error, Plan, Point};

/// Builds the command of an op from its ticket. Called at most once.
pub(crate) type Build<'a> = &'a mut dyn FnMut(Ticket) -> Command;

/// The devices, besides the stream's own, on which an op's operands may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peers {
    None,
    /// Devices of the stream's backend, as in copies between them.
    OfBackend,
    /// CPU devices, as in copies between backends.
    Cpu,
}

/// An op about to be enqueued.
pub(crate) struct Op<'a> {
    /// `Command::kind`, for traces.
    pub(crate) kind: &'static str,
    pub(crate) site: Site,
    pub(crate) operands: &'a [Operand<'a>],
    /// True if a written operand may be exactly another operand.
    pub(crate) in_place: bool,
    /// The other devices that operands may be on.
    pub(crate) peers: Peers,
    /// True if the calling thread holds the stream's turn for foreign work.
    pub(crate) turn: bool,
    /// True if the op takes no room on a stream that limits work in flight.
    pub(crate) without_permit: bool,
    /// The error by which the op is refused already.
    pub(crate) refused: Option<Error>,
    /// A value that is held until the op has run.
    pub(crate) keep: Option<Keep>,
    /// Bytes moved, for traces; 0 means the bytes of its operands.
    pub(crate) moved: u64,
    /// True if this is many ops in one: its operands may overlap, and exceed the limit of one op.
    pub(crate) of_many: bool,
    /// The steps of the graph, if the op is one.
    pub(crate) plan: Option<&'a Plan>,
    /// Further bytes that the op touches, by absolute address, for modes in which the order check
    /// does not keep ops apart.
    pub(crate) claims: &'a [Claim],
    /// A point that the driver waits for right before the op.
    pub(crate) gate: Option<Point>,
    /// The reason to hold the op back.
    pub(crate) after: Option<After>,
    /// True if the driver did a part of the op and then failed.
    pub(crate) halfway: bool,
}

impl<'a> Op<'a> {
    #[inline]
    pub(crate) fn new(kind: &'static str, site: Site, operands: &'a [Operand<'a>]) -> Self {
        Op {
            kind,
            site,
            operands,
            in_place: false,
            peers: Peers::None,
            turn: false,
            without_permit: false,
            refused: None,
            keep: None,
            moved: 0,
            of_many: false,
            plan: None,
            claims: &[],
            gate: None,
            after: None,
            halfway: false,
        }
    }
}
