//! Panics of host functions, and the later results that fail because of them.
//!
//! A panic of a [`Stream::call`](crate::Stream::call) stays with its op, as that of a task stays in
//! its `JoinHandle`. The device is still usable, and work behind the function runs. But the program
//! has put that work after the function, so awaiting it fails.
//!
//! # Rules
//! 1. A panic fails the `Pending` of its own call, and those of places that stated order puts after
//!    it: later tickets of its stream, and places on other streams whose stated clock covers its
//!    ticket.
//! 2. A panic ends when its own `Pending` is looked at, or when a `synchronize` of its stream
//!    returns it, or if the stream is closed, when one of its device does. Later calls are not
//!    concerned; `Pending`s from before still are. A closed stream hands nothing on to streams that
//!    wait later.
//! 3. A place that fails this way is not observed, so observing hands nothing on.
//! 4. No op is refused. The caller that awaits a later op judges what the panic means for it.
//!
//! *Why does an epoch, and not a ticket, say what came before a look?* The clock of another stream
//! keeps the ticket that it waited for, even after the host has seen past that ticket.
// Decision: docs/decisions/0020-panic-of-a-host-function-stays-with-its-call.md

use crate::order::{Clock, StreamId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use warpline_driver::internal::{ErrorParts, Unseen};
use warpline_driver::timeline::Ticket;
use warpline_driver::{DeviceId, Error, ErrorKind};

/// The maximum number of panics that a runtime remembers. The oldest goes first, and counts as
/// looked at.
const MOST: usize = 256;

/// The number of looks at panics so far.
pub(crate) type Epoch = u64;

/// A panic of a host function.
#[derive(Debug)]
pub(crate) struct Panicked {
    stream: StreamId,
    device: DeviceId,
    at: Ticket,
    /// The epoch that ended when the program looked at the panic; `Epoch::MAX` if it has not.
    seen_in: AtomicU64,
    counts: Arc<Counts>,
    error: Error,
}

/// Counters that show without a lock that no panic concerns a place.
#[derive(Debug, Default)]
struct Counts {
    epoch: AtomicU64,
    /// The number of panics that the program has not looked at.
    unseen: AtomicU64,
    /// One past the newest epoch in which a panic was looked at.
    seen_before: AtomicU64,
}

impl Unseen for Panicked {
    fn see(&self) {
        let ends = self.counts.epoch.fetch_add(1, Ordering::AcqRel);
        let unseen = Epoch::MAX;
        if self.seen_in.compare_exchange(unseen, ends, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.counts.seen_before.fetch_max(ends + 1, Ordering::AcqRel);
            self.counts.unseen.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Panicked {
    fn is_seen(&self) -> bool {
        self.seen_in.load(Ordering::Acquire) != Epoch::MAX
    }
}

/// The panics that concern a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// All panics before the place.
    All,
    /// Earlier panics but not its own. This is the place of a call, whose result reports its own
    /// panic.
    Earlier,
    /// Panics of other streams. This is the place of a `synchronize`, which returns those of its
    /// stream.
    OfOthers,
}

/// A place that may come after a panic.
pub(crate) struct Reached<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) clock: &'a Clock,
    /// The epoch in which the asking call was made.
    pub(crate) epoch: Epoch,
    pub(crate) concern: Concern,
}

/// The panics of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Panics {
    counts: Arc<Counts>,
    latest: Mutex<VecDeque<Arc<Panicked>>>,
}

impl Panics {
    #[inline]
    pub(crate) fn epoch(&self) -> Epoch {
        self.counts.epoch.load(Ordering::Acquire)
    }

    /// Notes that the host function with ticket `at` panicked, before that ticket is reached.
    /// Returns the error of the function's own `Pending`, which ends the panic when it is looked
    /// at.
    pub(crate) fn note(&self, (device, stream): (DeviceId, StreamId), at: Ticket, error: Error) -> Error {
        let (seen_in, counts) = (AtomicU64::new(Epoch::MAX), self.counts.clone());
        let panicked = Arc::new(Panicked { stream, device, at, seen_in, counts, error: error.clone() });
        let mut latest = self.latest.lock();
        if latest.len() == MOST
            && let Some(oldest) = latest.pop_front()
        {
            oldest.see();
        }
        latest.push_back(panicked.clone());
        self.counts.unseen.fetch_add(1, Ordering::AcqRel);
        error.ending(panicked)
    }

    /// Returns the error of a place on the stream `id` that comes after a panic.
    #[inline]
    pub(crate) fn before(&self, id: StreamId, label: &str, reached: &Reached<'_>) -> Option<Error> {
        let Counts { unseen, seen_before, .. } = &*self.counts;
        if unseen.load(Ordering::Acquire) == 0 && seen_before.load(Ordering::Acquire) <= reached.epoch {
            return None;
        }
        self.search(id, label, reached)
    }

    #[cold]
    fn search(&self, id: StreamId, label: &str, reached: &Reached<'_>) -> Option<Error> {
        let latest = self.latest.lock();
        let comes_after = |panicked: &&Arc<Panicked>| {
            let is_before = match reached.concern {
                _ if panicked.stream != id => {
                    reached.clock.get(panicked.stream).is_some_and(|ticket| panicked.at <= ticket)
                }
                Concern::All => panicked.at <= reached.ticket,
                Concern::Earlier => panicked.at < reached.ticket,
                Concern::OfOthers => false,
            };
            is_before && reached.epoch <= panicked.seen_in.load(Ordering::Acquire)
        };
        let panicked = latest.iter().find(comes_after)?;
        let (ticket, origin) = (reached.ticket, &panicked.error);
        let message = format!(
            "ticket {ticket} of stream \"{label}\" is behind a host function that panicked: \
             {origin}; await that call, or synchronize its stream, before you enqueue work that \
             does not depend on it"
        );
        Some(Error::following(origin, message))
    }

    /// Returns the first panic that the program has not looked at.
    #[cfg(feature = "test-util")]
    pub(crate) fn unseen(&self) -> Option<Error> {
        self.latest.lock().iter().find(|panicked| !panicked.is_seen()).map(|panicked| panicked.error.clone())
    }

    /// Ends the first live panic on `stream` up to `ticket`, for a `synchronize` there, which
    /// returns it.
    pub(crate) fn end_on(&self, stream: StreamId, ticket: Ticket) -> Option<Error> {
        if self.counts.unseen.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.end_first(|panicked| panicked.stream == stream && panicked.at <= ticket)
    }

    /// Ends the first live panic on a closed stream of `device`, for a `synchronize` of the device,
    /// which returns it.
    pub(crate) fn end_on_closed(
        &self,
        device: DeviceId,
        is_closed: impl Fn(StreamId) -> bool,
    ) -> Option<Error> {
        if self.counts.unseen.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.end_first(|panicked| panicked.device == device && is_closed(panicked.stream))
    }

    #[cold]
    fn end_first(&self, concerns: impl Fn(&Panicked) -> bool) -> Option<Error> {
        let latest = self.latest.lock();
        let ended = latest.iter().find(|panicked| !panicked.is_seen() && concerns(panicked))?;
        ended.see();
        Some(ended.error.clone())
    }
}

/// Returns the panic of a host function as an error.
pub(crate) fn error_of(call: &dyn std::fmt::Display, at: Ticket, message: &str) -> Error {
    Error::new(
        ErrorKind::Panicked,
        format!(
            "{call} panicked at ticket {at}: {message}; the device is still usable, and later work \
             on the stream has run"
        ),
    )
}
