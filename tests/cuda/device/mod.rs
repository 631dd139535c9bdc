//! Behaviour of CUDA devices alone: how they are found, which driver calls they make, and which
//! state they leave alone. Each test on a CUDA device runs in a child process, on the software CUDA
//! driver.

#![cfg(target_os = "linux")]

mod contexts;
mod copies;
pub(crate) mod found;
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
