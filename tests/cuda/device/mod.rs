//! What is particular to CUDA devices: how they are found, what they call the driver for, and what they leave alone. Each test
//! runs in a child process on the software CUDA driver.

#![cfg(target_os = "linux")]

mod contexts;
mod copies;
mod found;
mod graphs;
mod held;
mod held_back;
mod kernels;
mod pinned;
mod pools;
mod programs;

use crate::support::cuda;

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}
