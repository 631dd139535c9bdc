//! Device code: loading it, compiling it, and the libraries that stand in for it.

pub(crate) mod functions;
pub(crate) mod handles;
pub(crate) mod library;
pub(crate) mod nvrtc;
pub(crate) mod software;
