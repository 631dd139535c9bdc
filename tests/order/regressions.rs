//! Situations that once went wrong. Each test is named after what broke.

use crate::support::software::in_child;
use crate::support::{block_on, refusal, says, within_a_minute};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use tracing_subscriber::layer::SubscriberExt;
use warpline::prelude::*;
use warpline::{reads, writes};

fn two_devices(builder: warpline::RuntimeBuilder) -> (Runtime, [Device; 2]) {
    let runtime = builder.cpu_devices(2).build().unwrap();
    let devices = runtime.devices().try_into().unwrap();
    (runtime, devices)
}

#[test]
fn a_copy_between_devices_holds_the_memory_of_both() {
    within_a_minute(|| {
        let (runtime, [here, there]) = two_devices(Runtime::builder());
        let (source, stream) = (here.new_stream().unwrap(), there.new_stream().unwrap());
        let x = source.alloc::<f32>(4 << 20).unwrap();
        let y = stream.alloc::<f32>(4 << 20).unwrap();
        source.fill(&x, 1.5).blocking_wait().unwrap();
        let gate = stream.hold().unwrap();
        let copied = stream.copy_buffer_peer(&y, &x);
        let read = stream.read(&y);
        drop((x, source, here));
        // Before the runtime, which may end what is behind a closed gate.
        gate.open();
        drop(runtime);
        copied.blocking_wait().unwrap();
        assert!(read.blocking_wait().unwrap().iter().all(|&x| x == 1.5));
    });
}

#[test]
fn a_copy_within_another_device_holds_its_memory() {
    within_a_minute(|| {
        let (runtime, [here, there]) = two_devices(Runtime::builder());
        let (stream, other) = (here.new_stream().unwrap(), there.new_stream().unwrap());
        let [x, y] = [(); 2].map(|()| other.alloc::<f32>(4 << 20).unwrap());
        other.fill(&x, 1.5).blocking_wait().unwrap();
        let gate = stream.hold().unwrap();
        let copied = stream.copy_buffer_peer(&y, &x);
        drop((x, y, other, there));
        gate.open();
        drop(runtime);
        // A copy into unmapped memory would end this process.
        copied.blocking_wait().unwrap();
    });
}

#[test]
fn a_failed_op_is_never_ok_because_the_next_one_ran() {
    struct QueriesWhenDropped(Stream);
    impl Drop for QueriesWhenDropped {
        fn drop(&mut self) {
            let _ = self.0.query();
        }
    }
    within_a_minute(|| {
        let runtime = Runtime::builder().schedule(Schedule::Seeded(1)).fail_op(1).build().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let held = QueriesWhenDropped(stream.clone());
        let mut failed = stream.call(move || drop(held));
        let next = stream.call(|| ());
        while matches!(failed.query(), Ok(false)) {}
        assert_eq!(refusal(next).kind(), ErrorKind::Fault);
        assert_eq!(refusal(failed).kind(), ErrorKind::Fault);
    });
}

#[test]
fn room_that_is_only_reserved_is_waited_for_and_not_spun_on() {
    within_a_minute(|| {
        let (_runtime, device, []) = crate::support::streams([]);
        let stream = device.stream().max_in_flight(1).build().unwrap();
        let permit = block_on(stream.room()).unwrap();
        let mut room = tokio_test::task::spawn(stream.room());
        tokio_test::assert_pending!(room.poll());
        drop(permit);
        assert!(room.is_woken());
        drop(tokio_test::assert_ready_ok!(room.poll()));
    });
}

#[test]
fn waiting_for_room_observes_nothing() {
    within_a_minute(|| {
        for _ in 0..200 {
            let (_runtime, device, [other]) = crate::support::streams(["other"]);
            let stream = device.stream().max_in_flight(1).build().unwrap();
            let (x, y) = (stream.alloc::<f32>(4).unwrap(), other.alloc::<f32>(4).unwrap());
            stream.fill(&x, 1.0).detach();
            let _room = block_on(stream.room()).unwrap();
            assert_eq!(refusal(other.copy_buffer(&y, &x)).kind(), ErrorKind::Unordered);
        }
    });
}

