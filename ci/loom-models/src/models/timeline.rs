//! A waiter is woken or sees the word; a kept value is released once.

use crate::Error;
use crate::health::Health;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use crate::timeline::{Timeline, Until};
use loom::thread;
use std::task::{Poll, Wake, Waker};

pub(super) struct Woken(pub(super) AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

pub(super) fn waker() -> (Arc<Woken>, Waker) {
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    (woken.clone(), Waker::from(woken))
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn no_wake_is_lost_between_registering_and_completing() {
    loom::model(|| {
        let timeline = Arc::new(Timeline::new());
        let completer = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.complete(1)
        });
        let (woken, waker) = waker();
        let mut registration = None;
        let first = timeline.register(1, &waker, &mut registration);
        completer.join().unwrap();
        assert!(first.is_ready() || woken.0.load(Ordering::Acquire), "asleep for ever");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn two_waiters_for_two_tickets_are_both_woken() {
    loom::model(|| {
        let timeline = Arc::new(Timeline::new());
        let completer = thread::spawn({
            let timeline = timeline.clone();
            move || {
                timeline.complete_quietly(1).run();
                timeline.complete(2);
            }
        });
        let other = thread::spawn({
            let timeline = timeline.clone();
            move || {
                let (woken, waker) = waker();
                (timeline.register(2, &waker, &mut None), woken)
            }
        });
        let (woken, waker) = waker();
        let first = timeline.register(1, &waker, &mut None);
        completer.join().unwrap();
        let (second, other_woken) = other.join().unwrap();
        assert!(first.is_ready() || woken.0.load(Ordering::Acquire));
        assert!(second.is_ready() || other_woken.0.load(Ordering::Acquire));
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn quiet_completion_loses_no_wake() {
    loom::model(|| {
        let timeline = Arc::new(Timeline::new());
        let completer = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.complete_quietly(1).run()
        });
        let (woken, waker) = waker();
        let first = timeline.register(1, &waker, &mut None);
        completer.join().unwrap();
        assert!(first.is_ready() || woken.0.load(Ordering::Acquire));
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn deregistering_while_it_completes_leaves_nothing_behind() {
    loom::model(|| {
        let timeline = Arc::new(Timeline::new());
        let completer = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.complete(1)
        });
        let (_, waker) = waker();
        let mut registration = None;
        let _ = timeline.register(1, &waker, &mut registration);
        timeline.deregister(&mut registration);
        completer.join().unwrap();
        assert_eq!(timeline.waiting_len(), (0, 0));
    });
}

pub(super) struct CountsDrops(pub(super) Arc<AtomicU64>);

impl Drop for CountsDrops {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_kept_value_is_let_go_once_and_not_before_its_ticket() {
    loom::model(|| {
        let timeline = Arc::new(Timeline::new());
        let drops = Arc::new(AtomicU64::new(0));
        let submitted = Arc::new(AtomicU64::new(1));
        timeline.keep_until(1, Arc::new(CountsDrops(drops.clone())), Until::Over);
        let device = thread::spawn({
            let (timeline, submitted) = (timeline.clone(), submitted.clone());
            move || {
                timeline.complete(1);
                if submitted.load(Ordering::Acquire) == 2 {
                    timeline.complete(2);
                    return true;
                }
                false
            }
        });
        timeline.keep_until(2, Arc::new(CountsDrops(drops.clone())), Until::Over);
        submitted.store(2, Ordering::Release);
        let both = device.join().unwrap();
        assert_eq!(drops.load(Ordering::Acquire), if both { 2 } else { 1 });
        timeline.complete(2);
        assert_eq!(drops.load(Ordering::Acquire), 2);
        assert_eq!(timeline.waiting_len(), (0, 0));
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_failure_is_seen_or_wakes() {
    loom::model(|| {
        let timeline = Arc::new(Timeline::new());
        let health = Arc::new(Health::default());
        health.watch(&timeline);
        let failing = thread::spawn({
            let health = health.clone();
            move || health.fail(Error)
        });
        let (woken, waker) = waker();
        let first = timeline.register(1, &waker, &mut None);
        let seen = health.fault().is_some();
        assert_eq!(first, Poll::Pending);
        failing.join().unwrap();
        assert!(seen || woken.0.load(Ordering::Acquire), "asleep on a failed device");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_value_kept_for_a_ticket_that_is_being_reached_is_let_go() {
    loom::model(|| {
        let timeline = Arc::new(Timeline::new());
        let drops = Arc::new(AtomicU64::new(0));
        let device = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.complete(1)
        });
        timeline.keep_until_last(1, Arc::new(CountsDrops(drops.clone())));
        device.join().unwrap();
        assert_eq!(drops.load(Ordering::Acquire), 1, "held for ever");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_value_kept_on_a_timeline_that_is_given_up_is_let_go() {
    loom::model(|| {
        let timeline = Arc::new(Timeline::new());
        let drops = Arc::new(AtomicU64::new(0));
        let device = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.abandon()
        });
        timeline.keep_until_last(1, Arc::new(CountsDrops(drops.clone())));
        device.join().unwrap();
        assert_eq!(drops.load(Ordering::Acquire), 1, "held for ever");
    });
}
