//! The programs of PyTorch's CUDA semantics note, as tests. The first line of each test's docs
//! names the program by its number in `docs/semantics.md`.
//!
//! `cpu:0` is the host, and `cpu:1` and later devices stand in for GPUs. What concerns the name
//! `cuda` runs on the software CUDA driver.

#[path = "../support/mod.rs"]
mod support;

mod arguments;
mod devices;
mod loading;
mod modules;
mod streams;
mod tensors;
