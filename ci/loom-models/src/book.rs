//! Stands in for the book of a ledger: reads alone, each of one stream.

use crate::clock::{StreamId, Ticket, Use};
use crate::site::Site;

/// The parts of a book that a ledger moves between its main book and its shards.
#[derive(Debug, Default)]
pub struct Book {
    pub(crate) waited: u8,
    pub(crate) sharded: bool,
    pub(crate) outlived: bool,
    pub(crate) uses: Uses,
    pub(crate) records: Records,
}

impl Book {
    pub(crate) fn begin(&mut self, _used: Use, _behind: Option<Use>, _len_bytes: u64, _site: Site) {}

    pub(crate) fn is_plain(&self) -> bool {
        true
    }

    pub(crate) fn last_uses(&mut self) -> &[Use] {
        &[]
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Read {
    pub(crate) used: Use,
}

#[derive(Debug, Default)]
pub(crate) struct Records(pub(crate) Vec<Read>);

impl Records {
    pub(crate) fn push(&mut self, read: Read) {
        self.0.push(read);
    }

    /// Removes the read of an op that was undone, and returns whether it was there.
    pub(crate) fn remove(&mut self, stream: StreamId, ticket: Ticket) -> bool {
        let before = self.0.len();
        self.0.retain(|read| read.used != Use { stream, ticket });
        self.0.len() < before
    }

    pub(crate) fn writes_only(&self) -> Records {
        Records::default()
    }

    pub(crate) fn take_reads(&mut self) -> Vec<Read> {
        std::mem::take(&mut self.0)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Uses;

impl Uses {
    pub(crate) fn take_newer(&mut self, _other: Uses) {}
}
