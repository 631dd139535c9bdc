//! Errors that nobody looks at, where no `tracing` subscriber listens.

mod support;

use std::process::Command;
use support::streams;

/// Set in the child process, whose standard error is looked at.
const CHILD: &str = "WARPLINE_TEST_UNSEEN";

#[test]
fn a_dropped_refusal_is_written_to_standard_error_once_a_line() {
    if std::env::var_os(CHILD).is_some() {
        let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
        let x = owner.alloc::<f32>(8).unwrap();
        drop(owner.fill(&x, 1.0));
        for _ in 0..3 {
            drop(other.fill(&x, 2.0));
        }
        drop(other.read(&x));
        drop(other.write(&x, &[0.0; 3]));
        drop(other.fill(&x, 3.0).wait());
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["a_dropped_refusal", "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    let output = child.output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    let told: Vec<&str> = said.lines().filter(|line| line.starts_with("warpline: nobody looked")).collect();
    assert_eq!(told.len(), 3, "{said}");
    for (line, op) in told.iter().zip(["fill", "read", "write"]) {
        assert!(line.contains(&format!(": {op} on stream \"other\" (tests/unseen_errors.rs:")), "{line}");
    }
}
