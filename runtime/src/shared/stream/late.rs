//! Refusals of ops that the driver got after the call (`backlog.rs`), and the `Pending`s that fail
//! with them.
//!
//! # Rules
//! 1. The refusal of a ticket fails the `Pending` of its own call when that is polled or queried,
//!    once the stream is past the ticket. Only an error that the program gets counts as seen: of
//!    several `Pending`s joined into one, the program gets the first error.
//! 2. If that `Pending` was dropped, before or after the refusal, and the error was never seen, the
//!    stream reports it as an unseen error.
//! 3. If the stream had no backlog lately, there is nothing to look up: one load shows that
//!    (`matters`).
//!
//! That word is set under the stream's lock before any caller knows the first ticket that may be
//! refused late. It is cleared when the backlog is empty and no refusal is left. So the owner of
//! such a ticket's `Pending` sees it set. It changes under the entries' lock, which is a leaf.

use crate::sync::{AtomicU8, Mutex, Ordering};
use crate::{Error, Ticket};
use std::collections::BTreeMap;

/// The value of `Late::matters` if nothing is to be looked up.
const NOTHING: u8 = 0;
/// The value if there are refusals.
const REFUSED: u8 = 1;
/// The value while there is a backlog, so that more refusals may follow.
const BACKLOG: u8 = 2;

/// The late refusals of a stream, by ticket.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Late {
    matters: AtomicU8,
    entries: Mutex<BTreeMap<Ticket, Entry>>,
}

enum Entry {
    /// The `Pending` was dropped, and the driver may not have the op yet.
    Dropped,
    Refused(Error),
}

impl Late {
    /// Notes that there is a backlog from now on.
    pub(crate) fn begins(&self) {
        let entries = self.entries.lock();
        self.matters.store(BACKLOG, Ordering::Release); // weaken: set-before-the-ticket
        drop(entries);
    }

    /// Notes that the driver has the whole backlog.
    pub(crate) fn ends(&self) {
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| matches!(entry, Entry::Refused(_)));
        self.matters.store(if entries.is_empty() { NOTHING } else { REFUSED }, Ordering::Release);
    }

    /// Returns true if there is a backlog.
    pub(crate) fn has_backlog(&self) -> bool {
        self.matters.load(Ordering::Acquire) == BACKLOG
    }

    /// Notes a refusal. Returns the error if its `Pending` was dropped already.
    #[must_use]
    pub(crate) fn refuse(&self, ticket: Ticket, error: Error) -> Option<Error> {
        let mut entries = self.entries.lock();
        if let Some(Entry::Dropped) = entries.remove(&ticket) {
            return Some(error);
        }
        entries.insert(ticket, Entry::Refused(error));
        None
    }

    /// Returns the refusal of `ticket` to its own `Pending`, which notes that it was seen if it
    /// returns it.
    #[inline]
    pub(crate) fn refusal(&self, ticket: Ticket) -> Option<Error> {
        if self.matters.load(Ordering::Acquire) == NOTHING { None } else { self.find(ticket) }
    }

    /// Returns true if nothing is kept and nothing is to be looked up.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.lock().is_empty() && self.matters.load(Ordering::Acquire) == NOTHING
    }

    #[cold]
    fn find(&self, ticket: Ticket) -> Option<Error> {
        match self.entries.lock().get(&ticket) {
            Some(Entry::Refused(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// Notes that the `Pending` of `ticket` was dropped. Returns its refusal, if there is one: no
    /// other call returns it from then on. `is_reached` returns whether the stream is past the
    /// ticket.
    #[inline]
    #[must_use]
    pub(crate) fn drop_pending(&self, ticket: Ticket, is_reached: impl FnOnce() -> bool) -> Option<Error> {
        if self.matters.load(Ordering::Acquire) == NOTHING {
            return None;
        }
        self.note_dropped(ticket, is_reached())
    }

    #[cold]
    fn note_dropped(&self, ticket: Ticket, is_reached: bool) -> Option<Error> {
        let mut entries = self.entries.lock();
        let entry = entries.remove(&ticket);
        match self.matters.load(Ordering::Relaxed) {
            BACKLOG if entry.is_none() && !is_reached => drop(entries.insert(ticket, Entry::Dropped)),
            REFUSED if entries.is_empty() => self.matters.store(NOTHING, Ordering::Release),
            _ => {}
        }
        match entry {
            Some(Entry::Refused(error)) => Some(error),
            _ => None,
        }
    }
}