#[test]
fn a_waker_that_comes_with_returned_room_may_use_the_stream() {
    struct Queries(Stream);
    impl Wake for Queries {
        fn wake(self: Arc<Self>) {
            self.0.query().unwrap();
        }
    }
    within_a_minute(|| {
        let (_runtime, device, []) = crate::support::streams([]);
        let stream = device.stream().max_in_flight(2).build().unwrap();
        let x = stream.alloc::<f32>(4).unwrap();
        let other = device.new_stream().unwrap();
        drop((other.wait_stream(&stream), other.fill(&x, 1.0), stream.fill(&x, 2.0)));
        let gate = stream.hold().unwrap();
        let permit = block_on(stream.room()).unwrap();
        let waker = Waker::from(Arc::new(Queries(stream.clone())));
        let mut room = pin!(stream.room());
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // `x` carries the mark of a refused fill, so this copy is refused, and its permit goes to
        // the waiter.
        let z = stream.alloc::<f32>(4).unwrap();
        refusal(permit.enter(|| stream.copy_buffer(&z, &x)));
        gate.open();
    });
}

#[test]
fn a_panicking_waker_of_a_failed_device_leaves_the_worker_to_the_others() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics, on purpose");
        }
    }
    within_a_minute(|| {
        let (_runtime, [failing, healthy]) = two_devices(Runtime::builder().workers(1));
        let limited = failing.stream().max_in_flight(1).build().unwrap();
        let gate = limited.hold().unwrap();
        let waker = Waker::from(Arc::new(Panics));
        let mut room = pin!(limited.room());
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        refusal(crate::support::break_device(&failing.new_stream().unwrap()));
        assert_eq!(healthy.new_stream().unwrap().call(|| 7).blocking_wait().unwrap(), 7);
        drop(gate);
    });
}

#[test]
fn memory_last_used_by_a_closed_stream_of_a_failed_device_can_be_used_again() {
    for mode in [OrderMode::Deny, OrderMode::Wait] {
        within_a_minute(move || {
            let (_runtime, [healthy, failing]) = two_devices(Runtime::builder().order(mode));
            let (stream, other) = (healthy.new_stream().unwrap(), failing.new_stream().unwrap());
            let (x, y) = (stream.alloc::<f32>(1024).unwrap(), other.alloc::<f32>(1024).unwrap());
            stream.fill(&x, 1.0).blocking_wait().unwrap();
            let gate = other.hold().unwrap();
            drop(crate::support::break_device(&other));
            let copied = other.copy_buffer_peer(&y, &x);
            drop(other);
            gate.open();
            assert_eq!(refusal(copied).kind(), ErrorKind::Fault);
            // The read that never ran stops conflicting once the stream of the failed device is
            // abandoned.
            while stream.fill(&x, 2.0).blocking_wait().is_err() {}
            assert!(healthy.fault().is_none());
        });
    }
}

#[test]
fn an_allocation_is_not_tied_to_a_failed_device() {
    within_a_minute(|| {
        let (_runtime, [healthy, failing]) = two_devices(Runtime::builder().memory_limit(6 << 20));
        let (stream, other) = (healthy.new_stream().unwrap(), failing.new_stream().unwrap());
        let len = (3 << 20) / size_of::<f32>();
        let (x, y) = (stream.alloc::<f32>(len).unwrap(), other.alloc::<f32>(len).unwrap());
        stream.fill(&x, 1.0).blocking_wait().unwrap();
        let gate = other.hold().unwrap();
        drop(crate::support::break_device(&other));
        let copied = other.copy_buffer_peer(&y, &x);
        gate.open();
        refusal(copied);
        drop(x);
        let z = loop {
            match stream.alloc::<f32>(len) {
                Ok(z) => break z,
                Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory),
            }
        };
        stream.fill(&z, 2.0).blocking_wait().unwrap();
        assert!(healthy.fault().is_none());
    });
}

