//! Edges between streams, events, and waiting on the host.
// Decision: docs/decisions/0011-wait-for-uses-where-streams-stand-now.md

use crate::buffer::Buffer;
use crate::edge::Edge;
use crate::event::Event;
use crate::memory::ReuseOrder;
use crate::order::{Site, StreamId, Use};
use crate::pending::Pending;
use crate::shared::panics::Concern;
use crate::shared::{Allocation, Place, Snapshot, Stream, StreamCore};
use std::sync::Arc;
use warpline_driver::{Command, Element, Error, ErrorKind, Result, Stamp};

/// An argument of [`Stream::wait_for`]: a buffer, or a type that holds one.
pub trait HoldsMemory {
    /// Returns the memory it holds.
    fn memory(&self) -> MemoryRef<'_>;
}

/// An allocation of device memory, of any element type.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRef<'a>(&'a Allocation);

impl<T: Element> HoldsMemory for Buffer<T> {
    fn memory(&self) -> MemoryRef<'_> {
        MemoryRef(self.allocation())
    }
}

impl Stream {
    /// Orders later work on this stream after all work on `other` so far. The device waits; the
    /// host does not.
    ///
    /// The edge takes effect when the call returns. The returned [`Edge`] need not be awaited.
    ///
    /// # Ordering
    /// Order is transitive: the work that `other` had waited for before counts too. The call takes
    /// a ticket if it adds order. If the order is implied already, nothing is enqueued.
    ///
    /// # Devices
    /// The streams may be on any two devices of a runtime. If the devices have different backends,
    /// such as `cpu:0` and `cuda:0`, and the work of `other` has not finished, later work on this
    /// stream waits on the host. A thread of the runtime submits it once `other` has reached that
    /// point. If the device of `other` fails before that, this stream is abandoned: its unfinished
    /// work fails with that error, and the device of this stream is still usable. Of two devices of
    /// one backend, such as two GPUs, the whole device of this stream fails with the other one,
    /// also if that one had failed before the wait: ask its [`health`](crate::Device::health)
    /// first.
    ///
    /// If a write was refused on `other`, or on a stream that `other` had waited for, ops on this
    /// stream that read that memory fail from then on ([`Error::is_inherited`]).
    ///
    /// # Errors
    /// In the [`Edge`]: `DeviceMismatch` if the streams belong to different runtimes; `Closed`,
    /// `Fault` or `ShutDown` if this stream accepts no more work; `Captured` if this stream is
    /// being captured and `other` is not, or if another thread captures one of them; `Reentrant` in
    /// a host function.
    #[track_caller]
    #[inline]
    pub fn wait_stream(&self, other: &Stream) -> Edge {
        self.wait_stream_at(Site::here(&"wait_stream"), other)
    }

    #[inline]
    pub(super) fn wait_stream_at(&self, site: Site, other: &Stream) -> Edge {
        let place = self.core().wait_stream(site, other.core());
        Edge::new(Pending::value(self.core(), place, ()))
    }

    /// Orders later work on this stream after `event`. The device waits; the host does not.
    ///
    /// # Errors
    /// The errors of [`wait_stream`](Self::wait_stream).
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Edge {
        let site = Site::here(&"wait_event");
        let place = self
            .core()
            .check_can_wait(site, event.core())
            .and_then(|()| self.core().wait_snapshot(site, event.snapshot()?));
        Edge::new(Pending::value(self.core(), place, ()))
    }

    /// Orders later work on this stream after every use of `memory` so far, for use when you have
    /// no handle to the streams that used it.
    ///
    /// # Ordering
    /// The edges start at the current end of each stream that used the memory, not at its last use.
    /// Streams that only read the memory count too. So if each request of a service calls
    /// `wait_for` on the weights that it reads, the requests run one after another. Instead, await
    /// the write of the weights once, or wait for an event recorded after it.
    ///
    /// A stream whose write was refused counts as a user of the memory, unless it is closed. If
    /// this thread captures work on the memory, the uses in the capture count, and this stream
    /// joins the capture.
    ///
    /// # Errors
    /// The errors of [`wait_stream`](Self::wait_stream).
    #[track_caller]
    pub fn wait_for(&self, memory: &impl HoldsMemory) -> Edge {
        let site = Site::here(&"wait_for");
        let core = self.core();
        if let Some(place) = crate::shared::wait_for(core, site, memory.memory().0) {
            return Edge::new(Pending::value(core, place, ()));
        }
        if let Err(error) = core.may_ask(site) {
            return Edge::new(Pending::refused_on(core, error));
        }
        Edge::new(Pending::value(core, core.wait_for_uses(site, memory.memory().0), ()))
    }

