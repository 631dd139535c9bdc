//! Unfinished work that needs code of the host: host functions, gates of tests, foreign work, and
//! whatever is on streams of other owners.
//!
//! A thread that waits for memory must not wait for such code. The code may wait for that thread.
//!
//! # Rules
//! 1. An entry is added before the driver gets the work, under the lock of its stream. So a thread
//!    that sees work behind it sees the entry too. It stays until its ticket is reached.
//! 2. After the lock was released, the waiters are woken. They look again whether what they wait
//!    for still ends by itself: streams of a GPU share hardware queues, and a driver call may wait
//!    for the whole device.
//! 3. The lock of the list is taken under those of a stream and of the allocator. Under it, only
//!    known clocks, timelines and the runtime's streams are looked at.
//!
//! # What a use depends on
//! The streams of a GPU share hardware queues, so any entry of its backend holds up any use there.
//! On a CPU device, foreign work does: it runs on the few threads that also run kernels. Other
//! entries hold up what is behind them: uses on the same stream, and on streams whose known clock
//! covers the entry. So do the entries of borrowed streams on every device. Held-back work may
//! wait for page-locked memory, and the driver may make that wait for the whole device, so any
//! code that is listed holds it up.
// Decision: docs/decisions/0065-memory-waits.md

use crate::background;
use crate::memory::wake_all;
use crate::order::{Site, Use};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use warpline_driver::timeline::{Ticket, Timeline};

/// A sort of host code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostCode {
    Function,
    #[cfg(feature = "test-util")]
    Gate,
    ForeignWork,
    /// Unknown work, which the owner of the driver's stream may put there at any time.
    BorrowedStream,
}

impl fmt::Display for HostCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HostCode::Function => "a host function",
            #[cfg(feature = "test-util")]
            HostCode::Gate => "a closed gate",
            HostCode::ForeignWork => "foreign work",
            HostCode::BorrowedStream => "a borrowed stream",
        })
    }
}

/// The host code that a use depends on.
pub(crate) struct HeldUp {
    by: HostCode,
    site: Site,
}

impl fmt::Display for HeldUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.by, self.site)
    }
}

/// A ticket of a stream, on a device of a backend.
#[derive(Clone, Copy)]
pub(crate) struct Position {
    pub(crate) backend: &'static str,
    pub(crate) used: Use,
}

struct Entry {
    what: HostCode,
    site: Site,
    backend: &'static str,
    /// Its place. Of a borrowed stream, every ticket counts.
    used: Use,
    /// The timeline and the ticket that show its end.
    end: (Arc<Timeline>, Ticket),
}

impl Entry {
    /// Returns the use that is not finished because of this, if there is one.
    fn unfinished(&self) -> Option<Use> {
        let (timeline, end) = &self.end;
        let (ticket, end) = match self.what {
            HostCode::BorrowedStream => (timeline.newest() + 1, timeline.newest() + 1),
            _ => (self.used.ticket, *end),
        };
        let is_over = timeline.reached(end) || timeline.is_abandoned() || timeline.fault().is_some();
        (!is_over).then_some(Use { ticket, ..self.used })
    }
}

/// The unfinished use of a stream, and what decides whether host code holds it up.
pub(super) struct Dependent {
    pub(super) at: Position,
    /// True if the streams of its device share queues in hardware.
    pub(super) shares_queues: bool,
    /// True if its stream holds work back.
    pub(super) has_backlog: bool,
}

struct Entries {
    list: Vec<Entry>,
    /// The length at which the list is next searched for entries that are over.
    search_at: usize,
}

/// The number of additions after which the list is searched for entries that are over, so that
/// they do not keep the timelines of streams that are gone.
const FEW: usize = 64;

/// The unfinished host code of a runtime.
pub(crate) struct HostCodes {
    entries: Mutex<Entries>,
    added: Notify,
}

impl Default for HostCodes {
    fn default() -> Self {
        HostCodes { entries: Mutex::new(Entries { list: Vec::new(), search_at: FEW }), added: Notify::new() }
    }
}

impl HostCodes {
    /// Notes host code. The caller has the lock of the stream, or nothing else can use the stream
    /// yet. It calls [`added`](Self::added) once it holds no lock.
    pub(crate) fn note(&self, what: HostCode, site: Site, at: Position, end: (Arc<Timeline>, Ticket)) {
        let Position { backend, used } = at;
        let entry = Entry { what, site, backend, used, end };
        let mut entries = self.entries.lock();
        entries.list.push(entry);
        if entries.list.len() < entries.search_at {
            return;
        }
        let lasts = |entry: &Entry| entry.what == HostCode::BorrowedStream || entry.unfinished().is_some();
        let (list, over): (Vec<_>, Vec<_>) = std::mem::take(&mut entries.list).into_iter().partition(lasts);
        (entries.search_at, entries.list) = (list.len() + FEW, list);
        drop(entries);
        // A timeline may be the last to hold values of users.
        background::detach(move || drop(over));
    }

    /// Notes that host code of this place is over, or was refused.
    pub(crate) fn forget(&self, used: Use) {
        let mut entries = self.entries.lock();
        let at = entries.list.iter().position(|entry| entry.used == used);
        let over = at.map(|at| entries.list.swap_remove(at));
        drop(entries);
        drop(over);
    }

    /// Returns the host code that a use depends on, if there is any. `knows`: whether the stream
    /// is ordered after another use. Called under the allocator's locks.
    pub(super) fn before(&self, dependent: &Dependent, knows: impl Fn(Use) -> bool) -> Option<HeldUp> {
        let Dependent { at, shares_queues, has_backlog } = dependent;
        let is_before = |entry: &&Entry| {
            let Some(code) = entry.unfinished() else { return false };
            let shares_threads = *shares_queues || entry.what == HostCode::ForeignWork;
            let holds_up_all = *has_backlog || (entry.backend == at.backend && shares_threads);
            if entry.what != HostCode::BorrowedStream && holds_up_all {
                return true;
            }
            let is_on_stream = code.stream == at.used.stream;
            if is_on_stream { code.ticket <= at.used.ticket } else { knows(code) }
        };
        let entries = self.entries.lock();
        let found = entries.list.iter().find(is_before);
        found.map(|entry| HeldUp { by: entry.what, site: entry.site })
    }

    /// Makes all that wait for memory look again, after host code was noted.
    pub(crate) fn added(&self) {
        wake_all(&self.added);
    }

    /// Returns a future that is ready after the next call of [`added`](Self::added).
    pub(crate) fn next_added(&self) -> Notified<'_> {
        self.added.notified()
    }
}
