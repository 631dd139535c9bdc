//! A block of rows, and the memory off which they are cut.
//!
//! A batch is a block that a slot has taken. Blocks are boxed, so the queue and a slot pass each
//! other a pointer, and a block's vectors are allocated once.

use super::{CallId, RowAt};
use std::mem::replace;

/// The memory of a block, off which rows are cut as they are needed.
pub(crate) trait BlockMemory {
    /// The memory of a row.
    type Row;

    /// Cuts the next row off.
    fn cut(&mut self) -> Self::Row;
}

/// The rows of a block. In a block that a slot has taken, the first `calls.len()` rows are its
/// batch, once the moves were made.
pub(crate) struct Block<B: BlockMemory> {
    /// The memory of the block, without the rows that were cut off.
    pub(crate) memory: B,
    /// The rows that were cut off.
    pub(crate) rows: Vec<Row<B::Row>>,
    /// The calls of the batch.
    pub(crate) calls: Vec<CallId>,
    /// The lengths of their rows, if they have different ones.
    pub(crate) lens: Vec<usize>,
    pub(crate) moves: Vec<Move<B::Row>>,
    /// No row before this one is free.
    first_free: usize,
    /// The number of rows whose memory is elsewhere.
    pub(super) out: usize,
    pub(super) queued: usize,
    /// The sum of the lengths of the rows that are queued or being written.
    pub(super) elements: usize,
}

/// A row that was cut off. In a batch, `Block::calls` says which rows are used.
pub(crate) enum Row<M> {
    Free(M),
    /// Its memory is with a writer, or with a slot that moves it.
    Out,
    Queued(M, CallId),
}

/// A copy of a row to row `to` of the batch's memory.
pub(crate) struct Move<M> {
    pub(crate) to: usize,
    pub(crate) from: Source<M>,
}

pub(crate) enum Source<M> {
    /// A row of the same memory.
    Row(usize),
    /// A row of a later block, which [`Queue::moved`](super::Queue::moved) returns there.
    Later(RowAt, M),
}

impl<B: BlockMemory> Block<B> {
    pub(super) fn of(memory: B) -> Self {
        let (rows, calls, lens, moves) = Default::default();
        Block { memory, rows, calls, lens, moves, first_free: 0, out: 0, queued: 0, elements: 0 }
    }

    /// Cuts a row off, which is free.
    fn cut(&mut self) {
        self.rows.push(Row::Free(self.memory.cut()));
    }

    /// Cuts rows off until there are `count`.
    pub(crate) fn cut_up_to(&mut self, count: usize) {
        while self.rows.len() < count {
            self.cut();
        }
    }

    /// Removes all rows, whose memory is whole again.
    pub(super) fn empty(&mut self) {
        self.rows.clear();
        self.calls.clear();
        self.lens.clear();
        (self.first_free, self.out, self.queued, self.elements) = (0, 0, 0, 0);
    }

    pub(super) fn take_free(&mut self) -> (usize, B::Row) {
        let from = self.first_free;
        let row = match self.rows[from..].iter().position(|row| matches!(row, Row::Free(_))) {
            Some(row) => from + row,
            None => {
                self.cut();
                self.rows.len() - 1
            }
        };
        let Row::Free(memory) = replace(&mut self.rows[row], Row::Out) else { unreachable!("it is free") };
        self.out += 1;
        self.first_free = row + 1;
        (row, memory)
    }

    pub(super) fn take_queued(&mut self, row: usize) -> (B::Row, CallId) {
        let Row::Queued(memory, call) = replace(&mut self.rows[row], Row::Out) else {
            unreachable!("it is queued")
        };
        self.queued -= 1;
        self.out += 1;
        (memory, call)
    }

    /// Puts the memory of a row back.
    pub(super) fn put(&mut self, row: usize, with: Row<B::Row>) {
        self.out -= 1;
        match with {
            Row::Queued(..) => self.queued += 1,
            _ => self.first_free = self.first_free.min(row),
        }
        self.rows[row] = with;
    }

    /// Frees a queued row, and returns its call.
    pub(super) fn free(&mut self, row: usize) -> CallId {
        let (memory, call) = self.take_queued(row);
        self.put(row, Row::Free(memory));
        call
    }

    pub(super) fn queued_calls(&self) -> impl Iterator<Item = (usize, CallId)> {
        self.rows.iter().enumerate().filter_map(|(row, at)| Some((row, at.call()?)))
    }
}

impl<M> Row<M> {
    pub(super) fn call(&self) -> Option<CallId> {
        match self {
            Row::Queued(_, call) => Some(*call),
            _ => None,
        }
    }

    /// Returns the memory of a row of a batch.
    pub(crate) fn memory_mut(&mut self) -> &mut M {
        match self {
            Row::Free(memory) | Row::Queued(memory, _) => memory,
            Row::Out => unreachable!("all memory is back"),
        }
    }
}
