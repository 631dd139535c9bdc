//! The axes on which records are ordered, and the positions of records on them.

use crate::clock::StreamId;
use crate::range::ByteRange;
use crate::records::Record;

/// The axis on which the ranges of a tree lie.
#[derive(Clone, Copy, Debug)]
pub(in crate::records) enum Axis {
    /// The bytes of the allocation. A range spans all bytes from its first to its last.
    Bytes,
    /// The bytes of a row of `stride` bytes, for ranges whose stride is a multiple of it: their
    /// runs all start in one column.
    Columns { stride: u64 },
}

/// The part of an axis that a range spans.
#[derive(Clone, Copy, Debug)]
pub(in crate::records) struct Span {
    pub(in crate::records) start: u64,
    pub(in crate::records) end: u64,
}

impl Axis {
    /// Returns the span of `range`. Ranges that share bytes have spans that overlap, and a range
    /// that covers another has a span that contains the other's start.
    pub(in crate::records) fn span(self, range: &ByteRange) -> Span {
        match self {
            Axis::Bytes => Span { start: range.offset(), end: range.end() },
            Axis::Columns { stride } => {
                let (start, len) = (range.offset() % stride, range.run_len());
                // A range that does not fit the rows may touch every column.
                match (range.is_contiguous() || range.stride().is_multiple_of(stride))
                    && len <= stride - start
                {
                    true => Span { start, end: start + len },
                    false => Span { start: 0, end: u64::MAX },
                }
            }
        }
    }

    /// Returns whether `range` belongs into a tree on this axis.
    pub(in crate::records) fn fits(self, range: &ByteRange) -> bool {
        match self {
            Axis::Bytes => true,
            Axis::Columns { stride } => {
                !range.is_contiguous()
                    && range.stride().is_multiple_of(stride)
                    && range.run_len() <= stride - range.offset() % stride
            }
        }
    }

    /// Returns the maximum length of the runs of a range that [fits](Self::fits).
    pub(in crate::records) fn most_in_run(self) -> u64 {
        match self {
            Axis::Bytes => u64::MAX,
            Axis::Columns { stride } => stride,
        }
    }

    pub(in crate::records) fn place(self, record: &Record) -> Position {
        let Span { start, end } = self.span(&record.range);
        Position { start, end, stream: record.used.stream, range: record.range }
    }
}

/// The position of a record in a tree. No two records of a tree have the same one, so exactly one
/// leaf can have the record at a place, and no two leaves begin at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::records) struct Position {
    /// The start of the range's span.
    pub(in crate::records) start: u64,
    /// The end of the range's span.
    pub(in crate::records) end: u64,
    pub(in crate::records) stream: StreamId,
    pub(in crate::records) range: ByteRange,
}

/// A place before all others.
pub(in crate::records) const FIRST: Position =
    Position { start: 0, end: 0, stream: StreamId(0), range: ByteRange::contiguous(0, 0) };
