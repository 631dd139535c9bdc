//! Memory that late refusals left unwritten, for the work that is held back behind them.
//!
//! Marks (`marks.rs` of the order check) serve what is called after a refusal, and end when somebody looks at
//! it. What was called before cannot know of it, and was accepted: so each hand-over carries the
//! bytes along, to streams that wait as well, until something overwrites them.

use crate::order::{self, ByteRange, Mark, Marks};
use crate::shared::{Allocation, OwnedOperand};
use std::sync::{Arc, Weak};
use warpline_driver::Error;
use warpline_driver::internal::ErrorParts;

/// Bytes that were not written, and the marks on them.
#[derive(Clone, Default)]
pub(super) struct Unwritten {
    pieces: Vec<Piece>,
    pub(crate) marks: Marks,
}

#[derive(Clone)]
struct Piece {
    allocation: Weak<Allocation>,
    range: ByteRange,
    error: Error,
}

impl Piece {
    fn is_of(&self, operand: &OwnedOperand<Arc<Allocation>>) -> bool {
        std::ptr::eq(self.allocation.as_ptr(), Arc::as_ptr(&operand.allocation))
    }
}

impl Unwritten {
    /// Adds what an op that was refused with `error` would have written.
    pub(crate) fn add(&mut self, written: &[&OwnedOperand<Arc<Allocation>>], error: &Error) {
        self.pieces.extend(written.iter().map(|operand| Piece {
            allocation: Arc::downgrade(&operand.allocation),
            range: operand.range,
            error: error.without_own(),
        }));
    }

    pub(super) fn add_mark(&mut self, mark: Arc<Mark>) {
        self.marks.add(mark);
    }

    /// Why such an op would read what was not written, if it would.
    pub(super) fn read_by(&self, operands: &[OwnedOperand<Arc<Allocation>>]) -> Option<&Error> {
        let reads = |piece: &&Piece| {
            let mut reads = operands.iter().filter(|operand| operand.access.reads());
            reads.any(|operand| piece.is_of(operand) && piece.range.overlaps(&operand.range))
        };
        self.pieces.iter().find(reads).map(|piece| &piece.error)
    }

    /// Such an op was handed over.
    pub(super) fn overwritten_by(&mut self, operands: &[OwnedOperand<Arc<Allocation>>]) {
        if self.pieces.is_empty() {
            return;
        }
        for operand in operands.iter().filter(|operand| order::overwrites(operands, operand)) {
            for piece in std::mem::take(&mut self.pieces) {
                // Where too many pieces would be left, all of it stays, to be on the safe side.
                match piece.range.minus(&operand.range).filter(|_| piece.is_of(operand)) {
                    Some(left) => {
                        self.pieces.extend(left.into_iter().map(|range| Piece { range, ..piece.clone() }));
                    }
                    None => self.pieces.push(piece),
                }
            }
        }
        order::overwritten_of(operands, &self.marks);
    }

    /// Takes over what was not written before a place that is waited for.
    pub(crate) fn merge(&mut self, other: &Unwritten) {
        self.pieces.extend_from_slice(&other.pieces);
        self.marks.merge(&other.marks);
    }
}
