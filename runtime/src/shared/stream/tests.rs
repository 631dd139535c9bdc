//! Tests of the backlog and of progress, without a device. Their files are part of the loom
//! models, so they cannot hold them.

use super::backlog::{After, Backlog, Elsewhere, Item, Outcome};
use super::coming::{Coming, Recorded, Watched};
use super::progress::Progress;
use super::unwritten::Unwritten;
use crate::order::{AccessMode, ByteRange, Ledger, Site};
use crate::shared::{OwnedOperand, Tracked};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{
    Command, DeviceId, DriverError, DriverEvent, DriverStream, Error, ErrorKind, Point, Submission,
};

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn stream() -> Watched {
    Watched { timeline: Arc::default(), device: DeviceId::Cpu(0), health: Arc::default() }
}

fn submission(ticket: Ticket, command: Command) -> Submission {
    Submission { ticket, site: Site::here(&"test"), command, claims: None, caller: None }
}

fn wait(ticket: Ticket) -> Submission {
    let point = Point { timeline: Arc::new(Timeline::new()), ticket: 1, event: None };
    submission(ticket, Command::Wait(point))
}

#[test]
fn nothing_is_handed_over_before_the_first_item_and_then_all_in_order() {
    let (mut backlog, coming) = (Backlog::new(stream(), 0), Arc::new(Coming::on(stream())));
    backlog.hold_back(After::Event(coming.clone()), || None);
    backlog.submit(wait(1)).expect("it is not lost");
    backlog.put_marker(1);
    let behind = backlog.record().expect("it is not lost");
    assert!(Arc::ptr_eq(&behind, &backlog.record().expect("it is not lost")), "one place, one event");
    assert!(backlog.next().is_none());
    assert!(coming.fill(Recorded { event: Ok(None), unwritten: Unwritten::default() }).is_empty());
    let Some(Item::Work(mut work)) = backlog.next() else { panic!("the wait comes first") };
    let resolved = work.after.take().expect("it waited").resolve(&mut work.submission.command);
    assert!(matches!(resolved.outcome, Outcome::Ready) && resolved.stated);
    assert!(matches!(backlog.next(), Some(Item::Marker(1))));
    assert!(matches!(backlog.next(), Some(Item::Event(event)) if Arc::ptr_eq(&event, &behind)));
    assert!(backlog.next().is_none() && backlog.is_empty());
}

/// Holds a wait back for ticket 2 of `other`, calls `ends`, and returns what came of the wait.
fn wait_for(other: &Watched, wakes: &Arc<Wakes>, ends: impl FnOnce()) -> Outcome {
    let mut backlog = Backlog::new(stream(), 0);
    let place = Elsewhere { stream: other.clone(), ticket: 2, coming: None };
    backlog.hold_back(After::Elsewhere(place), || Some(Waker::from(wakes.clone())));
    backlog.submit(wait(1)).expect("it is not lost");
    assert!(backlog.next().is_none(), "the place is not reached");
    ends();
    let Some(Item::Work(mut work)) = backlog.next() else { panic!("the wait has ended") };
    work.after.take().expect("it waited").resolve(&mut work.submission.command).outcome
}

#[test]
fn a_place_of_another_backend_wakes_the_stream_when_it_is_reached() {
    let (other, wakes) = (stream(), Arc::<Wakes>::default());
    let outcome = wait_for(&other, &wakes, || {
        other.timeline.complete(1);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        other.timeline.complete(2);
    });
    assert!(matches!(outcome, Outcome::Ready) && wakes.0.load(Ordering::Relaxed) == 1);
}

#[test]
fn a_wait_for_a_place_that_is_never_reached_fails() {
    let other = stream();
    let given_up = Error::new(ErrorKind::Driver, "test");
    let outcome = wait_for(&other, &Arc::default(), || other.timeline.give_up(given_up));
    assert!(matches!(outcome, Outcome::Failed(error) if error.kind() == ErrorKind::Driver));
}

#[test]
fn a_lost_backlog_refuses_whatever_comes() {
    let mut backlog = Backlog::new(stream(), 0);
    backlog.hold_back(After::Memory(Arc::default()), || None);
    backlog.submit(submission(1, Command::Elided)).expect("it is not lost");
    assert_eq!(backlog.lose(DriverError::Refused("test".to_owned().into())).count(), 1);
    backlog.put_marker(1);
    assert!(backlog.is_lost() && backlog.is_empty());
    assert!(backlog.submit(submission(2, Command::Elided)).is_err() && backlog.record().is_err());
}

/// Memory that belongs to no device.
struct Memory(Ledger);

impl Tracked for Memory {
    fn ledger(&self) -> &Ledger {
        &self.0
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu(0)
    }
}

#[test]
fn bytes_stay_unwritten_until_an_op_overwrites_them_without_reading_them() {
    let memory: Arc<dyn Tracked> = Arc::new(Memory(Ledger::unknown()));
    let operand = |access, len| OwnedOperand::<Weak<dyn Tracked>> {
        allocation: Arc::downgrade(&memory),
        range: ByteRange::contiguous(0, len),
        access,
    };
    let mut unwritten = Unwritten::default();
    unwritten.add(&[operand(AccessMode::Write, 8)], &Error::new(ErrorKind::Full, "test"), true);
    let reads = |unwritten: &Unwritten| unwritten.read_by(&[operand(AccessMode::Read, 8)]).is_some();
    assert!(reads(&unwritten) && unwritten.read_by(&[operand(AccessMode::Write, 8)]).is_none());
    unwritten.overwritten_by(&[operand(AccessMode::ReadWrite, 8)], &[]);
    assert!(reads(&unwritten), "the op has read them");
    unwritten.overwritten_by(&[operand(AccessMode::Write, 4)], &[]);
    assert!(reads(&unwritten), "four bytes are left");
    unwritten.overwritten_by(&[operand(AccessMode::Write, 8)], &[]);
    assert!(!reads(&unwritten) && unwritten.is_empty());
}

/// A stream that is never called.
#[derive(Debug)]
struct Unused;

// SAFETY: it takes no work.
unsafe impl DriverStream for Unused {
    unsafe fn submit(&self, _: Submission) -> Result<(), DriverError> {
        unreachable!("nothing is submitted")
    }

    fn signal(&self, _: Ticket) {}

    fn record(&self) -> Result<Option<DriverEvent>, DriverError> {
        Ok(None)
    }
}

fn progress(is_signalled: bool) -> Progress {
    Progress::new(Arc::new(Unused), Arc::new(Timeline::new()), is_signalled)
}

#[test]
fn only_the_newest_ticket_that_something_waits_for_needs_a_marker_of_its_own() {
    let progress = progress(true);
    assert!(!progress.needs_marker(1));
    progress.note_awaited(1);
    assert!(progress.needs_marker(1) && !progress.needs_marker(2));
    progress.note_passed_on(1);
    assert!(!progress.needs_marker(1));
    progress.note_awaited(2);
    progress.note_passed_on(1);
    assert!(progress.needs_marker(2), "an older ticket was passed on");
    progress.stand_at(3);
    assert!(progress.needs_marker(3));
}

#[test]
fn nothing_needs_a_marker_on_a_device_that_completes_each_op() {
    let progress = progress(false);
    progress.note_awaited(1);
    progress.stand_at(1);
    assert!(!progress.needs_marker(1));
}