#[test]
fn a_closed_lease_allocates_nothing() {
    let (_runtime, device, []) = crate::support::streams([]);
    let lease = device.stream_pool(1).unwrap().try_lease().unwrap().unwrap();
    let stream = Stream::clone(&lease);
    drop(lease);
    says(
        &stream.alloc::<f32>(4).unwrap_err(),
        ErrorKind::Closed,
        &["alloc on stream \"lease\"", "lease another"],
    );
}

#[test]
fn foreign_work_finds_its_edges_and_its_room() {
    let none: [&Buffer<f32>; 0] = [];
    let runtime = Runtime::builder().order(OrderMode::Wait).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let x = a.alloc::<f32>(4).unwrap();
    a.fill(&x, 1.0).detach();
    // SAFETY: the host function touches no device memory.
    unsafe { b.external(reads(none), writes([&x]), |raw| raw.call(|| ())) }.blocking_wait().unwrap();
    let limited = device.stream().max_in_flight(1).build().unwrap();
    // SAFETY: the host function touches no device memory.
    unsafe { limited.external(reads(none), writes(none), |raw| raw.call(|| ())) }.blocking_wait().unwrap();
}

#[test]
fn a_length_that_cannot_be_addressed_is_refused_for_pinned_memory_too() {
    let (_runtime, device, []) = crate::support::streams([]);
    says(
        &device.blocking_pinned::<f64>(usize::MAX / 4).unwrap_err(),
        ErrorKind::OutOfMemory,
        &["of 8 bytes"],
    );
}

#[test]
fn warn_says_it_once_for_each_pair_of_lines() {
    #[derive(Clone, Default)]
    struct Counts(Arc<AtomicUsize>);
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Counts {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            if event.metadata().target() == "warpline" && *event.metadata().level() == tracing::Level::WARN {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let counts = Counts::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(counts.clone()), || {
        let runtime = Runtime::builder().order(OrderMode::Warn).build().unwrap();
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let x = a.alloc::<f32>(4).unwrap();
        for _ in 0..5 {
            a.fill(&x, 1.0).blocking_wait().unwrap();
            let gate = a.hold().unwrap();
            a.fill(&x, 2.0).detach();
            drop(b.read(&x));
            gate.open();
            a.wait_stream(&b);
        }
    });
    assert_eq!(
        counts.0.load(Ordering::Relaxed),
        1,
        "five unordered reads of one line after a write of another"
    );
}

#[test]
fn a_tracing_subscriber_may_use_the_stream_it_hears_of() {
    struct Queries(Stream, Arc<AtomicUsize>);
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Queries {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            if event.metadata().target() == "warpline::op" {
                self.0.query().unwrap();
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    // A process of its own, because subscribers of other tests change which events arrive.
    in_child(&[], || {
        let (_runtime, [device, _]) = two_devices(Runtime::builder());
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let heard = Arc::new(AtomicUsize::new(0));
        let queries = Queries(stream.clone(), heard.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(queries), || {
            let x = stream.alloc::<f32>(8).unwrap();
            let gate = other.hold().unwrap();
            stream.fill(&x, 1.0).detach();
            stream.wait_stream(&other);
            stream.fill(&x, 2.0).detach();
            gate.open();
            assert_eq!(stream.read(&x).blocking_wait().unwrap(), [2.0; 8]);
        });
        assert_eq!(heard.load(Ordering::Relaxed), 6, "the gate, two fills, the wait, its edge and the read");
    });
}

#[test]
fn what_is_kept_late_for_early_tickets_does_not_let_go_of_what_later_ones_keep() {
    let timeline = warpline::backend::Timeline::new();
    let kept: Vec<Arc<u64>> = [2, 6, 3, 4, 5].map(Arc::new).into();
    for ticket in &kept {
        timeline.keep_until_last(**ticket, ticket.clone());
    }
    timeline.complete(5);
    let held: Vec<u64> = kept.iter().filter(|kept| Arc::strong_count(kept) > 1).map(|kept| **kept).collect();
    assert_eq!(held, [6]);
    timeline.complete(6);
    assert!(kept.iter().all(|kept| Arc::strong_count(kept) == 1));
}
