//! A process whose tracing subscriber panics on a worker thread.

use crate::support::refusal;
use crate::support::software::in_child;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::layer::{Context, SubscriberExt};
use warpline::prelude::*;

/// A subscriber layer that panics once, at the first op event on a thread of this name.
struct PanicsOnce(&'static str, AtomicBool);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for PanicsOnce {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let is_there = std::thread::current().name().is_some_and(|name| name.starts_with(self.0));
        if is_there && event.metadata().target() == "warpline::op" && !self.1.swap(true, Ordering::Relaxed) {
            panic!("a subscriber panics");
        }
    }
}

#[test]
fn a_subscriber_that_panics_on_a_worker_is_a_fault_of_that_device_alone() {
    in_child(&[], || panics_and_spares_others("warpline-cpu"));
}

#[test]
fn so_is_one_that_panics_on_the_thread_of_host_functions() {
    in_child(&[], || panics_and_spares_others("warpline-call"));
}

fn panics_and_spares_others(thread: &'static str) {
    let subscriber = tracing_subscriber::registry().with(PanicsOnce(thread, AtomicBool::new(false)));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let failing = Runtime::builder().build().unwrap();
    let stream = failing.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
    let memory = stream.alloc::<u8>(8).unwrap();
    let gate = stream.hold().unwrap();
    let (copied, called) = (stream.fill(&memory, 1), stream.call(|| 2));
    gate.open();
    if thread == "warpline-cpu" {
        assert_eq!(refusal(copied).kind(), ErrorKind::Fault);
    }
    assert_eq!(refusal(called).kind(), ErrorKind::Fault);

    let working = Runtime::builder().build().unwrap();
    let stream = working.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
    stream.fill(&stream.alloc::<u8>(8).unwrap(), 1).blocking_wait().unwrap();
    assert_eq!(stream.call(|| 3).blocking_wait().unwrap(), 3);
}
