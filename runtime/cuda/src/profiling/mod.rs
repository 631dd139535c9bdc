//! Reports ops to subscribers and profilers: spans from timed events, and NVTX ranges.

pub(crate) mod nvtx;
pub(crate) mod spans;
