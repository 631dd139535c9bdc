//! Tensors and data: values compared with PyTorch's, loaders, and the digits.

#[path = "../support/mod.rs"]
mod support;

mod csv;
mod data_parallel;
mod digits;
mod host_model;
mod loader;
mod loader_ends;
mod loader_memory;
mod modules;
mod pytorch;
mod random_calls;
mod random_ops;
mod same_bytes;
mod single_ops;
mod tensors;
mod workers;
