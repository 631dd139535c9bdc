//! Refusals of ops that the driver got after the call (`backlog.rs`), and the `Pending`s that fail
//! with them.
//!
//! # Rules
//! 1. The refusal of a ticket fails the `Pending` of its own call when that is polled or queried,
//!    once the stream is past the ticket. Only an error that the program gets counts as seen: of
//!    several `Pending`s joined into one, the program gets the first error.
//! 2. If that `Pending` was dropped, before or after the refusal, and the error was never seen, the
//!    stream reports it as an unseen error.
//! 3. If nothing was held back lately, there is nothing to look up: one load shows that
//!    (`StreamCore::late_matters`).
//!
//! That word is set under the stream's lock before any caller knows the first ticket that may be
//! refused late. It is cleared when nothing is held back and no refusal is left. So the owner of
//! such a ticket's `Pending` sees it set. It changes under the entries' lock.

use super::core::StreamCore;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use warpline_driver::Error;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Ticket;

/// The value of `StreamCore::late_matters` if nothing is to be looked up.
const NOTHING: u8 = 0;
/// The value if there are refusals.
const REFUSED: u8 = 1;
/// The value while something is held back, so that more refusals may follow.
const HOLDS: u8 = 2;

/// Late refusals by ticket. The lock is a leaf.
#[derive(Default)]
pub(super) struct Late(Mutex<BTreeMap<Ticket, Entry>>);

enum Entry {
    /// The `Pending` was dropped, and the driver may not have the op yet.
    Dropped,
    Refused(Error),
}

impl StreamCore {
    /// Notes that something is held back from now on.
    pub(super) fn late_begins(&self) {
        let entries = self.late.0.lock();
        self.late_matters.store(HOLDS, Ordering::Release);
        drop(entries);
    }

    /// Notes that nothing is held back any more.
    pub(super) fn late_ends(&self) {
        let mut entries = self.late.0.lock();
        entries.retain(|_, entry| matches!(entry, Entry::Refused(_)));
        self.late_matters.store(if entries.is_empty() { NOTHING } else { REFUSED }, Ordering::Release);
    }

    /// Notes a refusal. Returns the error if its `Pending` was dropped already.
    #[must_use]
    pub(super) fn refuse_late(&self, ticket: Ticket, error: Error) -> Option<Error> {
        let mut entries = self.late.0.lock();
        if let Some(Entry::Dropped) = entries.remove(&ticket) {
            return Some(error);
        }
        entries.insert(ticket, Entry::Refused(error));
        None
    }

    /// Returns the refusal of `ticket` to its own `Pending`, which notes that it was seen if it
    /// returns it.
    #[inline]
    pub(crate) fn late_refusal(&self, ticket: Ticket) -> Option<Error> {
        if self.late_matters.load(Ordering::Acquire) == NOTHING { None } else { self.find_late(ticket) }
    }

    #[cold]
    fn find_late(&self, ticket: Ticket) -> Option<Error> {
        match self.late.0.lock().get(&ticket) {
            Some(Entry::Refused(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// Notes that the `Pending` of `ticket` was dropped, and reports a refusal that was never
    /// seen.
    #[inline]
    pub(crate) fn drop_late(&self, ticket: Ticket) {
        if self.late_matters.load(Ordering::Acquire) != NOTHING {
            self.note_dropped(ticket);
        }
    }

    #[cold]
    fn note_dropped(&self, ticket: Ticket) {
        let reached = self.timeline.reached(ticket);
        let mut entries = self.late.0.lock();
        let refusal = entries.remove(&ticket);
        match self.late_matters.load(Ordering::Relaxed) {
            HOLDS if refusal.is_none() && !reached => drop(entries.insert(ticket, Entry::Dropped)),
            REFUSED if entries.is_empty() => self.late_matters.store(NOTHING, Ordering::Release),
            _ => {}
        }
        drop(entries);
        match refusal {
            Some(Entry::Refused(error)) if !error.is_seen() => self.note_unseen(&error),
            _ => {}
        }
    }
}
