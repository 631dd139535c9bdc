//! The texts of errors, and the behaviour of devices that fail.

#[path = "../support/mod.rs"]
mod support;

mod device_code;
mod environment;
mod faults;
mod messages;
mod panicking_subscriber;
mod unseen;
mod unwind;
mod warnings;
