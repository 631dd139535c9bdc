//! Memory that late refusals left unwritten, for the work that is held back behind them.
//!
//! Marks (`order/marks.rs`) serve what is called after a refusal, and end when somebody looks at
//! it. What was called before cannot know of it, and was accepted: so each hand-over carries the
//! bytes along, to streams that wait as well, until something overwrites them.

use crate::error::Error;
use crate::kernel::AccessMode;
use crate::memory::Allocation;
use crate::order::{self, Access, ByteRange, Ledger, Mark, Marks};
use std::sync::{Arc, Weak};

/// An operand of held-back work. Until that is handed over it does not keep the memory alive.
pub(super) struct Touched<A> {
    pub(super) allocation: A,
    pub(super) range: ByteRange,
    pub(super) mode: AccessMode,
}

impl Access for Touched<Arc<Allocation>> {
    fn ledger(&self) -> &Ledger {
        &self.allocation.ledger
    }

    fn range(&self) -> &ByteRange {
        &self.range
    }

    fn mode(&self) -> AccessMode {
        self.mode
    }
}

/// Bytes that were not written, and the marks on them.
#[derive(Clone, Default)]
pub(super) struct Unwritten {
    pieces: Vec<Piece>,
    pub(super) marks: Marks,
}

#[derive(Clone)]
struct Piece {
    allocation: Weak<Allocation>,
    range: ByteRange,
    error: Error,
}

impl Piece {
    fn is_of(&self, touch: &Touched<Arc<Allocation>>) -> bool {
        std::ptr::eq(self.allocation.as_ptr(), Arc::as_ptr(&touch.allocation))
    }
}

impl Unwritten {
    /// Adds what an op that was refused with `error` would have written.
    pub(super) fn add(&mut self, written: &[&Touched<Arc<Allocation>>], error: &Error) {
        self.pieces.extend(written.iter().map(|touch| Piece {
            allocation: Arc::downgrade(&touch.allocation),
            range: touch.range,
            error: error.without_own(),
        }));
    }

    pub(super) fn add_mark(&mut self, mark: Arc<Mark>) {
        self.marks.add(mark);
    }

    /// Why such an op would read what was not written, if it would.
    pub(super) fn read_by(&self, touches: &[Touched<Arc<Allocation>>]) -> Option<&Error> {
        let reads = |piece: &&Piece| {
            let mut reads = touches.iter().filter(|touch| touch.mode.reads());
            reads.any(|touch| piece.is_of(touch) && piece.range.overlaps(&touch.range))
        };
        self.pieces.iter().find(reads).map(|piece| &piece.error)
    }

    /// Such an op was handed over.
    pub(super) fn overwritten_by(&mut self, touches: &[Touched<Arc<Allocation>>]) {
        if self.pieces.is_empty() {
            return;
        }
        for touch in touches.iter().filter(|touch| order::overwrites(touches, touch)) {
            for piece in std::mem::take(&mut self.pieces) {
                // Where too many pieces would be left, all of it stays, to be on the safe side.
                match piece.range.minus(&touch.range).filter(|_| piece.is_of(touch)) {
                    Some(left) => {
                        self.pieces.extend(left.into_iter().map(|range| Piece { range, ..piece.clone() }));
                    }
                    None => self.pieces.push(piece),
                }
            }
        }
        order::overwritten_of(touches, &self.marks);
    }

    /// Takes over what was not written before a place that is waited for.
    pub(super) fn merge(&mut self, other: &Unwritten) {
        self.pieces.extend_from_slice(&other.pieces);
        self.marks.merge(&other.marks);
    }
}
