//! Edges between streams, events, and waiting on the host.
// Decision: docs/decisions/0011-wait-for-uses-where-streams-stand-now.md

use super::At;
use crate::buffer::Buffer;
use crate::edge::Edge;
use crate::event::Event;
use crate::order::Site;
use crate::pending::Pending;
use crate::shared::panics::Concern;
use crate::shared::{Allocation, Place, Stream, StreamCore};
use std::sync::Arc;
use warpline_driver::{Command, Element, Result, Stamp};

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
    /// stream that read that memory fail from then on
    /// ([`Error::is_inherited`](crate::Error::is_inherited)).
    ///
    /// # Errors
    /// In the [`Edge`]: `DeviceMismatch` if the streams belong to different runtimes; `Closed`,
    /// `Fault` or `ShutDown` if this stream accepts no more work; `Captured` if this stream is
    /// being captured and `other` is not, or if another thread captures one of them; `Reentrant` in
    /// a host function.
    #[track_caller]
    #[inline]
    pub fn wait_stream(&self, other: &Stream) -> Edge {
        self.at(Site::here(&"wait_stream")).wait_stream(other)
    }

    /// Orders later work on this stream after `event`. The device waits; the host does not.
    ///
    /// # Errors
    /// The errors of [`wait_stream`](Self::wait_stream).
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Edge {
        let site = Site::here(&"wait_event");
        let core = self.core();
        let checked = core.check_can_wait(site, event.core());
        let place = checked.and_then(|()| core.wait_snapshot(site, event.snapshot()?));
        Edge(Pending::value(core, place, ()))
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
        let memory = memory.memory().0;
        let place = crate::shared::wait_for(core, site, memory)
            .unwrap_or_else(|| core.may_ask(site).and_then(|()| core.wait_for_uses(site, memory)));
        Edge(Pending::value(core, place, ()))
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
        let core = self.core();
        core.may_ask(site)?;
        core.refuse_captured(site, ASKED)?;
        let is_done = Pending::value(core, Ok(Place::here(core)), ()).query()?;
        match core.device.health.fault() {
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
        synchronize(core)
    }
}

impl At<'_> {
    /// Does the same as [`Stream::wait_stream`].
    #[inline]
    pub fn wait_stream(self, other: &Stream) -> Edge {
        let core = self.stream.core();
        Edge(Pending::value(core, core.wait_stream(self.site, other.core()), ()))
    }
}

/// The reason why a captured stream cannot be queried.
const ASKED: &str = "the stream is being captured, so none of its ops runs; await a launch of the \
    graph";

/// Awaits everything on the stream so far, and returns the errors that nobody has seen.
pub(crate) fn synchronize(core: &Arc<StreamCore>) -> Pending<()> {
    let place = Place::here(core);
    let here = place.clone();
    let on = core.clone();
    Pending::of_synchronize(core, place, move || {
        on.device.confirm_nothing_is_lost()?;
        let panics = &on.device.runtime.panics;
        let epoch = panics.epoch();
        let panicked = || panics.end_on(on.id, here.ticket);
        let follows = || here.panic_before(&on, epoch, Concern::OfOthers);
        on.refusals.take_unseen().or_else(panicked).or_else(follows).map_or(Ok(()), Err)
    })
}
