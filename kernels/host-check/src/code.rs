//! The forms of a kernel's device code that a check runs.

use crate::{HostKernel, host_kernel};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use warpline_ptx as ptx;
use warpline_runtime::kernel::{Kernel, Source};

/// One form of a kernel's device code.
pub(crate) enum Code {
    /// Its source, compiled for the host.
    Host(HostKernel),
    /// Its committed PTX.
    Ptx(ptx::Kernel),
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Host(_) => write!(f, "the source on the host"),
            Code::Ptx(_) => write!(f, "the PTX"),
        }
    }
}

/// Returns all forms of a kernel's device code. Reads its PTX on first use.
///
/// # Panics
/// If the executor does not support the PTX, or if there is none.
pub(crate) fn forms(kernel: &Kernel) -> Arc<[Code]> {
    static READ: Mutex<BTreeMap<&str, Arc<[Code]>>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(read.entry(kernel.name).or_insert_with(|| {
        // Without a C++ compiler the PTX runs alone.
        let host = host_kernel(kernel.name).map(Code::Host);
        assert!(host.is_some() || cfg!(without_cpp), "{} is not compiled", kernel.name);
        host.into_iter().chain([Code::Ptx(load(ptx_text(kernel), kernel.name))]).collect()
    }))
}

/// Returns the PTX text of a kernel.
///
/// # Panics
/// If it does not have exactly one.
pub fn ptx_text(kernel: &Kernel) -> &'static str {
    match kernel.source {
        Source::Ptx { texts: [text], .. } => text,
        _ => panic!("{} does not have one PTX text", kernel.name),
    }
}

/// Prepares the kernel of this name in a PTX text.
///
/// # Panics
/// If the executor does not support it.
pub fn load(text: &str, name: &str) -> ptx::Kernel {
    let module = ptx::Module::new(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    module.kernel(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}
