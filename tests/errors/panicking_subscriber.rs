//! A process whose tracing subscriber panics on a worker thread.

use crate::support::refusal;
use crate::support::software::in_child;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::layer::{Context, SubscriberExt};
use warpline::prelude::*;

/// A subscriber layer that panics once, at the first op event on a worker thread.
struct PanicsOnce(AtomicBool);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for PanicsOnce {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let on_worker = std::thread::current().name().is_some_and(|name| name.starts_with("warpline-cpu"));
        if on_worker && event.metadata().target() == "warpline::op" && !self.0.swap(true, Ordering::Relaxed) {
            panic!("a subscriber panics");
        }
    }
}

#[test]
fn a_subscriber_that_panics_on_a_worker_is_a_fault_of_that_device_alone() {
    in_child(&[], || {
        let subscriber = tracing_subscriber::registry().with(PanicsOnce(AtomicBool::new(false)));
        tracing::subscriber::set_global_default(subscriber).unwrap();
        let failing = Runtime::builder().build().unwrap();
        let stream = failing.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let (first, second) = (stream.call(|| 1), stream.call(|| 2));
        assert_eq!(refusal(first).kind(), ErrorKind::Fault);
        assert_eq!(refusal(second).kind(), ErrorKind::Fault);

        let working = Runtime::builder().build().unwrap();
        let stream = working.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        assert_eq!(stream.call(|| 3).blocking_wait().unwrap(), 3);
    });
}
