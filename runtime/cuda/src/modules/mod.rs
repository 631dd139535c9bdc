//! Loads and compiles device code, and calls the libraries that stand in for it.

mod folders;
pub(crate) mod functions;
pub(crate) mod handles;
mod headers;
pub(crate) mod library;
pub(crate) mod nvrtc;
pub(crate) mod requirements;
pub(crate) mod software;

use functions::Functions;
use handles::Handles;

/// The functions and library handles of a context.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    pub(crate) functions: Functions,
    pub(crate) handles: Handles,
}