    /// Records an event at the current end of this stream.
    ///
    /// # Errors
    /// The call itself does not fail. If a host function or a kernel's CPU form recorded the event,
    /// waiting for it is refused as `Reentrant`.
    #[track_caller]
    pub fn record_event(&self) -> Event {
        Event::record(self.core(), None)
    }

    /// Records an event at the current end of this stream, with the time at which the stream
    /// reaches it. Takes a ticket.
    ///
    /// # Errors
    /// The errors of any op, as in [`launch`](Self::launch); `Captured` in a capture.
    #[track_caller]
    pub fn record_timed_event(&self) -> Result<Event> {
        let stamp = Arc::new(Stamp::default());
        let command = stamp.clone();
        self.core().enqueue_plain("stamp", Site::here(&"record_timed_event"), |_| Command::Stamp(command))?;
        Ok(Event::record(self.core(), Some(stamp)))
    }

    /// Returns true if everything enqueued so far has finished. A `true` counts as having observed
    /// all of it (see [`Pending`]).
    ///
    /// # Errors
    /// The device has failed; `Captured` in a capture; `Reentrant` in a host function.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let site = Site::here(&"query");
        self.core().may_ask(site)?;
        self.core().refuse_captured(site, ASKED)?;
        let is_done = Pending::value(self.core(), Ok(self.core().here()), ()).query()?;
        match self.core().device.health.fault() {
            Some(fault) if is_done => Err(fault.clone()),
            _ => Ok(is_done),
        }
    }

    /// Resolves when everything enqueued so far has finished. It does not wait for later work.
    ///
    /// # Errors
    /// In the `Pending`: the device has failed; `Captured` in a capture; `Reentrant` in a host
    /// function.
    ///
    /// If an earlier call on this stream was refused or panicked and its `Pending` was dropped
    /// unseen, awaiting returns the oldest such error. Each error is returned once, so synchronize
    /// again until that succeeds.
    ///
    /// A stream keeps the first 64 unseen errors. An error that is returned makes room for a later
    /// one. While there are 64, the error of a further call is not kept, and no `synchronize`
    /// returns it. Its effect on later readers of the memory remains: see [`Pending`]. A panic is
    /// returned even then, unless 256 later ones followed in the runtime. Closing the stream drops
    /// the errors that it keeps.
    #[track_caller]
    pub fn synchronize(&self) -> Pending<()> {
        let (core, site) = (self.core(), Site::here(&"synchronize"));
        if let Err(error) = core.may_ask(site).and_then(|()| core.refuse_captured(site, ASKED)) {
            return Pending::refused_on(core, error);
        }
        core.synchronize()
    }
}

/// The reason why a captured stream cannot be queried.
const ASKED: &str = "the stream is being captured, so none of its ops runs; await a launch of the \
    graph";

impl StreamCore {
    #[inline(always)]
    pub(crate) fn wait_stream(self: &Arc<Self>, site: Site, other: &Arc<StreamCore>) -> Result<Place> {
        if self.is_captured() || other.is_captured() {
            let there = other.capture(site)?;
            if let Some(place) = self.wait_captured(site, there.as_ref(), |there| there.snapshot(other))? {
                return Ok(place);
            }
        }
        self.wait_for_stream(site, other)
    }

    /// Waits for the other stream's own end, whether or not the stream is captured. Always inline
    /// up to the point where there is clearly nothing to do, so that the place stays in registers.
    #[inline(always)]
    fn wait_for_stream(self: &Arc<Self>, site: Site, other: &Arc<StreamCore>) -> Result<Place> {
        // Load `issued` first and `version` second: the version is then at least as new as the
        // ticket.
        let issued = other.issued();
        let version = other.version();
        // Where no snapshot stands, no wait can have been made.
        if issued <= other.seen_at() {
            let state = self.lock(site, false)?;
            if !other.is_closed() && self.waited_lately(&state, (other.id, issued, version)) {
                return Ok(Place::at(state.issued, state.stated.clone()));
            }
        }
        self.wait_for_stream_now(site, other)
    }

    #[inline(never)]
    fn wait_for_stream_now(self: &Arc<Self>, site: Site, other: &Arc<StreamCore>) -> Result<Place> {
        if Arc::ptr_eq(self, other) {
            let state = self.lock(site, false)?;
            return Ok(Place::at(state.issued, state.stated.clone()));
        }
        self.ensure_open(site)?;
        self.check_can_wait(site, other)?;
        let by_event = self.device.id.backend() == other.device.id.backend();
        let snapshot = other.snapshot(by_event, |used| self.known.lock().covers(used));
        let snapshot = snapshot.map_err(|error| {
            self.take_marks_of(other);
            self.refused(site, &error)
        })?;
        self.wait_snapshot(site, &snapshot)
    }

