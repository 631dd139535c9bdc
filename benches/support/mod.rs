//! The shared parts of the benches: measuring, rivals and printing.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "each bench uses a part")]

pub mod by_hand;
pub mod counting;
pub mod cublas;
pub mod gpu_kernels;
pub mod instructions;
pub mod measure;
pub mod null_driver;
pub mod perceptron;
pub mod process;
pub mod random;
pub mod software;
pub mod two_threads;

pub use measure::{Figure, Options, Sample, Table, interleave, ns, ratio};
pub use two_threads::TwoThreads;

use warpline::kernel::LaunchConfig;
use warpline::prelude::*;

warpline::kernel! {
    /// Computes c ← a + k · b for one element, whatever the length of the operands: the least work
    /// that touches three buffers.
    pub unsafe fn touch_three(k: f32, a: &[f32], b: &[f32], write c: &mut [f32]) {
        cpu: |k, a, b, c| c[0] = a[0] + k * b[0],
    }

    /// Does nothing and has no buffers: the cost of an op besides its accesses.
    pub unsafe fn touch_none(k: f32) {
        cpu: |k| { std::hint::black_box(k); },
    }

    /// Writes one element: the least work that touches one buffer.
    pub unsafe fn touch_one(k: f32, x: &mut [f32]) {
        cpu: |k, x| x[0] = k,
    }
}

pub const ONE: LaunchConfig = LaunchConfig::linear(1, 32);

/// Returns a CPU runtime with default options, and its device.
pub fn cpu() -> (Runtime, Device) {
    let runtime = Runtime::builder().build().expect("a CPU runtime");
    let device = runtime.device(DeviceId::Cpu(0)).expect("cpu:0");
    (runtime, device)
}

/// Busy-waits until all work on `stream` has finished, without observing it.
pub fn drain(stream: &Stream) {
    while stream.completed() < stream.issued() {
        std::hint::spin_loop();
    }
}
