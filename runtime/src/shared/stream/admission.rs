//! Admission to a stream: whether it is open and captured, the room on it, and foreign work.
//!
//! # Who may touch what, when
//! * `closed` is written under the stream's lock, once. `captured` and `capture` are written by
//!   the thread that captures. All are read by any thread. The lock of `capture` is a leaf.
//! * [`ForeignWork`] is under the stream's lock.

use crate::order::StreamId;
use crate::shared::CaptureToken;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use warpline_driver::timeline::Ticket;

/// The conditions on which a stream takes work, for threads that do not have its lock.
#[repr(C)]
pub(crate) struct Admission {
    /// True while the stream is being captured.
    captured: AtomicBool,
    closed: AtomicBool,
    /// True if the driver's stream is borrowed: its owner may use it as soon as a call has
    /// returned.
    is_borrowed: bool,
    room: Option<Box<Room>>,
    /// One word, because every op reads the fields beside it.
    capture: Box<Mutex<Option<Arc<CaptureToken>>>>,
}

/// The room on a stream that limits work in flight.
struct Room {
    /// A permit for each op that may be in flight, less those of ops that are.
    permits: Arc<Semaphore>,
    most: usize,
}

/// The error of an op that found no room.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) in_flight: usize,
    pub(super) most: usize,
}

impl Admission {
    pub(super) fn new(is_borrowed: bool, max_in_flight: Option<usize>) -> Self {
        let room = |most| Box::new(Room { permits: Arc::new(Semaphore::new(most)), most });
        Admission {
            captured: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            is_borrowed,
            room: max_in_flight.map(room),
            capture: Box::default(),
        }
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the stream. The caller has its lock.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_borrowed(&self) -> bool {
        self.is_borrowed
    }

    /// Returns the permits for the room on this stream, if it limits work in flight.
    pub(crate) fn room(&self) -> Option<&Arc<Semaphore>> {
        self.room.as_ref().map(|room| &room.permits)
    }

    /// Takes room for one more op, if this stream limits work in flight. A permit that this thread
    /// has brought along comes first.
    #[inline]
    pub(super) fn take_room(&self, stream: StreamId) -> Result<Option<OwnedSemaphorePermit>, Full> {
        let Some(room) = &self.room else { return Ok(None) };
        if let Some(permit) = super::permits::take_permit(stream) {
            return Ok(Some(permit));
        }
        let Room { permits, most } = &**room;
        let full = |_| Full { in_flight: most - permits.available_permits(), most: *most };
        permits.clone().try_acquire_owned().map(Some).map_err(full)
    }

    #[inline]
    pub(super) fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    /// Puts the stream into a capture. Returns the other one that it is in, if there is one: two
    /// threads may call this at the same time.
    pub(super) fn begin_capture(&self, capture: Arc<CaptureToken>) -> Result<(), Arc<CaptureToken>> {
        let mut of = self.capture.lock();
        if let Some(other) = &*of {
            return Err(other.clone());
        }
        *of = Some(capture);
        self.captured.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn end_capture(&self) {
        self.captured.store(false, Ordering::Relaxed);
        *self.capture.lock() = None;
    }

    /// Returns the capture that the stream is in.
    #[cold]
    pub(super) fn capture(&self) -> Option<Arc<CaptureToken>> {
        self.capture.lock().clone()
    }
}

/// Foreign work that is being put on a stream.
pub(crate) struct ForeignWork {
    /// The thread that does it.
    by: ThreadId,
    /// Its first ticket; 0 if it has none yet.
    from: Ticket,
}

impl Default for ForeignWork {
    /// Begins foreign work by this thread.
    fn default() -> Self {
        ForeignWork { by: std::thread::current().id(), from: 0 }
    }
}

impl ForeignWork {
    /// Returns whether this thread does the work.
    pub(super) fn is_here(&self) -> bool {
        self.by == std::thread::current().id()
    }

    /// Notes that this ticket was issued.
    pub(super) fn note_ticket(&mut self, ticket: Ticket) {
        if self.from == 0 {
            self.from = ticket;
        }
    }

    /// Returns the newest ticket before the work, if the work has one.
    pub(super) fn newest_before(&self) -> Option<Ticket> {
        self.from.checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Observed;
    use crate::shared::stream::with_permit;

    #[test]
    fn room_is_taken_until_it_is_full_and_a_permit_brought_along_comes_first() {
        let stream = Observed::default().admit().expect("few streams are live");
        let admission = Admission::new(false, Some(2));
        let first = admission.take_room(stream).expect("there is room");
        let permit = admission.room().expect("it limits").clone().try_acquire_owned().expect("room");
        assert_eq!(admission.take_room(stream).err(), Some(Full { in_flight: 2, most: 2 }));
        with_permit(stream, permit, || {
            assert!(admission.take_room(stream).is_ok_and(|permit| permit.is_some()));
        });
        drop(first);
        assert!(admission.take_room(stream).is_ok());
        assert!(Admission::new(false, None).take_room(stream).is_ok_and(|permit| permit.is_none()));
    }

    #[test]
    fn a_place_noted_during_foreign_work_stands_before_it() {
        let mut foreign = ForeignWork::default();
        assert!(foreign.is_here() && foreign.newest_before().is_none());
        foreign.note_ticket(4);
        foreign.note_ticket(5);
        assert_eq!(foreign.newest_before(), Some(3));
    }

    #[test]
    fn a_stream_is_in_one_capture() {
        let admission = Admission::new(false, None);
        let [one, other] = [(); 2].map(|()| Arc::new(CaptureToken::new(|_, _| None)));
        assert!(admission.begin_capture(one.clone()).is_ok() && admission.is_captured());
        let refused = admission.begin_capture(other.clone()).expect_err("it is in the other");
        assert!(Arc::ptr_eq(&refused, &one));
        admission.end_capture();
        assert!(!admission.is_captured() && admission.begin_capture(other).is_ok());
    }
}
