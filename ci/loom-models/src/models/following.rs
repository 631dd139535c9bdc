//! A timeline that follows a device: pollers and the reactor complete it together, and no waiter
//! sleeps for ever.

use super::timeline::{CountsDrops, waker};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::timeline::{Progress, Ticket, Timeline, Until};
use crate::watch::Watch;
use loom::thread;

/// A device whose word the model writes, and the reactor's channel: the number of times the stream
/// was handed to the reactor.
struct Device {
    word: AtomicU64,
    watch: Watch,
    handed_over: Mutex<u32>,
}

impl Progress for Device {
    fn reached(&self) -> Ticket {
        self.word.load(Ordering::Acquire)
    }

    fn wanted(&self) {
        if self.watch.want() {
            *self.handed_over.lock() += 1;
        }
    }
}

impl Device {
    fn timeline() -> (Arc<Device>, Arc<Timeline>) {
        let device =
            Arc::new(Device { word: AtomicU64::new(0), watch: Watch::new(), handed_over: Mutex::new(0) });
        let timeline = Arc::new(Timeline::new());
        timeline.follow(device.clone());
        (device, timeline)
    }

    /// Lets the reactor look once at a stream that it watches. Returns whether it stopped watching.
    fn look(&self, timeline: &Timeline) -> bool {
        let reached = self.reached();
        if reached > timeline.completed() {
            timeline.complete_shared(reached);
        }
        self.watch.rest(|| timeline.is_wanted())
    }

    /// Runs the reactor after all other threads have ended. It looks at the stream until it stops
    /// watching it. `looks_after` says whether it watches the stream at first.
    fn look_until_at_rest(&self, timeline: &Timeline, mut looks_after: bool) {
        for _ in 0..8 {
            if std::mem::take(&mut *self.handed_over.lock()) > 0 {
                looks_after = true;
            }
            if !looks_after {
                return;
            }
            looks_after = !self.look(timeline);
        }
        panic!("the reactor never rests");
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn the_reactor_never_turns_away_from_one_who_waits() {
    loom::model(|| {
        let (device, timeline) = Device::timeline();
        // The reactor watches the stream for a waiter that has gone since.
        assert!(device.watch.want());
        let reactor = thread::spawn({
            let (device, timeline) = (device.clone(), timeline.clone());
            move || device.look(&timeline)
        });
        let (woken, waker) = waker();
        let waits = timeline.register(1, &waker, &mut None).is_pending();
        let turned_away = reactor.join().unwrap();
        device.word.store(1, Ordering::Release);
        device.look_until_at_rest(&timeline, !turned_away);
        assert!(waits && woken.0.load(Ordering::Acquire), "asleep for ever");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn one_who_registers_while_the_reactor_completes_is_woken() {
    loom::model(|| {
        let (device, timeline) = Device::timeline();
        assert!(device.watch.want());
        device.word.store(1, Ordering::Release);
        let reactor = thread::spawn({
            let (device, timeline) = (device.clone(), timeline.clone());
            move || device.look(&timeline)
        });
        let (woken, waker) = waker();
        let first = timeline.register(1, &waker, &mut None);
        let turned_away = reactor.join().unwrap();
        device.look_until_at_rest(&timeline, !turned_away);
        assert!(first.is_ready() || woken.0.load(Ordering::Acquire), "asleep for ever");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_kept_value_is_let_go_though_the_reactor_was_turning_away() {
    loom::model(|| {
        let (device, timeline) = Device::timeline();
        assert!(device.watch.want());
        let reactor = thread::spawn({
            let (device, timeline) = (device.clone(), timeline.clone());
            move || device.look(&timeline)
        });
        let drops = Arc::new(AtomicU64::new(0));
        timeline.keep_until(1, Arc::new(CountsDrops(drops.clone())), Until::Over);
        let turned_away = reactor.join().unwrap();
        device.word.store(1, Ordering::Release);
        device.look_until_at_rest(&timeline, !turned_away);
        assert_eq!(drops.load(Ordering::Acquire), 1);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_poller_and_the_reactor_complete_together_and_lose_no_wake() {
    loom::model(|| {
        let (device, timeline) = Device::timeline();
        let writer = thread::spawn({
            let device = device.clone();
            move || device.word.store(2, Ordering::Release)
        });
        let poller = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.settle(2)
        });
        let (woken, waker) = waker();
        let first = timeline.register(1, &waker, &mut None);
        writer.join().unwrap();
        poller.join().unwrap();
        device.look_until_at_rest(&timeline, false);
        assert!(first.is_ready() || woken.0.load(Ordering::Acquire), "asleep for ever");
        assert!(first.is_ready() || timeline.completed() == 2);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn one_who_leaves_the_list_does_not_make_a_ticket_settled_too_early() {
    loom::model(|| {
        let (device, timeline) = Device::timeline();
        let drops = Arc::new(AtomicU64::new(0));
        timeline.keep_until(1, Arc::new(CountsDrops(drops.clone())), Until::Over);
        let (_, waker) = waker();
        let mut registration = None;
        assert!(timeline.register(1, &waker, &mut registration).is_pending());
        device.word.store(2, Ordering::Release);
        let completer = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.complete_shared(2)
        });
        let leaver = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.deregister(&mut registration)
        });
        if timeline.settle(1) {
            assert_eq!(drops.load(Ordering::Acquire), 1, "reached, and still kept");
        }
        completer.join().unwrap();
        leaver.join().unwrap();
        assert_eq!(timeline.waiting_len(), (0, 0));
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn who_sees_a_ticket_settled_finds_what_it_kept_let_go() {
    loom::model(|| {
        let (device, timeline) = Device::timeline();
        let drops = Arc::new(AtomicU64::new(0));
        timeline.keep_until(1, Arc::new(CountsDrops(drops.clone())), Until::Over);
        device.word.store(2, Ordering::Release);
        let other = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.complete_shared(2)
        });
        if timeline.settle(1) {
            assert_eq!(drops.load(Ordering::Acquire), 1, "reached, and still kept");
        }
        other.join().unwrap();
        assert_eq!(drops.load(Ordering::Acquire), 1);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_late_collector_does_not_make_a_later_ticket_settled_too_early() {
    loom::model(|| {
        let (device, timeline) = Device::timeline();
        let drops = Arc::new(AtomicU64::new(0));
        for ticket in [1, 2] {
            timeline.keep_until(ticket, Arc::new(CountsDrops(drops.clone())), Until::Over);
        }
        device.word.store(1, Ordering::Release);
        let first = thread::spawn({
            let timeline = timeline.clone();
            move || timeline.complete_shared(1)
        });
        let second = thread::spawn({
            let (device, timeline) = (device.clone(), timeline.clone());
            move || {
                device.word.store(2, Ordering::Release);
                timeline.settle(2)
            }
        });
        if timeline.settle(2) {
            assert_eq!(drops.load(Ordering::Acquire), 2, "reached, and still kept");
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}
