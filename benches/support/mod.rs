//! What the benches share: how they measure, what they measure against, and how they print.
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
pub mod software;
pub mod two_threads;

pub use measure::{Options, Sample, Table, interleave, ns, ratio};
pub use two_threads::TwoThreads;

use warpline::kernel::LaunchConfig;
use warpline::prelude::*;

warpline::kernel! {
    /// c ← a + k · b for one element, whatever the operands' lengths: the least work that touches three buffers.
    pub unsafe fn touch_three(k: f32, a: &[f32], b: &[f32], write c: &mut [f32]) {
        cpu: |k, a, b, c| c[0] = a[0] + k * b[0],
    }

    /// Nothing, with no operand at all: what an op costs besides its accesses.
    pub unsafe fn touch_none(k: f32) {
        cpu: |k| { std::hint::black_box(k); },
    }

    /// The least work on one buffer.
    pub unsafe fn touch_one(k: f32, x: &mut [f32]) {
        cpu: |k, x| x[0] = k,
    }
}

pub const ONE: LaunchConfig = LaunchConfig::linear(1, 32);

/// A CPU runtime with the defaults, and its device.
pub fn cpu() -> (Runtime, Device) {
    let runtime = Runtime::builder().build().expect("a CPU runtime");
    let device = runtime.device(DeviceId::Cpu(0)).expect("cpu:0");
    (runtime, device)
}

/// Spins until everything on `stream` is done, without observing it.
pub fn drain(stream: &Stream) {
    while stream.completed() < stream.issued() {
        std::hint::spin_loop();
    }
}
