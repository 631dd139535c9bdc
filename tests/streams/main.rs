//! Streams, events, scopes, leases and graphs: the calls that they make to a device, and the
//! results that users see.

#[path = "../support/mod.rs"]
mod support;

mod graphs;
mod held_back;
mod join;
mod launch_blocking;
mod leases;
mod pending;
mod recording;
mod scopes;
mod sync_mode;
