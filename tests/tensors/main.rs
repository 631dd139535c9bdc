//! Tensors and data: values compared with PyTorch's, loaders, and the digits.

#[path = "../support/mod.rs"]
mod support;

mod csv;
mod digits;
mod host_model;
mod loader;
mod pytorch;
mod random_ops;
mod same_bytes;
mod tensors;
