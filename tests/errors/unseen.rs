//! Errors that are dropped unseen, in a process without a `tracing` subscriber.

use crate::support::software::in_child;
use crate::support::streams;

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
