//! The warnings that a `tracing` subscriber gets.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, SubscriberExt};
use warpline::prelude::*;

/// A subscriber layer that keeps the messages of warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == tracing::Level::WARN {
            let mut message = Message(String::new());
            event.record(&mut message);
            self.0.lock().unwrap().push(message.0);
        }
    }
}

impl Warnings {
    /// Returns the warnings that `f` causes on this thread.
    fn of(f: impl FnOnce()) -> Vec<String> {
        let warnings = Warnings::default();
        let subscriber = tracing_subscriber::registry().with(warnings.clone());
        tracing::subscriber::with_default(subscriber, f);
        let messages = warnings.0.lock().unwrap();
        messages.clone()
    }
}

fn capped() -> (Runtime, Device) {
    let runtime = Runtime::builder().pinned_cap(1 << 20).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    (runtime, device)
}

const ADVICE: &str = "cached buffers are freed to make room, which is slow, requests wait for copies in \
    flight, and what does not fit beside buffers in use is refused; drop pinned buffers, await the copies that hold them, or raise pinned_cap";

#[test]
fn pinned_memory_warns_once_when_a_request_is_beyond_its_cap() {
    let (_runtime, device) = capped();
    let warnings = Warnings::of(|| {
        let held = device.blocking_pinned::<u8>(300 << 10).unwrap();
        let _same = device.blocking_pinned::<u8>(512 << 10).unwrap();
        for _ in 0..2 {
            assert_eq!(device.blocking_pinned::<u8>(4096).unwrap_err().kind(), ErrorKind::OutOfMemory);
        }
        drop(held);
    });
    let text =
        "the pinned memory of cpu:0 has reached its cap: 4.0 KiB asked, 1.0 MiB page-locked of 1.0 MiB; ";
    assert_eq!(warnings, [text.to_owned() + ADVICE]);
}

#[test]
fn pinned_memory_warns_when_cached_buffers_give_way_to_another_length() {
    let (_runtime, device) = capped();
    let warnings = Warnings::of(|| {
        drop(device.blocking_pinned::<u8>(600 << 10).unwrap());
        drop(device.blocking_pinned::<u8>(600 << 10).unwrap());
    });
    assert_eq!(warnings, <[String; 0]>::default(), "exactly the cap is in use");
    let warnings = Warnings::of(|| {
        let stream = device.new_stream().unwrap();
        let x = stream.alloc_zeroed::<u8>(100 << 10).unwrap();
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), vec![0; 100 << 10]);
    });
    let text =
        "the pinned memory of cpu:0 has reached its cap: 100 KiB asked, 1.0 MiB page-locked of 1.0 MiB; ";
    assert_eq!(warnings, [text.to_owned() + ADVICE]);
}

#[test]
fn a_subscriber_may_use_the_pool_that_warns() {
    /// Allocates in the handler of each warning.
    struct Allocates(Device);

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Allocates {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            if *event.metadata().level() == tracing::Level::WARN {
                assert_eq!(self.0.pinned_stats().reserved_bytes, 1 << 20);
                assert!(self.0.blocking_pinned::<u8>(4096).is_err());
            }
        }
    }

    crate::support::within_a_minute(|| {
        let (_runtime, device) = capped();
        let held = device.blocking_pinned::<u8>(1 << 20).unwrap();
        let subscriber = tracing_subscriber::registry().with(Allocates(device.clone()));
        let refused = || device.blocking_pinned::<u8>(8192).map(drop);
        let error = tracing::subscriber::with_default(subscriber, refused).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        drop(held);
    });
}

#[test]
fn random_numbers_in_a_capture_warn_once_for_each_line() {
    let runtime = Runtime::builder().build().unwrap();
    let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
    let x = stream.enter(|| Tensor::zeros([4], &stream.device())).queued().unwrap();
    let warnings = Warnings::of(|| {
        drop(stream.enter(|| x.normal_(0.0, 1.0)));
        for _ in 0..2 {
            let captured = stream.capture(|_| drop((x.normal_(0.0, 1.0), x.fill_(1.0))));
            drop(captured.unwrap());
        }
    });
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    let parts = [
        "normal_ on stream \"stream 1\" (tests/errors/warnings.rs:",
        ") is captured: each launch of the graph writes the same random numbers, those of the capture",
    ];
    for part in parts {
        assert!(warning.contains(part), "{part:?} is not in {warning:?}");
    }
}
