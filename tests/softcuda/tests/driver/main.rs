//! The software driver's own behaviour, through the C API. Each test runs in a child process.

#![cfg(target_os = "linux")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a sequence of raw driver calls rests on one promise"
)]

#[path = "../support/raw.rs"]
mod raw;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/twins.rs"]
mod twins;

mod allocation_waits;
mod capture;
mod capture_modes;
mod connections;
mod contexts;
mod depth;
mod device_code;
mod devices;
mod ending;
mod faults;
mod faults_seen;
mod graph_faults;
mod graphs;
mod immediate;
mod kernels;
mod lent;
mod libraries;
mod managed;
mod memory;
mod order;
mod peers;
mod registration;
mod virtual_memory;