    pub(crate) fn check_can_wait(&self, site: Site, other: &StreamCore) -> Result<()> {
        if self.can_wait_for(other) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::DeviceMismatch,
            format!(
                "{}: stream \"{}\" is on {} of another runtime, and an edge cannot start there; await \
                 it on the host instead",
                site.on(&self.label),
                other.label,
                other.device.id,
            ),
        ))
    }

    /// Waits for every open stream that used this memory or was refused to write it. Then waits for
    /// the closed ones, which the caller cannot wait for by name.
    fn wait_for_uses(self: &Arc<Self>, site: Site, allocation: &Allocation) -> Result<Place> {
        let runtime = &*self.device.runtime;
        let (users, marked_by, mut some_are_closed): (Vec<StreamId>, Vec<StreamId>, bool) = {
            let book = allocation.ledger.open();
            let users = book.uses().iter().map(|used| used.stream).collect();
            (users, book.marked_by().collect(), book.outlived())
        };
        let (mut open, mut closed) = (Vec::new(), Vec::new());
        for id in users.into_iter().filter(|id| *id != self.id) {
            match runtime.stream(id) {
                Some(other) if !runtime.observed.is_closed(id) => open.push(other),
                other => {
                    some_are_closed = true;
                    closed.extend(other);
                }
            }
        }
        open.extend(
            marked_by.into_iter().filter_map(|id| runtime.stream(id)).filter(|other| !other.is_closed()),
        );
        let mut place = Ok(self.here());
        for other in &open {
            // Also after a refusal: each wait hands on marks.
            let next = self.wait_for_stream(site, other);
            place = place.and(next);
        }
        let place = place?;
        if some_are_closed { self.wait_for_closed(site, &closed) } else { Ok(place) }
    }

    /// Orders later work after the closed streams that have not drained. Always takes a ticket.
    #[cold]
    fn wait_for_closed(self: &Arc<Self>, site: Site, closed: &[Arc<StreamCore>]) -> Result<Place> {
        let refused = |error| self.refused(site, &error);
        let mut edges: Vec<Snapshot> = Vec::new();
        // The newest user of memory is mostly after the ones before it. So many need one edge.
        for other in closed.iter().rev().filter(|other| self.can_wait_for(other)) {
            let end = Use { stream: other.id, ticket: other.issued() };
            if self.known.lock().covers(end) || edges.first().is_some_and(|from| from.known().covers(end)) {
                continue;
            }
            let from = other.snapshot(true, |_| false).map_err(refused)?;
            self.wait_if_borrowed(site, &from)?;
            edges.push(from);
        }
        let mut state = self.lock(site, false)?;
        for from in &edges {
            self.submit_edge(&mut state, site, from).map_err(refused)?;
        }
        // Behind edges it has to be work, so that awaiting it waits for the edges.
        let taken = if edges.is_empty() {
            self.take_ticket(&mut state, site)
        } else {
            self.submit(&mut state, site, |_| Command::Elided, None, false).map(drop)
        };
        taken.map_err(refused)?;
        edges.iter().for_each(|from| self.know(&mut state, from));
        Ok(Place { is_of_call: true, ..Place::at(state.issued, state.stated.clone()) })
    }

    pub(crate) fn synchronize(self: &Arc<Self>) -> Pending<()> {
        let (core, place) = (self.clone(), self.here());
        let here = place.clone();
        Pending::of_synchronize(self, place, move || {
            core.device.confirm_nothing_is_lost()?;
            let panics = &core.device.runtime.panics;
            let epoch = panics.epoch();
            let panicked = || panics.end_on(core.id, here.ticket);
            let follows = || core.panic_before(&here, epoch, Concern::OfOthers);
            core.refusals.take_unseen().or_else(panicked).or_else(follows).map_or(Ok(()), Err)
        })
    }
}

impl ReuseOrder for StreamCore {
    fn after(&self, used: Use) -> bool {
        self.known.lock().covers(used)
    }

    fn finished(&self, used: Use) -> bool {
        self.device.runtime.is_finished(used)
    }

    fn can_wait(&self, used: Use) -> bool {
        self.device.runtime.stream(used.stream).is_none_or(|other| other.fault().is_none())
    }
}
