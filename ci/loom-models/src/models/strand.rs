//! A strand has one owner at a time, and all of its work runs.

use crate::strand::Strand;
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::timeline::Timeline;
use loom::cell::UnsafeCell;
use loom::thread;
use std::collections::VecDeque;
use std::task::{Wake, Waker};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Op(u64),
    /// A wait until the stream's gate reaches this ticket.
    Wait(u64),
}

struct Stream {
    strand: Strand<Work>,
    gate: Timeline,
    /// The work that ran, in order. Loom fails the model if two owners touch it at the same time.
    ran: UnsafeCell<Vec<u64>>,
    count: AtomicU64,
}

// SAFETY: only the strand's owner touches `ran`, which the models check.
unsafe impl Sync for Stream {}
// SAFETY: only the strand's owner touches `ran`, and no field belongs to one thread.
unsafe impl Send for Stream {}

impl Stream {
    fn new() -> Arc<Self> {
        Arc::new(Stream {
            strand: Strand::new(),
            gate: Timeline::new(),
            ran: UnsafeCell::new(Vec::new()),
            count: AtomicU64::new(0),
        })
    }

    fn push(self: &Arc<Self>, work: Work) {
        if self.strand.push(work) {
            self.run();
        }
    }

    /// Stands in for the run queue: the thread that would queue the strand runs it immediately. The
    /// production owner in `stream.rs` takes the same steps.
    fn run(self: &Arc<Self>) {
        let mut batch = VecDeque::new();
        self.strand.begin(&mut batch);
        loop {
            while let Some(head) = batch.front().copied() {
                match head {
                    Work::Wait(ticket) if !self.gate.reached(ticket) => {
                        self.strand.park(&mut batch);
                        let waker = Waker::from(self.clone());
                        if self.gate.register(ticket, &waker, &mut None).is_ready() {
                            self.wake_by_ref();
                        }
                        return;
                    }
                    Work::Wait(_) => {}
                    Work::Op(n) => {
                        // SAFETY: this thread holds the running token; loom checks that no other
                        // thread does.
                        self.ran.with_mut(|ran| unsafe { (*ran).push(n) });
                        self.count.fetch_add(1, Ordering::Relaxed);
                    }
                }
                batch.pop_front();
            }
            if !self.strand.take(&mut batch) {
                return;
            }
        }
    }

    fn ran(&self) -> Vec<u64> {
        // SAFETY: the model's threads have been joined.
        self.ran.with(|ran| unsafe { (*ran).clone() })
    }
}

impl Wake for Stream {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.strand.wake() {
            self.run();
        }
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn work_pushed_while_the_owner_goes_idle_is_run_once_and_in_order() {
    loom::model(|| {
        let stream = Stream::new();
        let other = thread::spawn({
            let stream = stream.clone();
            move || {
                stream.push(Work::Op(10));
                stream.push(Work::Op(11));
            }
        });
        stream.push(Work::Op(1));
        other.join().unwrap();
        let ran = stream.ran();
        assert_eq!(ran.len(), 3, "{ran:?}");
        let others: Vec<_> = ran.into_iter().filter(|n| *n >= 10).collect();
        assert_eq!(others, [10, 11]);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn parking_while_the_gate_opens_loses_nothing() {
    loom::model(|| {
        let stream = Stream::new();
        let opener = thread::spawn({
            let stream = stream.clone();
            move || stream.gate.complete(1)
        });
        stream.push(Work::Wait(1));
        stream.push(Work::Op(1));
        opener.join().unwrap();
        assert_eq!(stream.ran(), [1]);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn spurious_wakes_never_make_two_owners() {
    loom::model(|| {
        let stream = Stream::new();
        let kick = thread::spawn({
            let stream = stream.clone();
            move || stream.wake_by_ref()
        });
        let opener = thread::spawn({
            let stream = stream.clone();
            move || stream.gate.complete(1)
        });
        stream.push(Work::Wait(1));
        stream.push(Work::Op(1));
        kick.join().unwrap();
        opener.join().unwrap();
        assert_eq!(stream.ran(), [1]);
    });
}
