//! The forms of a kernel's device code that a check runs.
//!
//! A descriptor has a PTX text for each of several targets. The executor of PTX ignores the target,
//! so texts that differ in nothing else are one form here.

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
    /// A committed PTX text.
    Ptx { target: String, kernel: ptx::Kernel },
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Host(_) => write!(f, "the source on the host"),
            Code::Ptx { target, .. } => write!(f, "the PTX for {target}"),
        }
    }
}

/// Returns all forms of a kernel's device code. Reads its PTX on first use.
///
/// # Panics
/// If the executor does not support a text, or if there is none.
pub(crate) fn forms(kernel: &Kernel) -> Arc<[Code]> {
    static READ: Mutex<BTreeMap<&str, Arc<[Code]>>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(read.entry(kernel.name).or_insert_with(|| {
        // Without a C++ compiler the PTX runs alone.
        let host = host_kernel(kernel.name).map(Code::Host);
        assert!(host.is_some() || cfg!(without_cpp), "{} is not compiled", kernel.name);
        let texts = ptx_texts(kernel).into_iter().map(|text| {
            let target = line_of(text, ".target").unwrap_or_default();
            Code::Ptx {
                target: target.trim_start_matches(".target ").into(),
                kernel: load(text, kernel.name),
            }
        });
        host.into_iter().chain(texts).collect()
    }))
}

/// Returns the PTX texts of a kernel, without those that differ from an earlier one in the target
/// alone.
///
/// # Panics
/// If it has none.
pub fn ptx_texts(kernel: &Kernel) -> Vec<&'static str> {
    let Source::Ptx { texts, .. } = kernel.source else { panic!("{} has no PTX", kernel.name) };
    let mut distinct: Vec<&'static str> = Vec::new();
    for text in texts {
        if !distinct.iter().any(|earlier| lines_without_target(earlier).eq(lines_without_target(text))) {
            distinct.push(text);
        }
    }
    distinct
}

/// Prepares the kernel of this name in a PTX text.
///
/// # Panics
/// If the executor does not support it.
pub fn load(text: &str, name: &str) -> ptx::Kernel {
    let module = ptx::Module::new(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    module.kernel(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn lines_without_target(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with(".target"))
}

fn line_of<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    text.lines().find(|line| line.starts_with(start))
}
