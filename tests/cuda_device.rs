//! What is particular to CUDA devices: how they are found, what they call the driver for, and what they leave alone. Each test
//! runs in a child process on the software CUDA driver.

#![cfg(target_os = "linux")]

mod support;

#[path = "cuda_device/contexts.rs"]
mod contexts;
#[path = "cuda_device/copies.rs"]
mod copies;
#[path = "cuda_device/found.rs"]
mod found;
#[path = "cuda_device/graphs.rs"]
mod graphs;
#[path = "cuda_device/held.rs"]
mod held;
#[path = "cuda_device/held_back.rs"]
mod held_back;
#[path = "cuda_device/kernels.rs"]
mod kernels;
#[path = "cuda_device/pinned.rs"]
mod pinned;
#[path = "cuda_device/pools.rs"]
mod pools;
#[path = "cuda_device/programs.rs"]
mod programs;

use support::cuda;

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}
