//! `queued` says that a call was accepted, also for calls whose result is made when they are done.

use warpline::prelude::*;

#[test]
fn a_host_function_and_a_synchronize_can_be_queued_before_they_are_over() {
    let runtime = Runtime::new().unwrap();
    let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
    let gate = stream.hold().unwrap();
    stream.call(|| ()).queued().unwrap();
    stream.synchronize().queued().unwrap();
    gate.open();
    stream.synchronize().wait().unwrap();
}
