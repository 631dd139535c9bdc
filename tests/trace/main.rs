//! The recorder and its pictures.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/traces.rs"]
mod traces;

mod recorder;
mod timeline;
