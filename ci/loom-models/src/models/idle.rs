//! Work that is brought is taken by somebody: a worker that would sleep for ever shows as a deadlock.

use crate::idle::{Bed, Brought, Idle};
use crate::sync::{Arc, AtomicUsize, Ordering, Parker};
use loom::thread;

/// The weakest run queue there can be: it orders nothing.
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

    fn sleep(&self, me: usize, parker: &Parker) {
        if let Bed::Made(_) = self.idle.make_bed(me, parker.unparker(), || self.has_work()) {
            parker.park();
            self.idle.leave_bed(me);
        }
    }

    /// The steps of `workers.rs`, until `count` items were taken.
    fn work(&self, me: usize, count: usize, lingers: bool) {
        let parker = Parker::new();
        let mut taken = 0;
        while taken < count {
            if self.take() {
                taken += 1;
                continue;
            }
            if lingers && self.idle.start_lingering() {
                let found = self.has_work();
                self.idle.stop_lingering();
                if found {
                    continue;
                }
            }
            self.sleep(me, &parker);
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
fn a_lingerer_that_gives_up_does_not_miss_work() {
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

/// The lingerer takes one item and is busy for good; the second must find the other worker.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn work_that_counted_on_the_lingerer_is_passed_on_when_it_gets_busy() {
    loom::model(|| {
        let queue = Queue::new(1);
        assert!(queue.idle.start_lingering());
        let other = thread::spawn({
            let queue = queue.clone();
            move || queue.work(1, 1, false)
        });
        let lingerer = thread::spawn({
            let queue = queue.clone();
            move || {
                queue.take();
                queue.idle.stop_lingering();
                if queue.has_work() {
                    queue.idle.bring();
                }
            }
        });
        queue.put();
        lingerer.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn two_workers_and_two_items_leave_nobody_asleep() {
    loom::model(|| {
        let queue = Queue::new(0);
        let workers = [0, 1].map(|me| {
            thread::spawn({
                let queue = queue.clone();
                move || queue.work(me, 1, false)
            })
        });
        queue.put();
        queue.put();
        for worker in workers {
            worker.join().unwrap();
        }
    });
}
