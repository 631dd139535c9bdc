//! A block of rows, and the memory off which they are cut.

use super::CallId;
use std::mem::replace;

/// The memory of a block, off which rows are cut as they are needed.
pub(crate) trait BlockMemory {
    /// The memory of a row.
    type Row;

    /// Cuts the next row off.
    fn cut(&mut self) -> Self::Row;
}

pub(super) struct Block<B: BlockMemory> {
    /// The rest of the block's memory.
    pub(super) rest: B,
    /// The rows that were cut off.
    pub(super) rows: Vec<Row<B::Row>>,
    /// No row before this one is free.
    first_free: usize,
    /// The number of rows whose memory is elsewhere.
    pub(super) out: usize,
    pub(super) queued: usize,
    /// The sum of the lengths of the rows that are queued or being written.
    pub(super) elements: usize,
}

pub(super) enum Row<M> {
    Free(M),
    /// Its memory is with a writer, or with a slot that moves it.
    Out,
    Queued(M, CallId),
}

impl<B: BlockMemory> Block<B> {
    pub(super) fn of(rest: B) -> Self {
        Block { rest, rows: Vec::new(), first_free: 0, out: 0, queued: 0, elements: 0 }
    }

    /// Cuts a row off, which is free.
    pub(super) fn cut(&mut self) {
        self.rows.push(Row::Free(self.rest.cut()));
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

    pub(super) fn calls(&self) -> impl Iterator<Item = (usize, CallId)> {
        self.rows.iter().enumerate().filter_map(|(row, at)| Some((row, at.call()?)))
    }

    pub(super) fn into_memory(self) -> (Vec<B::Row>, B) {
        let memory = |row| match row {
            Row::Free(memory) | Row::Queued(memory, _) => memory,
            Row::Out => unreachable!("all memory is back"),
        };
        (self.rows.into_iter().map(memory).collect(), self.rest)
    }
}

impl<M> Row<M> {
    pub(super) fn call(&self) -> Option<CallId> {
        match self {
            Row::Queued(_, call) => Some(*call),
            _ => None,
        }
    }
}
