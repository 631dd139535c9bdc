//! Host functions that panicked, and whose results come after them.
//!
//! A panic of a [`Stream::call`](crate::Stream::call) stays with its op, as that of a task stays in
//! its `JoinHandle`. The device is still usable, and what is queued behind the function runs. But
//! the program has put that work after the function, so awaiting it fails.
//!
//! # Rules
//! 1. A panic fails the `Pending` of its own call, and those of places that stated order puts after
//!    it: later tickets of its stream, and places on other streams whose stated clock covers its
//!    ticket.
//! 2. It ends when its own `Pending` is looked at, and with the next `synchronize` of its stream,
//!    which returns it. Calls from then on are not concerned; `Pending`s from before still are. A
//!    closed stream hands nothing on.
//! 3. A place that fails so is not observed, so observing hands nothing on.
//! 4. Nothing is refused: what a panic is worth to later ops is for those to find out who await
//!    them.
//!
//! *Why an epoch and not a ticket says what came before a look?* The clock of another stream keeps
//! the ticket that it waited for, also where the host has seen past that since.

use crate::error::{Error, ErrorKind};
use crate::order::{Clock, StreamId};
use crate::stream::StreamCore;
use crate::timeline::Ticket;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most panics that a runtime remembers; the oldest goes first.
const MOST: usize = 256;

/// Counts looks at panics.
pub(crate) type Epoch = u64;

/// One panic.
#[derive(Debug)]
pub(crate) struct Panicked {
    stream: StreamId,
    at: Ticket,
    /// The epoch that ended when the program looked at it; `Epoch::MAX`: it has not.
    seen_in: AtomicU64,
    epoch: Arc<AtomicU64>,
    error: Error,
}

impl Panicked {
    /// The program has looked at the panic itself.
    pub(crate) fn see(&self) {
        if !self.is_seen() {
            let ends = self.epoch.fetch_add(1, Ordering::AcqRel);
            self.seen_in.fetch_min(ends, Ordering::AcqRel);
        }
    }

    fn is_seen(&self) -> bool {
        self.seen_in.load(Ordering::Acquire) != Epoch::MAX
    }
}

/// A place as a panic sees it.
pub(crate) struct Reached<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) clock: &'a Clock,
    /// When the call that asks was made.
    pub(crate) epoch: Epoch,
    /// True if it is the place of a host function, whose own panic is its result.
    pub(crate) is_call: bool,
}

/// The panics of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Panics {
    /// True if there are any: read by every look at work that is done.
    some: AtomicBool,
    epoch: Arc<AtomicU64>,
    latest: Mutex<VecDeque<Arc<Panicked>>>,
}

impl Panics {
    #[inline]
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::Acquire)
    }

    /// Notes that the host function with ticket `at` panicked, before that ticket is reached.
    /// Returns the error of its own `Pending`, which ends it when it is looked at.
    pub(crate) fn note(&self, stream: StreamId, at: Ticket, error: Error) -> Error {
        let (seen_in, epoch) = (AtomicU64::new(Epoch::MAX), self.epoch.clone());
        let panicked = Arc::new(Panicked { stream, at, seen_in, epoch, error: error.clone() });
        let mut latest = self.latest.lock();
        if latest.len() == MOST {
            latest.pop_front();
        }
        latest.push_back(panicked.clone());
        self.some.store(true, Ordering::Release);
        error.with_panic(panicked)
    }

    /// The error of a place on `stream` that comes after a panic.
    #[inline]
    pub(crate) fn before(&self, stream: &StreamCore, reached: &Reached<'_>) -> Option<Error> {
        if !self.some.load(Ordering::Acquire) {
            return None;
        }
        self.search(stream, reached)
    }

    #[cold]
    fn search(&self, stream: &StreamCore, reached: &Reached<'_>) -> Option<Error> {
        let latest = self.latest.lock();
        let comes_after = |panicked: &&Arc<Panicked>| {
            let is_before = if panicked.stream != stream.id {
                reached.clock.get(panicked.stream).is_some_and(|ticket| panicked.at <= ticket)
            } else if reached.is_call {
                panicked.at < reached.ticket
            } else {
                panicked.at <= reached.ticket
            };
            is_before && reached.epoch <= panicked.seen_in.load(Ordering::Acquire)
        };
        let panicked = latest.iter().find(comes_after)?;
        let (label, ticket, origin) = (&stream.label, reached.ticket, &panicked.error);
        let message = format!(
            "ticket {ticket} of stream \"{label}\" comes after a host function that panicked: {origin}; await that call, or \
             synchronize its stream, before enqueuing what does not depend on it"
        );
        Some(Error::following(origin, message))
    }

    /// The first panic that nobody has looked at.
    #[cfg(feature = "test-util")]
    pub(crate) fn unseen(&self) -> Option<Error> {
        self.latest.lock().iter().find(|panicked| !panicked.is_seen()).map(|panicked| panicked.error.clone())
    }

    /// A `synchronize` of `stream` has got to `ticket`: ends the panics up to there, and returns
    /// the first.
    pub(crate) fn end_on(&self, stream: StreamId, ticket: Ticket) -> Option<Error> {
        if !self.some.load(Ordering::Acquire) {
            return None;
        }
        let latest = self.latest.lock();
        let live = |panicked: &&Arc<Panicked>| {
            panicked.stream == stream && panicked.at <= ticket && !panicked.is_seen()
        };
        let ended: Vec<_> = latest.iter().filter(live).cloned().collect();
        drop(latest);
        ended.iter().for_each(|panicked| panicked.see());
        ended.first().map(|panicked| panicked.error.clone())
    }
}

/// The panic of a host function as an error.
pub(crate) fn error_of(call: &dyn std::fmt::Display, at: Ticket, message: &str) -> Error {
    Error::new(
        ErrorKind::Panicked,
        format!(
            "{call} panicked at ticket {at}: {message}; the device is still usable, what is behind it on the stream has run"
        ),
    )
}
