//! Runs without threads, in an order drawn from a seed.

#[path = "../support/mod.rs"]
mod support;

mod lease;
mod schedules;
mod tokio;
