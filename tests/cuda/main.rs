//! Tests of CUDA devices, mostly on the software CUDA driver. Most of them run in a process of
//! their own, with settings that make its driver fail or wait.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a sequence of raw driver calls rests on one promise"
)]

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/traces.rs"]
mod traces;

mod calls;
mod cublas;
mod depth;
mod device;
mod faults;
mod foreign;
mod nvrtc;
mod nvtx;
mod threads;
mod trace;
