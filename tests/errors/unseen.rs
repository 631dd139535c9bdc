//! Errors that are dropped unseen, in a process without a `tracing` subscriber.

use crate::support::software::in_child;
use crate::support::{refusal, says, streams};
use warpline::prelude::*;

#[test]
fn a_dropped_refusal_is_written_to_standard_error_once_a_line() {
    let said = in_child(&[], || {
        let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
        let x = owner.alloc::<f32>(8).unwrap();
        drop(owner.fill(&x, 1.0));
        for _ in 0..3 {
            drop(other.fill(&x, 2.0));
        }
        drop(other.read(&x));
        drop(other.write(&x, &[0.0; 3]));
        drop(other.fill(&x, 3.0).blocking_wait());
    });
    let told: Vec<&str> =
        said.lines().filter(|line| line.contains("warpline: this error was never observed")).collect();
    assert_eq!(told.len(), 3, "{said}");
    for (line, op) in told.iter().zip(["fill", "read", "write"]) {
        assert!(line.contains(&format!(": {op} on stream \"other\" (tests/errors/unseen.rs:")), "{line}");
    }
}

#[test]
fn an_error_that_no_caller_received_keeps_no_pinned_buffer() {
    let runtime = Runtime::builder().pinned_cap(4 << 20).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let stream = device.stream().max_in_flight(2).build().unwrap();
    let x = stream.alloc::<u8>(1 << 20).unwrap();
    let gate = stream.hold().unwrap();
    for _ in 0..100 {
        let host = device.blocking_pinned::<u8>(1 << 20).unwrap();
        drop(stream.copy_into(&x, host));
    }
    gate.open();
    let error = refusal(stream.synchronize());
    says(&error, ErrorKind::Full, &["copy_into on stream"]);
    assert!(Pinned::<u8>::from_error(error).is_none(), "the buffer went back to the pool");
}
