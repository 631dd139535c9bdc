//! CUDA devices, on the software CUDA driver: most tests in a process of their own, whose driver may be made mean.

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
