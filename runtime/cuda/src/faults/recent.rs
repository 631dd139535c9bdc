//! The latest ops of a stream, which the error of a device fault names.
//!
//! They are written under the stream's lock and read without one: a launch may block in CUDA
//! while the reactor reads. A writer clears an entry's ticket before it changes the entry, and sets
//! the ticket afterwards. A reader checks the ticket before and after, and skips an entry that
//! changed meanwhile.

use std::panic::Location;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use warpline_driver::Site;
use warpline_driver::timeline::Ticket;

/// The number of ops recorded, more than the 64 that may come between two markers.
const LEN: usize = 128;

#[derive(Debug)]
pub(crate) struct Recent {
    entries: Box<[Entry; LEN]>,
}

#[derive(Debug)]
struct Entry {
    ticket: AtomicU64,
    op: AtomicPtr<&'static str>,
    location: AtomicPtr<Location<'static>>,
}

impl Recent {
    pub(crate) fn new() -> Self {
        let entry = || Entry {
            ticket: AtomicU64::new(0),
            op: AtomicPtr::new(std::ptr::null_mut()),
            location: AtomicPtr::new(std::ptr::null_mut()),
        };
        Recent { entries: Box::new(std::array::from_fn(|_| entry())) }
    }

    /// Records an op. The caller holds the stream's lock.
    #[inline]
    pub(crate) fn note(&self, ticket: Ticket, site: Site) {
        let entry = &self.entries[ticket as usize % LEN];
        entry.ticket.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.op.store(std::ptr::from_ref(site.name()).cast_mut(), Ordering::Relaxed);
        entry.location.store(std::ptr::from_ref(site.location).cast_mut(), Ordering::Relaxed);
        entry.ticket.store(ticket, Ordering::Release);
    }

    /// Returns the newest ticket that is recorded, 0 if there is none.
    pub(crate) fn newest(&self) -> Ticket {
        let tickets = self.entries.iter().map(|entry| entry.ticket.load(Ordering::Relaxed));
        tickets.max().unwrap_or(0)
    }

    /// Returns the recorded ops after ticket `done`, oldest first.
    pub(crate) fn after(&self, done: Ticket) -> Vec<(Ticket, Site)> {
        let mut ops: Vec<_> = self.entries.iter().filter_map(|entry| entry.read(done)).collect();
        ops.sort_unstable_by_key(|(ticket, _)| *ticket);
        ops
    }
}

impl Entry {
    fn read(&self, done: Ticket) -> Option<(Ticket, Site)> {
        let ticket = self.ticket.load(Ordering::Acquire);
        if ticket <= done {
            return None;
        }
        let op = self.op.load(Ordering::Relaxed);
        let location = self.location.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if self.ticket.load(Ordering::Relaxed) != ticket {
            return None;
        }
        // SAFETY: the pointers were made from `'static` references. They belong to one entry, since
        // its ticket was the same before and after and no ticket is used twice.
        Some((ticket, Site::at(unsafe { &*op }, unsafe { &*location })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_after_a_ticket_come_oldest_first_and_old_ones_fall_out() {
        let recent = Recent::new();
        assert!(recent.after(0).is_empty());
        for ticket in 1..=300 {
            recent.note(ticket, Site::here(&"op"));
        }
        let tickets = |done| recent.after(done).into_iter().map(|(ticket, _)| ticket).collect::<Vec<_>>();
        assert_eq!(tickets(0), (173..=300).collect::<Vec<_>>());
        assert_eq!(tickets(298), [299, 300]);
        assert_eq!(recent.after(299)[0].1.op(), "op");
    }
}
