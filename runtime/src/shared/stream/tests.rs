//! Tests of the backlog. Its file is part of the loom models, so it cannot hold them.

use super::backlog::{After, Backlog, Elsewhere, Item, Outcome};
use super::coming::{Coming, Recorded, Watched};
use super::unwritten::Unwritten;
use crate::order::Site;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{Command, DeviceId, DriverError, Error, ErrorKind, Point, Submission};

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
    Submission { ticket, site: Site::here(&"test"), command, claims: None }
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
