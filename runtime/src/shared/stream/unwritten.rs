//! Memory that late refusals left unwritten, for the work that is held back behind them.
//!
//! Marks (`marks.rs` of the order check) apply to calls after a refusal, and end when the refusal
//! is looked at. Earlier calls could not know of the refusal and were accepted. So each hand-over
//! passes the bytes on, also to waiting streams, until something overwrites them.

use crate::order::{self, ByteRange, Mark, Marks};
use crate::shared::{OwnedOperand, Tracked};
use std::sync::{Arc, Weak};
use warpline_driver::Error;
use warpline_driver::internal::ErrorParts;

/// Bytes that were not written, and the marks on them.
#[derive(Clone, Default)]
pub(super) struct Unwritten {
    pieces: Vec<Piece>,
    pub(crate) marks: Marks,
}

/// An operand of an op that was held back.
///
/// Its memory may have no handle any more: a temporary of an op that consists of several. It still
/// has its identity, since a `Weak` keeps the address from being used again.
pub(super) type BacklogOperand = OwnedOperand<Weak<dyn Tracked>>;

/// An operand whose memory still exists.
pub(super) type AliveOperand = OwnedOperand<Arc<dyn Tracked>>;

/// Returns the operands whose memory still exists.
pub(super) fn alive(operands: &[BacklogOperand]) -> Vec<AliveOperand> {
    let alive = |OwnedOperand { allocation, range, access }: &BacklogOperand| {
        Some(OwnedOperand { allocation: allocation.upgrade()?, range: *range, access: *access })
    };
    operands.iter().filter_map(alive).collect()
}

#[derive(Clone)]
pub(super) struct Piece {
    allocation: Weak<dyn Tracked>,
    range: ByteRange,
    pub(super) error: Error,
    /// True if the bytes may be read once the program has seen the error.
    pub(super) ends_when_seen: bool,
}

impl Piece {
    fn is_of(&self, operand: &BacklogOperand) -> bool {
        self.allocation.ptr_eq(&operand.allocation)
    }
}

impl Unwritten {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds the bytes that an op refused with `error` would have written.
    pub(crate) fn add(&mut self, written: &[BacklogOperand], error: &Error, ends_when_seen: bool) {
        self.pieces.extend(written.iter().map(|operand| Piece {
            allocation: operand.allocation.clone(),
            range: operand.range,
            error: error.without_own(),
            ends_when_seen,
        }));
    }

    pub(super) fn add_mark(&mut self, mark: Arc<Mark>) {
        self.marks.add(mark);
    }

    /// Returns unwritten bytes that an op with these operands would read, if it would read any.
    pub(super) fn read_by(&self, operands: &[BacklogOperand]) -> Option<&Piece> {
        let reads = |piece: &&Piece| {
            let mut reads = operands.iter().filter(|operand| operand.access.reads());
            reads.any(|operand| piece.is_of(operand) && piece.range.overlaps(&operand.range))
        };
        self.pieces.iter().find(reads)
    }

    /// Removes the bytes that an op with these operands overwrites, once it was handed over.
    /// `alive` are those whose memory still has a handle.
    pub(super) fn overwritten_by(&mut self, operands: &[BacklogOperand], alive: &[AliveOperand]) {
        if self.pieces.is_empty() {
            return;
        }
        let reads = |written: &BacklogOperand| {
            let mut reads = operands.iter().filter(|operand| operand.access.reads());
            reads.any(|operand| {
                operand.allocation.ptr_eq(&written.allocation) && operand.range.overlaps(&written.range)
            })
        };
        for operand in operands.iter().filter(|operand| operand.access.writes() && !reads(operand)) {
            for piece in std::mem::take(&mut self.pieces) {
                // If too many pieces would be left, the whole piece stays, to be on the safe side.
                match piece.range.minus(&operand.range).filter(|_| piece.is_of(operand)) {
                    Some(left) => {
                        self.pieces.extend(left.into_iter().map(|range| Piece { range, ..piece.clone() }));
                    }
                    None => self.pieces.push(piece),
                }
            }
        }
        order::overwritten_of(alive, &self.marks);
    }

    /// Takes over what was not written before an awaited place.
    pub(crate) fn merge(&mut self, other: &Unwritten) {
        self.pieces.extend_from_slice(&other.pieces);
        self.marks.merge(&other.marks);
    }
}
