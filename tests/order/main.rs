//! The order check: verdicts, refused writes, and an oracle that searches for paths.

#[path = "../support/mod.rs"]
mod support;

mod oracle;
mod refused_writes;
mod regressions;
mod verdicts;
