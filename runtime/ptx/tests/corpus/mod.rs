//! Classic CUDA kernels with their launches and expected results.
//!
//! `*.cu` are the sources, which `ci/ptx-corpus` compiles to `ptx/*.ptx`. A source `NAME.KIND.cu`
//! is `NAME.cu` with one fault, on the lines marked `// fault`. `corpus.tsv` lists a launch of
//! each.
//!
//! A test runs each of [`manifest::cases`]. If [`manifest::Case::fault`] is `None`, it compares
//! memory after the launch with [`references::expected`]. Otherwise it expects a report that fits
//! the fault.

pub(crate) mod fills;
pub(crate) mod manifest;
pub(crate) mod references;
pub(crate) mod values;

#[cfg(test)]
mod tests;
