//! Streams, events, scopes, leases and graphs: what they tell a device, and what users see of them.

#[path = "../support/mod.rs"]
mod support;

mod graphs;
mod held_back;
mod leases;
mod pending;
mod recording;
mod scopes;
