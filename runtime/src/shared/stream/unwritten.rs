//! Memory that late refusals left unwritten, for the work that is held back behind them.
//!
//! Marks (`marks.rs` of the order check) apply to calls after a refusal, and end when the refusal
//! is looked at. Earlier calls could not know of the refusal and were accepted. So each hand-over
//! passes the bytes on, also to waiting streams, until something overwrites them.

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
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds the bytes that an op refused with `error` would have written.
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

    /// Returns the error of unwritten bytes that an op with these operands would read, if it would
    /// read any.
    pub(super) fn read_by(&self, operands: &[OwnedOperand<Arc<Allocation>>]) -> Option<&Error> {
        let reads = |piece: &&Piece| {
            let mut reads = operands.iter().filter(|operand| operand.access.reads());
            reads.any(|operand| piece.is_of(operand) && piece.range.overlaps(&operand.range))
        };
        self.pieces.iter().find(reads).map(|piece| &piece.error)
    }

    /// Removes the bytes that an op with these operands overwrites, once it was handed over.
    pub(super) fn overwritten_by(&mut self, operands: &[OwnedOperand<Arc<Allocation>>]) {
        if self.pieces.is_empty() {
            return;
        }
        for operand in operands.iter().filter(|operand| order::overwrites(operands, operand)) {
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
        order::overwritten_of(operands, &self.marks);
    }

    /// Takes over what was not written before an awaited place.
    pub(crate) fn merge(&mut self, other: &Unwritten) {
        self.pieces.extend_from_slice(&other.pieces);
        self.marks.merge(&other.marks);
    }
}
