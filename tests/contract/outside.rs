//! Behaviour that only devices of outside drivers have: how they are added, and how they fail.

use crate::support::software::in_child;
use crate::support::{break_device, refusal, within_a_minute};
use crate::with_outside_devices;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::layer::{Context, SubscriberExt};
use warpline::ErrorKind;
use warpline::prelude::*;
use warpline_outside_driver::{BACKEND, ThreadDevice};

const THREAD_0: DeviceId = DeviceId::Other { backend: BACKEND, ordinal: 0 };

fn runtime(devices: usize) -> Runtime {
    with_outside_devices(Runtime::builder(), devices).build().unwrap()
}

#[test]
fn devices_of_a_driver_stand_beside_those_of_the_cpu() {
    let names: Vec<String> = runtime(2).devices().iter().map(|device| device.id().to_string()).collect();
    assert_eq!(names, ["cpu:0", "thread:0", "thread:1"]);
    let missing = runtime(1).device(DeviceId::Other { backend: BACKEND, ordinal: 1 }).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NoSuchDevice);
    assert_eq!(
        missing.to_string(),
        "there is no thread:1 in this runtime; build it with the driver of thread:1"
    );
}

#[test]
fn an_id_that_another_device_has_is_refused() {
    let twice = with_outside_devices(with_outside_devices(Runtime::builder(), 1), 1).build().unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        twice.to_string(),
        "a runtime cannot be built: a driver's device is called thread:0, and the runtime has a device of that id already; \
         use another ordinal"
    );
}

#[test]
fn a_driver_that_does_not_open_is_an_error_of_the_build() {
    let builder = Runtime::builder()
        .driver(|_| Err::<ThreadDevice, _>(Error::new(ErrorKind::NoSuchDevice, "no such threads")));
    assert_eq!(builder.build().unwrap_err().to_string(), "no such threads");
}

#[test]
fn a_twin_that_panics_fails_its_device_and_what_waits_for_it() {
    within_a_minute(|| {
        let runtime = runtime(2);
        let [device, other] = [0, 1].map(|ordinal| DeviceId::Other { backend: BACKEND, ordinal });
        let [device, other] = [device, other].map(|id| runtime.device(id).unwrap());
        let (stream, waits) = (device.new_stream().unwrap(), other.new_stream().unwrap());
        let gate = stream.hold().unwrap();
        let failed = break_device(&stream);
        waits.wait_stream(&stream).queued().unwrap();
        let behind = waits.call(|| ());
        gate.open();
        let error = refusal(failed);
        assert_eq!(error.kind(), ErrorKind::Fault);
        assert!(error.to_string().contains("panicked: on purpose"), "{error}");
        assert_eq!(refusal(behind).kind(), ErrorKind::Fault);
        assert_eq!(refusal(stream.call(|| ())).kind(), ErrorKind::Fault);
    });
}

/// A subscriber layer that panics once, at the first op event on the thread named `panicking`.
struct PanicsOnce(AtomicBool);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for PanicsOnce {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let is_here = std::thread::current().name() == Some("panicking");
        if is_here && event.metadata().target() == "warpline::op" && !self.0.swap(true, Ordering::Relaxed) {
            panic!("a subscriber panics");
        }
    }
}

#[test]
fn a_subscriber_that_panics_is_a_fault_of_the_device() {
    in_child(&[], || {
        let subscriber = tracing_subscriber::registry().with(PanicsOnce(AtomicBool::new(false)));
        tracing::subscriber::set_global_default(subscriber).unwrap();
        let runtime = runtime(1);
        let device = runtime.device(THREAD_0).unwrap();
        let stream = device.stream().label("panicking").build().unwrap();
        assert_eq!(refusal(stream.call(|| ())).kind(), ErrorKind::Fault);
    });
}

#[test]
fn a_shutdown_ends_what_waits_on_another_device_as_well() {
    within_a_minute(|| {
        let runtime = runtime(2);
        let [held, waits] = [0, 1].map(|ordinal| {
            runtime.device(DeviceId::Other { backend: BACKEND, ordinal }).unwrap().new_stream().unwrap()
        });
        let gate = held.hold().unwrap();
        let before = held.call(|| ());
        waits.wait_stream(&held).queued().unwrap();
        let behind = waits.call(|| ());
        drop(runtime);
        assert_eq!(refusal(before).kind(), ErrorKind::ShutDown);
        assert_eq!(refusal(behind).kind(), ErrorKind::ShutDown);
        drop(gate);
    });
}

#[test]
fn a_wait_that_nothing_will_release_ends_with_the_runtime() {
    within_a_minute(|| {
        let runtime = runtime(1);
        let stream = runtime.device(THREAD_0).unwrap().new_stream().unwrap();
        let gate = stream.hold().unwrap();
        let held = stream.call(|| ());
        drop(runtime);
        let error = refusal(held);
        assert_eq!(error.kind(), ErrorKind::ShutDown);
        assert!(error.to_string().contains("held at a wait that nothing will release"), "{error}");
        drop(gate);
    });
}
