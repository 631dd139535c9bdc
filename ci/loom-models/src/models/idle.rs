//! Workers take all work that is submitted. A worker that would sleep for ever shows as a deadlock.

use crate::idle::{Bed, Brought, Idle};
use crate::sync::{Arc, AtomicUsize, Ordering, Parker};
use loom::thread;

/// A run queue with the weakest possible ordering: all of its accesses are relaxed.
struct Queue {
    idle: Idle,
    items: AtomicUsize,
}

impl Queue {
    fn new(items: usize) -> Arc<Self> {
        Arc::new(Queue { idle: Idle::new(), items: AtomicUsize::new(items) })
    }

    fn has_work(&self) -> bool {
        self.items.load(Ordering::Relaxed) > 0
    }

    fn take(&self) -> bool {
        let one_less = |items: usize| items.checked_sub(1);
        self.items.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn put(&self) -> Brought {
        self.items.fetch_add(1, Ordering::Relaxed);
        self.idle.bring()
    }

    fn look_again(&self) {
        if self.has_work() {
            self.idle.bring();
        }
    }

    /// Takes the steps of a worker in `workers.rs` until it has taken `count` items. The last item
    /// keeps the worker busy for ever.
    fn work(&self, me: usize, count: usize, attends: bool) {
        let parker = Parker::here();
        let (mut taken, mut attentive, mut is_up) = (0, false, false);
        while taken < count {
            if self.take() {
                taken += 1;
                if std::mem::take(&mut attentive) {
                    self.idle.stop_attending();
                    self.look_again();
                } else if std::mem::take(&mut is_up) {
                    self.look_again();
                }
                continue;
            }
            attentive = attentive || (attends && self.idle.attend());
            if attentive {
                if self.has_work() {
                    continue;
                }
                attentive = false;
                self.idle.stop_attending();
            }
            is_up = true;
            if let Bed::Made(_) = self.idle.make_bed(me, parker.unparker(), || self.has_work()) {
                parker.park();
                attentive = attends && self.idle.attend();
                self.idle.leave_bed(me);
            }
        }
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_worker_that_parks_does_not_miss_work() {
    loom::model(|| {
        let queue = Queue::new(0);
        let worker = thread::spawn({
            let queue = queue.clone();
            move || queue.work(0, 2, false)
        });
        queue.put();
        queue.put();
        worker.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn an_attentive_worker_that_gives_up_does_not_miss_work() {
    loom::model(|| {
        let queue = Queue::new(0);
        let worker = thread::spawn({
            let queue = queue.clone();
            move || queue.work(0, 1, true)
        });
        queue.put();
        worker.join().unwrap();
    });
}

/// The attentive worker takes an item and stays busy; the second item must reach the other worker.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn work_that_counted_on_the_attentive_one_is_passed_on_when_it_gets_busy() {
    loom::model(|| {
        let queue = Queue::new(1);
        assert!(queue.idle.attend());
        let other = thread::spawn({
            let queue = queue.clone();
            move || queue.work(1, 1, false)
        });
        let attentive = thread::spawn({
            let queue = queue.clone();
            move || {
                queue.take();
                queue.idle.stop_attending();
                queue.look_again();
            }
        });
        queue.put();
        attentive.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn two_workers_and_two_items_leave_nobody_asleep() {
    two_workers_and_two_items(false);
}

/// Like the test before, but a worker that finds no work, or is woken, tries to become attentive.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn two_attentive_workers_and_two_items_leave_nobody_asleep() {
    two_workers_and_two_items(true);
}

fn two_workers_and_two_items(attends: bool) {
    loom::model(move || {
        let queue = Queue::new(0);
        let workers = [0, 1].map(|me| {
            thread::spawn({
                let queue = queue.clone();
                move || queue.work(me, 1, attends)
            })
        });
        queue.put();
        queue.put();
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// The last worker ends only once the strand that is away has come back, and does end then.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_worker_ends_after_the_work_that_is_away_is_back() {
    loom::model(|| {
        let queue = Queue::new(0);
        queue.idle.goes_away();
        let worker = thread::spawn({
            let queue = queue.clone();
            move || {
                let parker = Parker::here();
                loop {
                    if queue.take() {
                        return;
                    }
                    let Bed::Made(_) = queue.idle.make_bed(0, parker.unparker(), || queue.has_work()) else {
                        continue;
                    };
                    if queue.idle.is_closing() && !queue.idle.is_work_away() {
                        queue.idle.leave_bed(0);
                        assert!(queue.has_work(), "the work that came back is lost");
                        continue;
                    }
                    parker.park();
                    queue.idle.leave_bed(0);
                }
            }
        });
        let host = thread::spawn({
            let queue = queue.clone();
            move || {
                queue.put();
                queue.idle.is_back(1);
            }
        });
        queue.idle.close();
        worker.join().unwrap();
        host.join().unwrap();
    });
}

/// The strand that is away becomes idle: nothing comes back, so only the count wakes the worker.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_worker_ends_after_the_work_that_was_away_has_ended() {
    loom::model(|| {
        let queue = Queue::new(0);
        queue.idle.goes_away();
        let worker = thread::spawn({
            let queue = queue.clone();
            move || {
                let parker = Parker::here();
                while let Bed::Made(_) = queue.idle.make_bed(0, parker.unparker(), || false) {
                    if queue.idle.is_closing() && !queue.idle.is_work_away() {
                        return;
                    }
                    parker.park();
                    queue.idle.leave_bed(0);
                }
            }
        });
        let host = thread::spawn({
            let queue = queue.clone();
            move || queue.idle.is_back(1)
        });
        queue.idle.close();
        worker.join().unwrap();
        host.join().unwrap();
    });
}
