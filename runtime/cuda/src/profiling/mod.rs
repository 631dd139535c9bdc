//! What others measure: spans of ops by timed events, and NVTX ranges.

pub(crate) mod nvtx;
pub(crate) mod spans;
